"""Every check of the trainer that needs a GPU, in one command that keeps to a budget of seconds.

    python3 benchmarks/one_gpu --wheels dist/one_gpu -o OUT [--budget 420] [--only base,probe] [--pretend]

For a machine with one H100 or H200, PyTorch 2.11 and Triton, no network and no nsys (`pack.py` makes the
folder of wheels). It looks at the device, a matmul and NCCL, then starts the runs of `runs.py` in their
order; one that no longer fits is a row that says so. OUT holds `table.md` and `results.json`, written again
after each run, `probe.json`, `log.txt` and the runs themselves in `runs0.tar` and on, as soon as each is
over. The table comes last on standard output. `compare.py OUT` says at home what was predicted and what was
measured.

--pretend tries all of it on a CPU. Exit code 0: what was started ended well; 1: something did not; 2: nothing
could be started.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from bundles import Bundles  # noqa: E402
from runs import RUNS, WINDOW, Run  # noqa: E402
from table import Result, read, table  # noqa: E402

BUDGET_S = 420
"""Of fifteen minutes, of which the machine takes up to two to start: a second call remains."""
RESERVE_S = 10
"""For the last table and bundle."""
GRACE_S = 5
LAST_WORD = 300
"""Characters of what a failed run said."""
LOOKS = {
    "driver": """
import subprocess
asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
print(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
""",
    "device": """
import torch
print("torch", torch.__version__, "CUDA", torch.version.cuda, torch.cuda.get_device_properties(0))
""",
    "matmul": """
import torch
x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("8192 x 8192 x 8192 gives", (x @ x).float().abs().mean().item())
""",
    "nccl": """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
t = torch.ones(8, device="cuda")
dist.all_reduce(t)
print("all-reduce over one rank gives", t.sum().item(), "NCCL", torch.cuda.nccl.version())
dist.destroy_process_group()
""",
}
"""Looked at first, each in a process of its own: what a later run fails of is then known."""


class Machine:
    """Where runs are carried out, and what is left of the budget."""

    def __init__(self, output: Path, work: Path, budget_s: float, *, on_cpu: bool) -> None:
        self.output, self.work, self.on_cpu = output, work, on_cpu
        self._end_s = time.monotonic() + budget_s
        self.head: list[str] = []
        self.results: list[Result] = []
        self.environment = dict(os.environ)
        self._bundles = Bundles(output)

    def left_s(self) -> float:
        """Seconds that runs may still take."""
        return self._end_s - RESERVE_S - time.monotonic()

    def say(self, message: str) -> None:
        """A line for people and for the log."""
        line = f"[{self.left_s():.0f} s left] {message}\n"
        sys.stderr.write(line)
        with (self.output / "log.txt").open("a") as log:
            log.write(line)

    def install(self, wheels: Path | None) -> None:
        """Unpack wheels into a folder of our own. Raises RuntimeError with pip's last line."""
        paths = [str(ROOT / "src")]
        if wheels is not None:
            site = self.work / "site"
            line = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
            line += ["--no-cache-dir", "--disable-pip-version-check", "--target", str(site)]
            done = self.start([*line, *map(str, sorted(wheels.glob("*.whl")))], self.work / "pip.log", 60)
            if done:
                raise RuntimeError(f"the wheels cannot be installed: {done}")
            paths.insert(0, str(site))
        paths += filter(None, [os.environ.get("PYTHONPATH")])
        self.environment["PYTHONPATH"] = os.pathsep.join(paths)
        state = {"PERFDOC_STATE": str(self.work / "state"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {**state, "OMP_NUM_THREADS": "1" if self.on_cpu else "8"}

    def start(
        self, line: Sequence[str], log: Path, limit_s: float, more: Mapping[str, str] | None = None
    ) -> str:
        """Run to its end or its limit, with `more` variables; why it failed, empty where it did not."""
        with log.open("w") as said:
            process = subprocess.Popen(
                line,
                stdout=said,
                stderr=said,
                cwd=self.work,
                env={**self.environment, **(more or {})},
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.terminate()  # perfdoc run passes it on to what has a session of its own
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                return f"did not end within {limit_s:.0f} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # its helpers, and it
                process.wait()
        return "" if code == 0 else _last_word(log.read_text(errors="replace"), code)

    def look(self) -> str:
        """Look at the device; why there is none to run on, empty where there is."""
        for name, code in LOOKS.items() if not self.on_cpu else ():
            log = self.work / f"{name}.log"
            problem = self.start([sys.executable, "-c", code], log, min(60, self.left_s()))
            said = log.read_text(errors="replace").strip().splitlines()
            self.head.append(f"{name}: {problem or (said[-1] if said else 'nothing said')}")
            self.say(self.head[-1])
            if problem and name in ("device", "matmul"):
                return problem
        return ""

    def carry_out(self, run: Run) -> None:
        """Start one run if it fits, and note what it left."""
        result = Result(name=run.name, state="not started", settings=list(run.settings))
        self.results.append(result)
        if run.needs_cuda and self.on_cpu:
            result.reason = "needs CUDA"
        elif self.left_s() < run.limit_s:
            result.reason = f"{self.left_s():.0f} s are left, it may take {run.limit_s} s"
        else:
            self._start(run, result)
        self.write()

    def _start(self, run: Run, result: Result) -> None:
        began, out, log = time.monotonic(), self.work / run.name, self.work / f"{run.name}.log"
        if run.name == "probe":
            line = [sys.executable, str(HERE / "probe.py"), str(self.output / "probe.json")]
        elif run.chain:
            line = [sys.executable, "-m", "perfdoc", "run", run.config, *run.words(on_cpu=self.on_cpu)]
            line += ["-o", str(out), "--profiler", "torch", "--no-peak"]
        else:
            line = [sys.executable, "-m", "perfdoc.trainer.main", "--config", run.config, "--out", str(out)]
            line += ["--profiler", "torch", *run.words(on_cpu=self.on_cpu)]
        if run.name != "probe":
            line += ["--profile-start", str(WINDOW[0]), "--profile-steps", str(WINDOW[1])]
        slow = {"PERFDOC_DATA_DELAY_MS": str(run.delay_ms), "PYTHONPATH": str(HERE.parent / "slow_data")}
        slow["PYTHONPATH"] += os.pathsep + self.environment["PYTHONPATH"]
        result.reason = self.start(line, log, run.limit_s, slow if run.delay_ms else {})
        result.state = "failed" if result.reason else "ok"
        result.seconds = time.monotonic() - began
        try:
            read(result, out)
        except (ValueError, KeyError, TypeError, OSError) as error:
            result.state = "failed"
            result.reason = f"what it left cannot be read: {type(error).__name__}: {error}"
        if kept := self._bundles.add(out, log):
            result.reason = f"{result.reason}; {kept}".lstrip("; ")
        shutil.rmtree(out, ignore_errors=True)
        self.say(f"{run.name}: {result.state} after {result.seconds:.0f} s {result.reason}")

    def write(self) -> None:
        """Table and figures of what was done so far: the machine may be taken away at any time."""
        document = {"head": self.head, "pretended": self.on_cpu, "runs": [asdict(r) for r in self.results]}
        (self.output / "results.json").write_text(json.dumps(document, indent=1) + "\n")
        (self.output / "table.md").write_text(table(self.head, self.results))


def _last_word(said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line.removeprefix("perfdoc: ") for line in lines if line.startswith("perfdoc: ")]
    why = next((line for line in ours if "rank" in line or " = " in line), lines[-1] if lines else "")
    return f"code {code}: {why}"[:LAST_WORD]


def main() -> int:
    """Look, run, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--wheels", type=Path, help="folder of pack.py; none: what is installed does")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds, from now to the table")
    parser.add_argument("--only", default="", help="names of runs with commas; all if not given")
    parser.add_argument("--pretend", action="store_true", help="on a CPU, with small models")
    given = parser.parse_args()
    chosen = [run for run in RUNS if not given.only or run.name in given.only.split(",")]
    if unknown := set(filter(None, given.only.split(","))) - {run.name for run in RUNS}:
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are {', '.join(run.name for run in RUNS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="one-gpu-") as work:
        machine = Machine(given.output.resolve(), Path(work), given.budget, on_cpu=given.pretend)
        problem = _no_device() if not given.pretend else ""
        try:
            if not problem:
                machine.install(None if given.wheels is None else given.wheels.resolve())
                problem = machine.look()
        except RuntimeError as error:
            problem = str(error)
        if problem:
            sys.stderr.write(f"one_gpu: {problem}\n")
            return 2
        for run in chosen:
            machine.carry_out(run)
        machine.write()
        sys.stdout.write(table(machine.head, machine.results))
    return int(any(result.state == "failed" for result in machine.results))


def _no_device() -> str:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if torch.cuda.is_available():
        return ""
    return f"torch {torch.__version__} sees no CUDA device (--pretend tries all of it on a CPU)"


if __name__ == "__main__":
    sys.exit(main())
