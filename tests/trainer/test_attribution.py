"""Communication of a real run goes to the right dimension, by the groups that the manifest lists."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.base.intervals import union
from perfdoc.profiling.logs import CollectiveRecord, read_lines
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import plan
from tests.trainer.launch import need_megatron, said, start
from tests.trainer.test_parity import PP2, SMALL, TP2, VPP2

pytestmark = pytest.mark.slow

BAR = 0.95
CASES = {
    "tp2_pp2_dp2": (8, [*TP2, *PP2]),
    # One direction of the pipeline goes over the default group here.
    "pp2_vpp2": (2, [*PP2, *VPP2]),
}


def train(folder: Path, ranks: int, settings: list[str]) -> RunDirectory:
    arguments = ["-m", "perfdoc.trainer.main", "--config", "tiny", "--out", str(folder / "run"), *SMALL]
    arguments += [*settings, f"data_cache={folder / 'data'}", "train_iters=4"]
    arguments += ["--profiler", "torch", "--profile-start", "2", "--profile-steps", "2"]
    codes = start(arguments, ranks, folder / "said").wait(240)
    assert not any(codes), said(folder / "said")
    return RunDirectory.open(folder / "run")


def analysed(run: RunDirectory) -> Any:
    """What `perfdoc analyze` says of the run."""
    line = [sys.executable, "-m", "perfdoc", "analyze", str(run.path), "-o", str(run.path / "report")]
    done = subprocess.run([*line, "--json", "-"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads((run.path / "report" / "diagnosis.json").read_text())


def truth(
    record: CollectiveRecord, rank: int, members: dict[str, set[int]], groups: dict[str, dict[str, list[int]]]
) -> str:
    """The dimension of a collective, from who takes part in it and not from what its group is called.

    members: the ranks of this rank's group along each dimension, as the layout plans them.
    groups: ranks by name, as PyTorch numbers this rank's groups, from the manifest.
    """
    if record.operation in ("send", "recv"):
        assert record.peer in members["pp"] - {rank}
        assert record.peer not in members["dp"] | members["tp"]
        return "pp"
    ranks = set(groups[record.group]["ranks"])
    # In these layouts a group of several ranks along one dimension has no twin along another; the last and
    # the first stage share the embedding's gradient, which is no message of the pipeline.
    along = [dimension for dimension, own in members.items() if len(ranks) > 1 and own == ranks]
    if along and along[0] in ("tp", "dp"):
        return along[0]
    return "nobody" if len(ranks) == 1 else "other"


@pytest.mark.parametrize("name", CASES)
def test_communication_goes_to_its_dimension(name: str, tmp_path: Path) -> None:
    need_megatron()
    ranks, settings = CASES[name]
    run = train(tmp_path, ranks, settings)
    planned = plan(resolve("tiny", [*SMALL, *settings]).config, ranks, "cpu").groups()
    manifest = run.manifest()
    right = total = 0
    for shown in analysed(run)["ranks"]:
        rank = shown["rank"]
        members = {d: next(set(g) for g in planned[d] if rank in g) for d in ("tp", "dp", "pp")}
        groups = {g.description: {"ranks": list(g.ranks)} for g in manifest.layout.groups if rank in g.ranks}
        calls: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for record in read_lines(run.collectives_path(rank), CollectiveRecord):
            whose = truth(record, rank, members, groups)
            # Not: a send that nobody waits for; a group of one rank, in which nothing moves between ranks.
            if record.done_ns is not None and whose != "nobody":
                kind = "send_recv" if record.operation in ("send", "recv") else record.operation
                key = whose, kind
                calls[key].append((record.issue_ns, record.done_ns))
        found: Counter[tuple[str, str]] = Counter()
        for row in shown["communication"]:
            found[row["dimension"], row["collective"]] += row["total_ns"]
        assert ("pp", "send_recv") in calls
        assert not [key for key in found if key[0] == "unknown"]
        for key, spans in calls.items():
            expected_ns = union(*np.array(spans, np.int64).T).total_ns
            right += min(found[key], expected_ns)
            total += expected_ns
    print(f"{name}: {right / total:.2%} of {total / 1e6:.0f} ms")  # noqa: T201 - for -rP
    assert right >= BAR * total
