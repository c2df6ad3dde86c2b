"""Start one rank, under nsys if it is a profiled one: what torchrun runs on every rank.

`python -m perfdoc.profiling.nsys.rank RANKS LOGS N WORD... PROGRAM...`: RANKS is `all` or `0,3`; LOGS a
folder for what nsys and the program write on standard output; the N words after it are the nsys line, the
rest the program.

nsys now and then ends before it has started the program (5 of 50 starts of 2022.4.2 on a busy machine, 1 of
30 of 2024.2.3). The ranks of a launch note when they start, so that such an nsys is started again, and a rank
that nsys refuses for good trains without it. Outside a launch the process becomes the program.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.profiling.launch_folder import LaunchFolder, kill, words_of
from perfdoc.profiling.nsys.command import BEGUN, LOCAL_RANK
from perfdoc.profiling.process import local_rank

POLL_S = 0.5
RANK_VARIABLE = "PERFDOC_RANK"
"""The rank of a process that torchrun has not started; the job itself is not to see a RANK."""
STDOUT_VARIABLE = "PERFDOC_STDOUT"
"""The descriptor of what was standard output before nsys got a file for it (see `begun.py`)."""
STARTS = 3
"""Times that nsys is started before the rank goes without."""


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """What one rank runs."""

    rank: int
    words: list[str]
    program: list[str]
    """Without nsys."""
    log: Path | None
    """Where its standard output goes; None for a rank without nsys: nowhere else."""


def line_of_rank(arguments: Sequence[str], environment: Mapping[str, str]) -> RankLine:
    """The line that this rank runs.

    Raises ValueError where the arguments or the RANK that torchrun sets are not as described above, or where
    nobody says which GPU of several is this rank's.
    """
    if len(arguments) < 4:
        raise ValueError("nsys_rank needs RANKS, a folder, a number of words, and a program")
    chosen, logs, count, *words = arguments
    rank = int(environment.get(RANK_VARIABLE) or environment.get("RANK", "-1"))
    if rank < 0:
        raise ValueError("RANK is not set: start nsys_rank with torchrun")
    under, program = words[: int(count)], words[int(count) :]
    if chosen == "all" or rank in {int(text) for text in chosen.split(",") if text}:
        log = Path(logs) / f"rank{rank}.txt"
        if any(LOCAL_RANK in word for word in under):
            under = [word.replace(LOCAL_RANK, gpu_of(environment)) for word in under]
        return RankLine(rank=rank, words=[*under, *program], program=program, log=log)
    return RankLine(rank=rank, words=program, program=program, log=None)


def gpu_of(environment: Mapping[str, str]) -> str:
    """The number of this rank's GPU on its machine, as nsys and nvidia-smi count.

    Raises ValueError where nobody says which of several it is.

    >>> gpu_of({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "2,3"})
    '3'
    """
    own = local_rank(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    if own is None and (not visible or "," in visible):
        raise ValueError("LOCAL_RANK is not set: which GPU's counters are this rank's?")
    if not visible:
        return str(own)
    devices = visible.split(",")
    # With a GPU to each rank the job takes the only one it sees, whatever its local rank.
    at = 0 if own is None or len(devices) == 1 else own
    if at < len(devices) and devices[at].isdecimal():
        return devices[at]
    for number, uuid in _gpus() if at < len(devices) else ():
        if uuid.startswith(devices[at]):
            return number
    raise ValueError(f"CUDA_VISIBLE_DEVICES={visible}: which GPU is number {at}?")


def _gpus() -> Iterator[tuple[str, str]]:
    """(number, UUID) of every GPU; nothing where nvidia-smi does not say."""
    line = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        for row in subprocess.run(line, capture_output=True, text=True, timeout=60).stdout.splitlines():
            number, _, uuid = row.partition(",")
            yield number.strip(), uuid.strip()


def main() -> None:
    """Become the program, or look after the nsys that runs it."""
    try:
        line = line_of_rank(sys.argv[1:], os.environ)
        if line.log is not None:
            _redirect_stdout(line.log, keep=BEGUN in line.words)
            if (launch := LaunchFolder.of()) is not None:
                launch.register(line.rank)
                sys.exit(_under_nsys(line, launch))
        os.execvp(line.words[0], line.words)
    except (OSError, ValueError, IndexError) as error:
        sys.exit(f"perfdoc: the rank cannot be started: {error}")


def _under_nsys(line: RankLine, launch: LaunchFolder) -> int:
    """Run nsys until it has run the program; its exit code, 128 and the signal where one ended it."""
    # nsys is in our process group, gets the signals too, and passes them on.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    for again in range(STARTS):
        code = subprocess.call(line.words, close_fds=False)
        code = code if code >= 0 else 128 - code
        program = launch.ranks().get(line.rank)
        if program != os.getpid():  # the program has put its own id there
            outlives = _outlives(program)
            if (noted := launch.code(line.rank)) is not None:
                return noted
            if not outlives:
                return code
            return 0 if launch.is_done(line.rank) else code or 1
        for pid, rank in launch.processes().items():
            if rank == line.rank and pid != os.getpid():
                kill(pid)  # what the failed start left, perhaps with the program in its first moments
        what = "trying again" if again + 1 < STARTS else "the rank trains without it"
        sys.stderr.write(
            f"perfdoc: rank {line.rank}: nsys ended with code {code} before it started; {what}\n"
        )
        time.sleep(again)
    if (kept := os.environ.pop(STDOUT_VARIABLE, "")) and BEGUN in line.words:
        os.dup2(int(kept), 1)
    os.execvp(line.program[0], line.program)


def _outlives(program: int | None) -> bool:
    """Whether the program goes on without its nsys; waits for its end."""
    outlives = False
    while program is not None and any(words_of(program, "cmdline")):
        outlives = True
        time.sleep(POLL_S)
    return outlives


def _redirect_stdout(log: Path, *, keep: bool) -> None:
    with contextlib.suppress(OSError):  # A disk that is full says so soon enough.
        log.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        if keep:
            kept = os.dup(1)
            os.set_inheritable(kept, True)
            os.environ[STDOUT_VARIABLE] = str(kept)
        os.dup2(descriptor, 1)
        os.close(descriptor)


if __name__ == "__main__":
    main()
