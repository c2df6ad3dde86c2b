"""One rank's process: `torchrun --nproc-per-node 2 -m perfdoc.trainer.main --config resolved.json`.

Nothing heavy is imported before the environment's knobs are set; and saving a checkpoint starts helper
processes that import this module again, hence the guard at the end.
"""

if __name__ == "__main__":
    from perfdoc.trainer import interrupted  # noqa: F401

import argparse
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from perfdoc.profiling.launch_folder import LaunchFolder
from perfdoc.profiling.nsys.command import is_attached
from perfdoc.trainer.config.environment import apply_environment
from perfdoc.trainer.config.profiling import window_of
from perfdoc.trainer.config.resolve import ResolvedConfig, resolve
from perfdoc.trainer.end import EXIT_BAD_INPUT

EXIT_LIMIT_S = 120
"""For what nsys does in a process that ends: a second, for a capture of minutes."""


def read_config(given: str, overrides: list[str]) -> ResolvedConfig:
    """A resolved configuration (`.json`, no overrides) or a name or `.yaml` path with overrides."""
    if not given.endswith(".json"):
        return resolve(given, overrides)
    if overrides:
        raise ValueError(
            f"{overrides[0]}: {given} is resolved already; overrides go with a name or a .yaml file"
        )
    try:
        return ResolvedConfig.from_json(Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{given}: {error.strerror or error}") from error


def main(arguments: list[str] | None = None) -> int:
    """Train as one rank of the group that torchrun started (or alone); returns the exit code."""
    if (launch := LaunchFolder.of()) is not None:
        launch.register(int(os.environ.get("RANK", "0")))
        threading.Thread(target=end_with_launcher, args=(launch,), daemon=True).start()
    parser = argparse.ArgumentParser(prog="perfdoc.trainer.main", description=__doc__)
    parser.add_argument(
        "--config", required=True, help="resolved.json, a configuration's name, or a .yaml file"
    )
    parser.add_argument("--out", type=Path, help="run directory; made if it is not there")
    parser.add_argument("--profiler", choices=("none", "torch", "nsys"), default="none")
    parser.add_argument("--profiler-reason", default="", help="why this profiler, for run.json")
    parser.add_argument("--profile-start", type=int, help="first profiled step")
    parser.add_argument("--profile-steps", type=int, help="number of profiled steps")
    parser.add_argument("--profile-ranks", type=int, nargs="*", help="profiled ranks; all if not given")
    parser.add_argument("--ceilings", type=Path, help="what this machine's devices were measured to reach")
    parser.add_argument("overrides", nargs="*", help="key=value")
    given = parser.parse_intermixed_args(arguments)
    try:
        resolved = read_config(given.config, given.overrides)
        window = window_of(
            resolved.config.profiling,
            start=given.profile_start,
            steps=given.profile_steps,
            ranks=frozenset(given.profile_ranks) if given.profile_ranks else None,
        )
        if given.profiler != "none" and given.out is None:
            raise ValueError("--profiler needs --out")
    except ValueError as error:
        sys.stderr.write(f"perfdoc: {error}\n")
        return EXIT_BAD_INPUT
    apply_environment(resolved.config.environment, os.environ)
    from perfdoc.trainer.rank import Profiling, run_rank

    reason = given.profiler_reason or ("asked for" if given.profiler != "none" else "not asked for")
    profiling = Profiling(profiler=given.profiler, reason=reason, window=window)
    return run_rank(resolved, given.out, profiling, given.ceilings)


def end_with_launcher(launch: LaunchFolder) -> None:
    """A rank whose launcher was killed would train on, and delete checkpoints that another run needs."""
    if launch.outlives("launcher"):
        if launch.is_first_to_say("launcher"):
            os.write(2, b"perfdoc: the launcher was killed, so its ranks end\n")
        for child in multiprocessing.active_children():  # the checkpoint's server process would live on
            child.kill()
        os.kill(os.getpid(), signal.SIGKILL)


def leave(code: int) -> NoReturn:
    """End the process; one that nsys does not let go ends by SIGALRM.

    Seen once in dozens of ends: the exit handler that nsys 2024.2.3 puts into the process waits for ever.
    """
    if is_attached():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_LIMIT_S)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
