"""Real jobs with a planted cause: does the analysis name it, and is the gain that it says the one measured?

python benchmarks/culprit_runs.py [--repeats 3] [--nice N] [--case WORDS] [--real]

Processes of gloo, each pinned to a core, train linear layers: pipelines in 1F1B, replicas, both. They are
captured with PyTorch's profiler. A capture of a CPU is no capture of a GPU: `culprit_capture.py` makes each
operation a row of a device; of names only PyTorch's marks of steps stay. A slow link is one of limited rate
between two network namespaces. Ill and cured runs take turns; how far equal ones lie apart is printed, and is
the most that a prediction may be off if a tenth of the gain is less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from culprit_capture import as_devices
from culprit_worker import STEPS, Job
from limited_network import mesh, missing

if TYPE_CHECKING:
    from perfdoc.results.diagnosis import Diagnosis

RATE = "30mbit"
"""Of a slow link, each way; the others are as fast as the machine."""
_TWO, _FOUR = Job(dp=2), Job(pp=2, dp=2)
_PIPE = Job(pp=2)


@dataclass(frozen=True)
class Case:
    """A job, its cure, and what must be named."""

    ill: Job
    kind: str
    """Of the first cause; empty: of the lone link nothing else is like it, and the verdict says transfer."""
    ranks: tuple[int, ...] = ()
    well: Job = _TWO


def _cases(plain: Job, slow: int, link: tuple[int, int]) -> dict[str, Case]:
    """On one layout. A slow rank or link with peers is named, a lone one is what it does."""
    name = "x".join(f"{w}{n}" for w, n in (("PP", plain.pp), ("DP", plain.dp)) if n > 1)
    sick = replace(plain, slow=slow, factor=2.0)
    found: dict[str, Case] = {}
    if plain.dp > 1:
        found["a slow rank"] = Case(sick, "slow_rank", (slow,), plain)
        later = replace(sick, slow_from=2 + STEPS // 2)
        found["slow from the middle on"] = Case(later, "slow_rank", (slow,), plain)
    if plain.pp > 1:
        of_stage = (slow,) if plain.dp == 1 else ()
        longer = replace(plain, layers=(2, 6))
        found["a stage with more layers"] = Case(longer, "long_stage", of_stage, plain)
    found["uneven sequence lengths"] = Case(replace(plain, uneven=True), "uneven_data", (), plain)
    has_peers = plain.pp > 1 and plain.dp > 1
    found["a slow link"] = Case(
        replace(plain, limited=(link,)), "slow_link" if has_peers else "", link if has_peers else (), plain
    )
    if plain.pp == 1:  # without a stage after it, its own lengths are those of a slow rank in some steps
        del found["uneven sequence lengths"]
    return {f"{name}, {what}": case for what, case in found.items()}


CASES = _cases(_TWO, 1, (0, 1)) | _cases(_PIPE, 1, (0, 1)) | _cases(_FOUR, 2, (0, 1))


@contextmanager
def _networks(job: Job) -> Iterator[list[tuple[list[str], dict[str, str]]]]:
    """By rank what starts a command in its network, and what gloo must know of it."""
    if not job.limited:
        yield [([], {"MASTER_ADDR": "127.0.0.1"})] * job.ranks
        return
    with mesh(job.ranks, {tuple(pair): RATE for pair in job.limited}) as net:
        at = {"MASTER_ADDR": net.addresses[0]}
        yield [(net.inside(r, []), at | {"GLOO_SOCKET_IFNAME": net.interfaces[r]}) for r in range(job.ranks)]


def run(job: Job, nice: int, port: int) -> tuple[float, list[Path]]:
    """(mean step in ms, as a prediction is of; captures)"""
    folder = Path(tempfile.mkdtemp(prefix="culprit"))
    given = json.dumps(asdict(job))
    started = []
    worker = str(Path(__file__).with_name("culprit_worker.py"))
    with _networks(job) as networks:
        for rank, (inside, at) in enumerate(networks):
            around = {"RANK": str(rank), "WORLD_SIZE": str(job.ranks), "MASTER_PORT": str(port), **at}
            line = [*inside, sys.executable, worker, given, str(folder), str(nice)]
            with (folder / f"said{rank}.txt").open("w") as said:
                started.append(subprocess.Popen(line, env={**os.environ, **around}, stdout=said, stderr=said))
        failed = [rank for rank, p in enumerate(started) if p.wait(timeout=120)]
    if failed:
        raise RuntimeError((folder / f"said{failed[0]}.txt").read_text()[-2000:])
    files = as_devices(folder, job.pp, job.dp)
    return statistics.mean(json.loads((folder / "took.json").read_text())) / 1e6, files


def diagnosed(files: list[Path]) -> Diagnosis:
    """What perfdoc says of the captures."""
    from perfdoc.analyzers.request import AnalysisRequest
    from perfdoc.diagnose.diagnosis import diagnose
    from perfdoc.diagnose.measuring import measure_all

    request = AnalysisRequest(captures=tuple(files), replay=False, jobs=1)
    return diagnose(measure_all(request).captures)


def is_named(case: Case, found: Diagnosis) -> bool:
    """Whether the first cause is the planted one; of a lone slow link: that none is, and transfer leads."""
    study = found.analyses.what_if
    first = next(iter(study.causes), None) if study is not None else None
    if not case.kind:
        return first is None and any(w in found.verdict for w in ("communication", "messages"))
    return first is not None and first.kind == case.kind and tuple(first.ranks) == case.ranks


def predicted_ms(found: Diagnosis) -> float | None:
    """What a step gains without the first cause (layers are moved, not left out), else by the first advice,
    an upper bound."""
    study = found.analyses.what_if
    first = next(iter(study.causes), None) if study is not None else None
    if study is not None and study.step_ns is not None and first is not None:
        return (study.step_ns - (first.even_ns or first.step_ns)) / 1e6
    gain = found.opportunities[0].gain if found.opportunities else None
    return None if gain is None else gain.high_ms


def main() -> int:
    """Run every case; 1 where one was not named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nice", type=int, default=0, help="of the ranks; negative needs root")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--real", action="store_true", help="layers take what multiplying takes: no sleeps")
    options = parser.parse_args()
    missed = 0
    port = random.randint(20_000, 30_000)
    no_link = missing()
    for name, case in CASES.items():
        if options.case not in name:
            continue
        if case.ill.limited and no_link:
            print(f"{name}: skipped, {no_link}")
            continue
        ill, well, predicted, named = [], [], [], []
        for _ in range(options.repeats):
            for job, of in ((case.ill, ill), (case.well, well)):
                port += 1
                wanted = replace(job, layer_ms=0.0) if options.real else job
                took, files = run(wanted, options.nice, port)
                of.append(took)
                if of is ill:
                    found = diagnosed(files)
                    named.append(is_named(case, found))
                    predicted += [p for p in [predicted_ms(found)] if p is not None]
                    print(f"  {files[0].parent.name}: {found.verdict[:160]}", flush=True)
        missed += not all(named)
        noise = max(max(v) - min(v) for v in (ill, well))
        gain = statistics.median(ill) - statistics.median(well)
        said = statistics.median(predicted) if predicted else 0.0
        load = os.getloadavg()[0]
        fits = abs(said - gain) <= max(0.1 * gain, noise)
        print(
            f"{name}: named in {sum(named)} of {len(named)}; step {statistics.median(ill):.0f} ms, cured "
            f"{statistics.median(well):.0f} ms: gain {gain:.0f} ms, predicted {said:.0f} ms"
            f"{'' if fits else ', OUTSIDE'}; equal runs differ by {noise:.0f} ms; load {load:.0f}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
