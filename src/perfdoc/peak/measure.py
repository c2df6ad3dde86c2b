"""Start the ranks of a measurement, wait for them, and take in what they found.

They are processes of their own, which end before any training begins: nothing of theirs, no memory and no
thread, is left in a rank that trains.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.cpu_times import cpu_times, others_frac
from perfdoc.profiling.installation import install_command
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.measured import MeasuredCeilings
from perfdoc.records import dataclass

LIMIT_S = 180.0
"""A measurement takes seconds; one that takes minutes is given up."""
_OTHERS_FRAC = 0.15
"""Of the machine's CPUs; less is what every system does beside."""
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR", "GLOO_LOG_LEVEL": "ERROR"}


class PeakError(ValueError):
    """What could not be measured; shown as one line."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """On what to measure."""

    kind: DeviceKind
    ranks: int
    """At once, on this machine."""

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables of the ranks: torchrun gives each of several one thread unless told otherwise."""
        found = {**QUIET, **(os.environ if given is None else given)}
        if self.ranks > 1:
            found.setdefault("OMP_NUM_THREADS", "1")
        return found


def measure(setting: Setting) -> MeasuredCeilings:
    """Measure now, for seconds. Raises PeakError."""
    began = cpu_times()
    with tempfile.TemporaryDirectory(prefix="perfdoc-peak-") as name:
        folder = Path(name)
        _run(setting, folder)
        try:
            found = msgspec.json.decode((folder / "out").read_bytes(), type=MeasuredCeilings)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PeakError(f"the ceilings were not measured: {_said(folder)}") from error
    others = others_frac(began, cpu_times())
    if others is not None and others > _OTHERS_FRAC:
        line = f"other processes used {others:.0%} of the machine's CPUs meanwhile"
        found = msgspec.structs.replace(found, busy=(line, *found.busy))
    return found


def _run(setting: Setting, folder: Path) -> None:
    """All ranks to their end. Raises PeakError."""
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(setting.ranks):
            with (folder / f"said{number}").open("wb") as said:
                ranks.append(
                    subprocess.Popen(
                        _command(setting, number, folder),
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=said,
                        env=setting.environment(),
                    )
                )
        give_up = time.monotonic() + LIMIT_S
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                raise PeakError(f"the ceilings were not measured: {_said(folder)}")
            if time.monotonic() > give_up:
                raise PeakError(f"the ceilings were not measured within {LIMIT_S:.0f} s")
            time.sleep(0.05)
        if any(rank.returncode for rank in ranks):
            raise PeakError(f"the ceilings were not measured: {_said(folder)}")
    except OSError as error:
        raise PeakError(f"the ceilings were not measured: {error.strerror}") from error
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _command(setting: Setting, rank: int, folder: Path) -> Sequence[str]:
    words = [sys.executable, "-m", "perfdoc.peak.rank", "--rank", str(rank), "--ranks", str(setting.ranks)]
    return [*words, "--kind", setting.kind, "--meet", str(folder / "meet"), "--out", str(folder / "out")]


def _said(folder: Path) -> str:
    """The last line of the first rank that said something."""
    for file in sorted(folder.glob("said*")):
        lines = file.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
        if lines:
            return lines[-1].strip()
    return "its processes ended without a word"


def setting_here(ranks: int | None = None) -> Setting:
    """All GPUs, or so many of them; without a GPU one rank on the CPU, or so many at once.

    Raises PeakError without PyTorch, and where there are fewer GPUs.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise PeakError(
            "measuring needs torch, which is not installed. Install PyTorch for your machine first, then: "
            f"{install_command('train')}"
        ) from error
    if not torch.cuda.is_available():
        return Setting(kind="cpu", ranks=ranks or 1)
    devices = int(torch.cuda.device_count())
    if ranks is not None and ranks > devices:
        raise PeakError(f"--ranks {ranks}: PyTorch sees {devices} GPUs here.")
    return Setting(kind="cuda", ranks=ranks or devices)


def ranks_here(counted: int | None) -> int:
    """Ranks that torchrun starts on this machine. counted: as the words say; None where torchrun counts
    devices itself."""
    if counted is not None:
        return counted
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else os.cpu_count() or 1
