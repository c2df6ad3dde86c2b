"""The first choice of `perfdoc tune` against the true times of all configurations, by the planted engine.

    python benchmarks/search_proof.py [--only "8 ranks"]

Each configuration of three jobs is laid by the engine of tests/planted, which shares no code with the job's
model; tune sees the captures of one, of all ranks (of 64, those that stand for all) and of rank 0 alone. The
second job is captured in other configurations as well. Regret: the true step of the first choice over that of
the best, less 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfdoc.simulator.job.settings import JobSettings
from tests.tune.proof import OTHERWISE, PROOFS, outcome, standing_for_all


def words(settings: JobSettings) -> str:
    """The layout, as `--set` takes it."""
    return " ".join(f"{name}={getattr(settings, name)}" for name in ("tp", "pp", "dp", "vpp", "mbs"))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="part of a job's name")
    given = parser.parse_args()
    jobs = {**PROOFS, **{f"16 ranks, captured with {name}": proof for name, proof in OTHERWISE.items()}}
    print("| job | configurations | captured | best | from | first choice | predicted | true | regret |")
    print("|---" * 9 + "|")
    for name, proof in jobs.items():
        if given.only not in name:
            continue
        for ranks, some in (("all ranks", standing_for_all(proof)), ("rank 0", [0])):
            with tempfile.TemporaryDirectory() as folder:
                o = outcome(proof, some, Path(folder))
            row = (
                name,
                f"{o.configurations}, {o.near} within 2 %",
                f"{o.unchanged_ns / 1e6:,.1f} ms",
                f"`{words(o.best)}` {o.best_ns / 1e6:,.1f} ms",
                ranks,
                f"`{words(o.chosen)}`",
                f"{o.predicted_ns / 1e6:,.1f} ms",
                f"{o.chosen_ns / 1e6:,.1f} ms",
                f"{o.regret_frac:.2%}",
            )
            print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
