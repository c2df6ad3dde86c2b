"""A small folder through which `perfdoc run`, the launcher and the ranks of one machine know of one another.

rank<N>         the process id of rank N, written by the rank itself
stop            a stop was asked for: every rank finishes its step, saves and ends
stopped         the ranks ended because of it
done<N>         rank N has done all its work, and only its process has to end
code<N>         the exit code of rank N's program, which its profiler may not pass on
said-<hash>     a message that a rank has said, so that no other repeats it
failure.json    which rank failed first, and how
alive-<who>     locked by `run` or `launcher` for as long as it lives; whoever it started waits for the lock

It lies among the temporary files of the machine, not in the run directory, which several machines may share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path

VARIABLE = "PERFDOC_LAUNCH"
"""Environment variable that names the folder to every process of a launch."""
_RANK = re.compile(r"rank(0|[1-9][0-9]{0,6})")
_MAX_BYTES = 64 * 1024
_MAX_WORDS_BYTES = 1 << 20
"""Of a process's arguments or variables."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The first failure among the ranks of this machine."""

    rank: int
    """Global rank; -1 where no rank of this machine failed by itself."""
    reason: str
    """One line."""
    bad_input: bool = False
    """Whether it is a mistake in what was given, which no rank found before the others."""


@dataclass(frozen=True)
class LaunchFolder:
    """Paths and marks of one launch on one machine. Marks that cannot be written are left out silently:
    a full disk must not end a run that does not need them."""

    path: Path

    @classmethod
    def make(cls) -> LaunchFolder:
        """A new folder for this user alone. Raises OSError."""
        return cls(Path(tempfile.mkdtemp(prefix="perfdoc-launch-")))

    @classmethod
    def of(cls, environment: Mapping[str, str] | None = None) -> LaunchFolder | None:
        """The folder of the launch that this process belongs to; None for one started by other means."""
        named = (os.environ if environment is None else environment).get(VARIABLE)
        return cls(Path(named)) if named else None

    def name_in(self, environment: MutableMapping[str, str]) -> None:
        """Let processes with this environment find the folder."""
        environment[VARIABLE] = str(self.path)

    def register(self, rank: int) -> None:
        """Note that this process is rank `rank`."""
        self._write(f"rank{rank}", str(os.getpid()))

    def ranks(self) -> dict[int, int]:
        """Rank → process id of the ranks that were started on this machine."""
        found: dict[int, int] = {}
        with contextlib.suppress(OSError):
            for file in self.path.iterdir():
                if (match := _RANK.fullmatch(file.name)) and (text := _read(file)).isdecimal():
                    found[int(match[1])] = int(text)
        return dict(sorted(found.items()))

    def processes(self) -> dict[int, int | None]:
        """Process id → RANK (None outside a rank) of everything that runs with the folder's name in its
        environment: the launcher, ranks, their nsys and what else they started."""
        found: dict[int, int | None] = {}
        mark = f"{VARIABLE}={self.path}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and mark in (variables := words_of(int(entry.name), "environ")):
                ranks = [word[5:] for word in variables if word.startswith(b"RANK=")]
                found[int(entry.name)] = int(ranks[0]) if ranks and ranks[0].isdigit() else None
        return found

    def live_as(self, who: str) -> None:
        """Hold the lock of `who` until this process ends, however it ends: the kernel lets go of it."""
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            held = os.open(self.path / f"alive-{who}", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(held, fcntl.LOCK_EX)  # and never closed

    def outlives(self, who: str) -> bool:
        """Wait until `who` has ended, and say so; False at once where it never lived here."""
        try:
            import fcntl

            fcntl.flock(os.open(self.path / f"alive-{who}", os.O_RDONLY), fcntl.LOCK_SH)
        except (ImportError, OSError):
            return False
        return True

    def ask_to_stop(self) -> None:
        """Every rank that looks will finish its step, save and end."""
        self._write("stop", "")

    def stop_asked(self) -> bool:
        """Whether a stop was asked for; cheap enough for every step (one stat of a local file)."""
        return (self.path / "stop").exists()

    def note_stopped(self) -> None:
        """The ranks end because a stop was asked for, not because they are done."""
        self._write("stopped", "")

    def stopped(self) -> bool:
        """Whether the ranks ended because a stop was asked for."""
        return (self.path / "stopped").exists()

    def note_done(self, rank: int) -> None:
        """Rank `rank` has done its work; however its process ends, it has not failed."""
        self._write(f"done{rank}", "")

    def is_done(self, rank: int) -> bool:
        """Whether a rank has done its work."""
        return (self.path / f"done{rank}").exists()

    def note_code(self, rank: int, code: int) -> None:
        """The program of rank `rank` has ended with this exit code, whatever its profiler ends with."""
        self._write(f"code{rank}", str(code))

    def code(self, rank: int) -> int | None:
        """What `note_code` noted; None where nothing was."""
        with contextlib.suppress(OSError, ValueError):
            return int(_read(self.path / f"code{rank}"))
        return None

    def is_first_to_say(self, message: str) -> bool:
        """Whether no other rank of this machine has said the same; true where that cannot be known."""
        name = "said-" + hashlib.sha256(message.encode(errors="replace")).hexdigest()[:32]
        try:
            (self.path / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def note_failure(self, failure: Failure) -> None:
        """Keep what went wrong for whoever started the launch."""
        self._write("failure.json", json.dumps(asdict(failure)))

    def failure(self) -> Failure | None:
        """What went wrong; None where nothing was noted."""
        try:
            noted = json.loads(_read(self.path / "failure.json"))
            return Failure(
                rank=int(noted["rank"]), reason=str(noted["reason"]), bad_input=bool(noted["bad_input"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / name).write_text(text, encoding="utf-8")


def words_of(pid: int, of: str) -> list[bytes]:
    """A process's arguments (`cmdline`) or variables (`environ`); none of one that is not ours, or gone."""
    try:
        with Path(f"/proc/{pid}/{of}").open("rb") as stream:
            return stream.read(_MAX_WORDS_BYTES).split(b"\0")
    except OSError:
        return []


def kill(pid: int) -> None:
    """SIGKILL, if it is there."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _read(file: Path) -> str:
    with file.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(_MAX_BYTES)
