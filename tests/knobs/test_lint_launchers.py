"""Command lines of launchers: where a flag's values end, and what follows from a number of nodes."""

from __future__ import annotations

import pytest

from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.shell import shell_entries

ONE_QUEUE = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
TP4 = "--tensor-model-parallel-size 4 --num-attention-heads 8 --bf16"
LAYOUT = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4"


@pytest.mark.parametrize(
    ("text", "nodes", "each"),
    [
        (f"torchrun --nproc-per-node 8 pretrain_gpt.py {TP4}", None, 8),
        (f"torchrun --nnodes 2 --nproc_per_node 8 /opt/megatron/pretrain_gpt.py {TP4}", 2, 8),
        (f"torchrun --nproc-per-node 8 --nnodes 2 bash {TP4}", 2, 8),
        (f"torchrun --nproc-per-node auto ./train.py {TP4}", None, None),
        (f"torchrun --nproc-per-node=8 --nnodes 1:4 ./train {TP4}", None, 8),
        (f"NUM_NODES=2\ntorchrun --nproc-per-node 8 --nnodes $NUM_NODES pretrain_gpt.py {TP4}", 2, 8),
    ],
)
def test_the_script_after_a_flag_is_none_of_its_values(text: str, nodes: int | None, each: int) -> None:
    report = lint(ONE_QUEUE + text, "x.sh", dialect="megatron_lm")
    assert report.findings == ()
    assert (report.values.get("nnodes"), report.values.get("nproc_per_node")) == (nodes, each)
    assert report.values["tensor_model_parallel_size"] == 4


def test_lists_and_switches_end_at_the_script_and_files_are_values() -> None:
    text = (
        "run --recompute-modules core_attn mlp ./train.py --bf16 pretrain_gpt.py --seed 1 2 "
        "--tp-comm-overlap-cfg ./overlap.yaml --data-path 1 a 2 b run.py"
    )
    assert {e.name: e.raw for e in shell_entries(text)} == {
        **{"--recompute-modules": ("core_attn", "mlp"), "--bf16": True, "--seed": ("1", "2")},
        **{"--tp-comm-overlap-cfg": "./overlap.yaml", "--data-path": ("1", "a", "2", "b")},
    }


@pytest.mark.parametrize("unknown", ["nnodes", "nproc-per-node"])
def test_a_number_of_ranks_that_cannot_be_told_breaks_no_rule(unknown: str) -> None:
    known = {"nnodes": "1", "nproc-per-node": "8"}
    flags = " ".join(f"--{name}={value}" for name, value in (known | {unknown: "$ELSEWHERE"}).items())
    assert lint(f"{ONE_QUEUE}torchrun {flags} pretrain_gpt.py {LAYOUT}", "x.sh").findings == ()
    told = " ".join(f"--{name}={value}" for name, value in known.items())
    assert [
        f.code for f in lint(f"{ONE_QUEUE}torchrun {told} pretrain_gpt.py {LAYOUT}", "x.sh").findings
    ] == ["PL301"]


@pytest.mark.parametrize(
    ("unknown", "decided"),
    [(set(), 4), ({"num_layers"}, None), ({"num_layers_per_virtual_pipeline_stage"}, None)],
)
def test_stages_that_follow_from_what_cannot_be_told_are_not_the_default(
    unknown: set[str], decided: int | None
) -> None:
    """16 layers over 2 stages in chunks of 2 are 4 chunks; with either number unknown they are not one."""
    values = {"num_layers": 16, "pipeline_model_parallel_size": 2, "num_layers_per_virtual_pipeline_stage": 2}
    view = View(
        Configuration(
            values={k: v for k, v in values.items() if k not in unknown},
            unknown=frozenset(unknown),
            dialect="megatron_lm",
            complete=True,
        ),
        assume_defaults=True,
    )
    if decided is None:
        with pytest.raises(Undecided):
            _ = view.vpp
    else:
        assert view.vpp == decided


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "torchrun pretrain_gpt.py --bf16 --tensor-model-parallel-size {}"),
        ("x.sh", "torchrun pretrain_gpt.py --bf16 --moe-expert-capacity-factor {}"),
        ("x.yaml", "model:\n  tensor_model_parallel_size: {}\n"),
        ("x.json", '{{"model": {{"tensor_model_parallel_size": {}}}}}'),
    ],
)
def test_a_number_of_six_thousand_digits_is_said(name: str, text: str, sign: str) -> None:
    dialect = None if name == "x.sh" else "megatron_bridge"
    (finding,) = lint(text.format(sign + "9" * 6000), name, dialect=dialect).findings  # type: ignore[arg-type]
    assert (finding.code, finding.severity) == ("PL201", "error")
    assert len(finding.message) < 200
