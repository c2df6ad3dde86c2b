"""Every kind of finding, the sound setting next to it that gives none, and launchers of programs."""

from __future__ import annotations

import re

import pytest

from perfdoc.knobs.configuration import Configuration, Undecided, View
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.lint.finding import Finding
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.shell import shell_entries
from perfdoc.knobs.writing import as_written
from tests.conftest import ROOT


def test_the_page_lists_every_code() -> None:
    page = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    found = {
        code for file in (ROOT / "knobs").rglob("*.py") for code in re.findall(r'"(PL\d+)"', file.read_text())
    }
    assert set(re.findall(r"^\| (PL\d+) \|", page, re.M)) == found


def only(text: str, name: str = "x.args", dialect: Dialect | None = None) -> Finding:
    (finding,) = lint(text, name, dialect=dialect).findings
    return finding


BRIDGE: Dialect = "megatron_bridge"


@pytest.mark.parametrize(
    ("text", "dialect", "code", "severity", "instead"),
    [
        ("comm_overlap.bucket_sz=1000", BRIDGE, "PL101", "error", "comm_overlap.bucket_size=1000"),
        ("model.recompute_metod=null", BRIDGE, "PL101", "error", "model.recompute_method=null"),
        ("model.enable_cuda_graph=false", BRIDGE, "PL102", "warning", "model.cuda_graph_impl=none"),
        ("ddp.use_custom_fsdp=true", BRIDGE, "PL102", "warning", "dist.use_megatron_fsdp=true"),
        ("model.use_precision_aware_optimizer=false", BRIDGE, "PL103", "error",
         "optimizer.use_precision_aware_optimizer=false"),
        ("model.config.moe_enable_deepep=false", "nemo", None, None, None),
        ("dist.nccl_ub=false", BRIDGE, "PL103", "error", "ddp.nccl_ub=false"),
        ("ddp.bucket_size=4e7 comm_overlap.tp_comm_overlap=false", BRIDGE, "PL201", "error", None),
        ("model.cp_comm_type=ring", BRIDGE, "PL201", "error", ""),
        ("model.tensor_model_parallel_size=0", BRIDGE, "PL201", "error", ""),
        ("train.manual_gc_interval=5 train.manual_gc=false", BRIDGE, "PL302", "warning",
         "train.manual_gc=true"),
        ("train.manual_gc_interval=50 train.manual_gc=true", BRIDGE, None, None, None),
        ("NVTE_FLASH_ATTN=1", None, None, None, None),
        ("NCCL_NVLS_ENABEL=0", None, "PL101", "error", "NCCL_NVLS_ENABLE=0"),
        ("NCCL_DEBUG_FILE=log", None, None, None, None),
        ("NCCL_DEBUG=info", None, None, None, None),
    ],
)  # fmt: skip
def test_one_line(text: str, dialect: Dialect | None, code: str | None, severity: str, instead: str) -> None:
    findings = lint(text, "x.args", dialect=dialect).findings
    if code is None:
        assert findings == ()
        return
    found = [f for f in findings if f.code == code]
    assert [(f.code, f.severity) for f in found] == [(code, severity)]
    if instead is not None:
        assert found[0].instead == instead
        assert len(findings) == 1


MEGATRON = (
    "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun pretrain_gpt.py --num-layers 8 --num-attention-heads 8 --bf16 "
)


@pytest.mark.parametrize(
    ("flags", "code", "instead"),
    [
        ("--ddp-bucket-size 40000000", "PL302", "--overlap-grad-reduce"),
        ("--ddp-bucket-size 40000000 --overlap-grad-reduce --context-parallel-size 2", None, ""),
        ("--overlap-grad-reduce --overlap-param-gather --context-parallel-size 2", "PL301",
         "--use-distributed-optimizer"),
        ("--tensor-model-parallel-size 3", "PL301", ""),
        ("--tensor-model-parallel-size 4 --tensor-model-parallel-size 2", "PL304", ""),
        ("--tensor_model_parallel_size 4", "PL101", "--tensor-model-parallel-size 4"),
        ("--recompute-granularity full", "PL301", "--recompute-method uniform, --recompute-num-layers 1"),
        ("--moe-enable-deepep --moe-token-dispatcher-type flex --num-experts 8", "PL104",
         "moe_token_dispatcher_type=flex with moe_flex_dispatcher_backend=deepep"),
        ("--recompute-activations --recompute-modules mlp core_attn", None, ""),
        ("--recompute-modules mlp core_attn", "PL302", "--recompute-granularity selective"),
        ("--cpu-offloading", "PL105", ""),
        ("--apply-rope-fusion", "PL103", "leave out --no-rope-fusion"),
        ("--rotary-base 10000 --lr 3e-4 --exit-interval 5 --log-throughput", None, ""),
    ],
)  # fmt: skip
def test_flags_of_megatron_lm(flags: str, code: str | None, instead: str) -> None:
    findings = lint(MEGATRON + flags, "x.sh").findings
    assert [f.code for f in findings] == ([code] if code else [])
    if code:
        assert findings[0].instead == instead


def test_places_that_overwrite_one_another() -> None:
    yaml = "mixed_precision: bf16_mixed\nddp:\n  grad_reduce_in_fp32: false\n"
    finding = only(yaml, "x.yaml", BRIDGE)
    assert (finding.code, finding.severity, finding.line) == ("PL305", "warning", 3)
    assert finding.instead == "", "bf16_mixed is a name, without fields to set"
    fields = only(yaml.replace("bf16_mixed", "{bf16: true}"), "x.yaml", BRIDGE)
    assert fields.instead == "mixed_precision.grad_reduce_in_fp32=false"
    none = yaml.replace("bf16_mixed", "null")
    assert lint(none, "x.yaml", dialect=BRIDGE).findings == (), "nothing overwrites it"
    assert only("ddp.grad_reduce_in_fp32=false", dialect=BRIDGE).severity == "note", "if a recipe has one"
    both = "mixed_precision: {grad_reduce_in_fp32: false}\nddp: {grad_reduce_in_fp32: false}\n"
    assert lint(both, "x.yaml").findings == ()
    unsharded = (
        "comm_overlap: {tp_comm_overlap: false}\nddp: {bucket_size: 40000000, "
        "use_distributed_optimizer: false, "
    )
    assert lint(unsharded + "overlap_grad_reduce: true}\n", "x.yaml").findings == ()


def test_a_key_given_twice_in_one_mapping() -> None:
    finding = only("train:\n  manual_gc: true\n  manual_gc: false\n", "x.yaml", BRIDGE)
    assert (finding.code, finding.line) == ("PL304", 3)
    lists = "jobs:\n- train: {manual_gc: true}\n- train: {manual_gc: false}\n"
    assert lint(lists, "x.yaml", dialect=BRIDGE).findings == ()


def test_units_in_remarks() -> None:
    text = "ddp:\n  overlap_grad_reduce: true\n  bucket_size: 41943040  # 40 MiB\n"
    assert "PL202" in {f.code for f in lint(text, "x.yaml", dialect=BRIDGE).findings}
    right = text.replace("40 MiB", "80 M elements")
    assert "PL202" not in {f.code for f in lint(right, "x.yaml", dialect=BRIDGE).findings}


def test_variables_against_settings() -> None:
    script = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + MEGATRON + "--use-nccl-ub"
    (finding,) = lint(script, "x.sh").findings
    assert (finding.code, finding.knob, finding.instead) == (
        "PL301",
        "nccl_ub",
        "unset PYTORCH_CUDA_ALLOC_CONF",
    )
    backend = "export NVTE_FLASH_ATTN=0\n" + MEGATRON
    assert [f.code for f in lint(backend, "x.sh").findings] == ["PL301"]
    assert lint(backend + "--attention-backend fused", "x.sh").findings == ()


def test_dialects_are_detected_and_a_tie_abstains() -> None:
    for text, dialect in (
        ("comm_overlap.tp_comm_overlap=true", "megatron_bridge"),
        ("optim.config.main_grads_dtype=bf16", "nemo"),
        ("actor_rollout_ref.actor.megatron.context_parallel_size=2", "verl"),
        ("NCCL_DEBUG=INFO", "env"),
        (MEGATRON, "megatron_lm"),
        ("parallel.context_parallel_size=2", "perfdoc"),
    ):
        assert lint(text, "x.args").dialect == dialect
    bare = lint("recompute_granuality: full\ncontext_parallel_size: 2\n", "x.yaml")
    assert (bare.dialect, [f.code for f in bare.findings]) == (None, ["PL101"])
    tie = lint("PipelineOverlapCfg.num_sm=4", "x.args")
    assert (tie.dialect, tie.dialect_reason) == (None, "Megatron-Bridge or NeMo")


@pytest.mark.parametrize(
    ("knob", "value", "dialect", "written"),
    [
        ("apply_rope_fusion", False, "megatron_lm", "--no-rope-fusion"),
        ("apply_rope_fusion", True, "megatron_lm", "leave out --no-rope-fusion"),
        ("recompute_modules", ("core_attn", "mlp"), "megatron_lm", "--recompute-modules core_attn mlp"),
        ("grad_reduce_in_fp32", False, "megatron_lm", "--grad-reduce-in-bf16"),
        ("cpu_offloading", True, "megatron_lm", ""),
        ("cuda_graph_impl", "local", "megatron_core", "TransformerConfig(cuda_graph_impl='local')"),
        ("tp_comm_overlap", True, "nemo", "MegatronCommOverlapCallback(tp_comm_overlap=True)"),
        ("bucket_size", None, "megatron_bridge", "comm_overlap.bucket_size=null"),
        ("bucket_size", 8, "verl", "++actor_rollout_ref.actor.megatron.override_ddp_config.bucket_size=8"),
        ("nccl_debug", "WARN", "verl", "NCCL_DEBUG=WARN"),
        ("nccl_debug", None, "env", "unset NCCL_DEBUG"),
        ("bucket_size", 8, "perfdoc", "bucket_size=8"),
    ],
)
def test_settings_are_written_ready_to_paste(knob: str, value: Value, dialect: Dialect, written: str) -> None:
    assert as_written(knob, value, dialect) == written
    if written and not written.startswith(("leave out", "unset")):  # and read back, it says the same
        program = f"x --bf16 --num-layers 4 {written}" if dialect == "megatron_lm" else written
        report = lint(program, "x.py" if "(" in written else "x.sh", dialect=dialect)
        assert dict(report.values).get(knob) == value


@pytest.mark.parametrize("role", ["actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic"])
def test_a_degree_of_megatron_beside_its_section_in_verl(role: str) -> None:
    (found,) = lint(f"{role}.tensor_model_parallel_size=2\n", "x.args", dialect="verl").findings
    assert (found.code, found.instead) == ("PL103", f"{role}.megatron.tensor_model_parallel_size=2")


@pytest.mark.parametrize(
    "name",
    [
        *("rollout.tensor_model_parallel_size", "actor.fsdp_config.use_torch_compile", "ref.param_offload"),
        *("actor.use_remove_padding", "actor.megatron.use_remove_padding", "actor.num_layers"),
    ],
)
def test_sections_of_verl_that_may_have_a_name_are_let_be(name: str) -> None:
    assert lint(f"actor_rollout_ref.{name}=1\n", "x.args", dialect="verl").findings == ()


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
    assert {e.name: e.extra for e in shell_entries(text) if e.extra} == {"--seed": ("2",)}, "it takes one"
    assert {e.name: e.raw for e in shell_entries(text)} == {
        **{"--recompute-modules": ("core_attn", "mlp"), "--bf16": True, "--seed": "1"},
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
