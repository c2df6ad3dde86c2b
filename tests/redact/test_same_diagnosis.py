"""The diagnosis of a copy is the original's, but for words that were replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.redact.copying import redact
from perfdoc.results import to_json
from perfdoc.simulator.replay.unedited import replay_and_keep

QUICK = ("nsys/cuda_graph_a100.sqlite", "kineto/dlrm_8gpu_v100_rank0.pt.trace.json.gz")
LONG = (
    *("nsys/ddp_2gpu_rtx3090.sqlite", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
    *("nsys/gpt_small_full_step_a100.sqlite", "nsys/gpt_small_fwd_bwd_a100.sqlite"),
    *("nsys/host_bound_2gpu_h100.sqlite", "nsys/sp_2gpu_after.sqlite", "nsys/sp_2gpu_before.sqlite"),
    *("nsys/windows_rtx5000.sqlite", "kineto/cuda_event_sync_multi_stream.json.gz"),
    *("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", "kineto/dlrm_layernorm_a100_rank3of8.json.gz"),
    *("kineto/resnet50_num_workers_0_v100.pt.trace.json.gz", "kineto/vllm_moe_tp8_b200_rank0.json.gz"),
)


def diagnosed(path: Path) -> Any:
    capture = measure_capture(path, WindowRequest(), also=replay_and_keep)
    return msgspec.json.decode(to_json(diagnose([capture])))


def differences(one: Any, two: Any, at: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [d for key in one for d in differences(one[key], two[key], f"{at}.{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        return [d for i in range(len(one)) for d in differences(one[i], two[i], f"{at}[{i}]")]
    if one == two or (isinstance(two, str) and re.search("[Aa]non[a-z]", two)):
        return []
    return [f"{at}: {one!r:.80} is {two!r:.80}"]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in LONG)])
def test_the_diagnosis_of_a_copy(shared_traces: Path, tmp_path: Path, name: str) -> None:
    source = shared_traces / name
    redact([source], tmp_path / source.name, keep=None, force=False, verify=False)
    found = differences(diagnosed(source), diagnosed(tmp_path / source.name))
    of_the_file = re.compile(r"\.inputs")
    assert [d for d in found if not of_the_file.search(d.split(": ")[0])] == []
