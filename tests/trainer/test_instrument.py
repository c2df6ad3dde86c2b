"""Ranges change nothing that is trained, and nest, whatever the layout."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfdoc.profiling.logs import read_steps
from perfdoc.profiling.run_directory import RunDirectory
from tests.trainer.launch import need_megatron, said, start
from tests.trainer.test_parity import EXPERTS, OVERLAPS, PP2, SMALL, TP2, VPP2

pytestmark = pytest.mark.slow

PARTS = ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp")
FULL = ["recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"]
SELECTIVE = ["recompute_granularity=selective", "recompute_modules=[core_attn,mlp,layernorm]"]
CASES = {
    "dp2_overlaps": OVERLAPS,
    "tp2_sp_full_recompute": [*TP2, *FULL],
    "tp2_sp_selective_recompute": [*TP2, *SELECTIVE],
    "pp2_vpp2": [*PP2, *VPP2],
    "cp2": ["context_parallel_size=2"],
    "ep2_alltoall": [*EXPERTS, "expert_model_parallel_size=2", "moe_token_dispatcher_type=alltoall"],
}
STEPS = 4


def train(folder: Path, settings: list[str], *, profiled: bool) -> RunDirectory:
    """Two ranks, four steps, of which the second and the third are profiled or none is."""
    out = folder / ("on" if profiled else "off")
    arguments = ["-m", "perfdoc.trainer.main", "--config", "tiny", "--out", str(out), *SMALL, *settings]
    arguments += [f"data_cache={folder / 'data'}", f"train_iters={STEPS}", "attention_dropout=0.1"]
    if profiled:
        arguments += ["--profiler", "torch", "--profile-start", "2", "--profile-steps", "2"]
    codes = start(arguments, 2, folder / f"said-{out.name}").wait(120)
    assert codes == [0, 0], said(folder / f"said-{out.name}")
    return RunDirectory.open(out)


def annotations(path: Path) -> list[Any]:
    with gzip.open(path) as stream:
        events = json.load(stream)["traceEvents"]
    wanted = [e for e in events if e.get("cat") == "user_annotation"]
    return [e for e in wanted if e["name"].startswith(("perfdoc.", "megatron.core."))]


def crossings(rows: list[Any]) -> list[tuple[str, str]]:
    """Pairs of ranges of one thread of which neither holds the other."""
    found = []
    open_: list[Any] = []
    for row in sorted(rows, key=lambda r: (r["tid"], r["ts"], -r["dur"])):
        while open_ and (open_[-1]["tid"] != row["tid"] or open_[-1]["ts"] + open_[-1]["dur"] <= row["ts"]):
            open_.pop()
        if open_ and row["ts"] + row["dur"] > open_[-1]["ts"] + open_[-1]["dur"]:
            found.append((open_[-1]["name"], row["name"]))
        open_.append(row)
    return found


@pytest.mark.parametrize("name", CASES)
def test_ranges_nest_and_change_nothing(name: str, tmp_path: Path) -> None:
    need_megatron()
    off, on = (train(tmp_path, CASES[name], profiled=profiled) for profiled in (False, True))
    for rank in (0, 1):
        without, with_ranges = (list(read_steps(run.steps_path(rank))) for run in (off, on))
        assert [record.profiled for record in with_ranges] == [False, True, True, False]
        assert len(without) == STEPS
        for a, b in zip(without, with_ranges, strict=True):
            assert (a.loss, a.gradient_norm) == (b.loss, b.gradient_norm)  # To the last bit.
        rows = annotations(on.trace_path(rank, "json.gz"))
        assert crossings(rows) == []
        seen = Counter(re.sub(r"layer=\d+", "layer=N", row["name"]) for row in rows)
        layers = seen["perfdoc.backward layer=N"]
        micro_batches = seen["perfdoc.backward"]
        # Four layers over the stages' chunks, each micro-batch once.
        assert layers == micro_batches * 4 // (4 if "pp2" in name else 1)
        for part in PARTS:
            assert seen[f"perfdoc.backward layer=N module={part}"] == layers
            again = seen[f"perfdoc.forward layer=N module={part}"]
            assert again in (layers, 2 * layers)  # Twice where it is recomputed.
        if name == "tp2_sp_full_recompute":
            assert seen["perfdoc.forward layer=N"] == 2 * layers
        if rank == 0:
            assert seen["perfdoc.backward module=embedding"] == seen["perfdoc.forward module=embedding"] > 0
        if rank == 1:
            assert seen["perfdoc.backward module=output_layer"] > 0
            assert seen["perfdoc.backward module=final_layernorm"] > 0
    manifest = on.manifest()
    assert manifest.profile.ranges == "record_function"
    assert off.manifest().profile.ranges == ""
