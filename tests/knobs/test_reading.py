"""Files of every kind to settings, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.entry import MAX_BYTES, NotAConfigurationError
from perfdoc.knobs.reading.file import read_entries, read_text
from perfdoc.knobs.settings import read_configuration

SCRIPT = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1   # for tensor parallelism
GPUS_PER_NODE=8
TP=${TP:-4}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 2
)
GPT_ARGS="
    --num-layers 24 \\
    --bf16
"
NCCL_DEBUG=INFO torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_ARGS} \\
    --tensor-model-parallel-size $TP --no-rope-fusion \\
    --pipeline-model-parallel-size=2 --recompute-modules core_attn mlp --recompute-granularity selective
"""


def test_a_script_with_arrays_continued_lines_and_variables() -> None:
    found = {e.name: (e.raw, e.line) for e in read_entries(SCRIPT, "run.sh")}
    assert found["CUDA_DEVICE_MAX_CONNECTIONS"] == ("1", 2)
    assert found["--nproc_per_node"] == ("8", 6), "a variable that is set once is known"
    assert found["--num-layers"] == ("24", 10)
    assert found["NCCL_DEBUG"] == ("INFO", 13)
    assert found["--recompute-modules"] == (("core_attn", "mlp"), 15)
    report = lint(SCRIPT, "run.sh")
    assert (report.dialect, report.findings) == ("megatron_lm", ())
    assert report.values == {
        **{"cuda_device_max_connections": 1, "nproc_per_node": 8, "nnodes": 2, "num_layers": 24},
        **{"bf16": True, "nccl_debug": "INFO", "apply_rope_fusion": False},
        **{"pipeline_model_parallel_size": 2, "recompute_modules": ("core_attn", "mlp")},
        **{"recompute_granularity": "selective"},
    }, "TP may come from outside, so it is not known"


def test_nested_and_dotted_yaml_and_overrides_say_the_same() -> None:
    strategy = "trainer.strategy"
    nested = (
        "recipe:\n  trainer:\n    strategy:\n      tensor_model_parallel_size: 8\n"
        "      ddp: {bucket_size: 40000000}\n"
    )
    dotted = f"{strategy}.tensor_model_parallel_size: 8\n{strategy}.ddp.bucket_size: 40000000\n"
    first, second = f"+{strategy}.tensor_model_parallel_size=8", f"recipe.{strategy}.ddp.bucket_size=40000000"
    words = f"{first}\n{second} # elements\n"
    listed = f"overrides:\n  - {first}\n  - {second}\n"
    for name, text in (("a.yaml", nested), ("a.yaml", dotted), ("a.txt", words), ("a.yaml", listed)):
        report = lint(text, name)
        assert report.dialect == "nemo", text
        assert report.values == {"tensor_model_parallel_size": 8, "bucket_size": 40_000_000}, text


def test_roles_of_verl_do_not_mix_and_rollout_is_somebody_elses() -> None:
    text = """
actor_rollout_ref:
  actor:
    megatron: {tensor_model_parallel_size: 1, sequence_parallel: false}
  ref:
    megatron: {tensor_model_parallel_size: 2, sequence_parallel: true}
  rollout: {tensor_model_parallel_size: 16}
"""
    report = lint(text, "verl.yaml")
    assert (report.dialect, report.findings) == ("verl", ())
    assert report.values["actor_rollout_ref.ref:tensor_model_parallel_size"] == 2
    assert report.values["actor_rollout_ref.actor:rollout_tensor_parallel_size"] == 16
    assert read_entries(text, "verl.yaml")[-1].name.endswith("rollout.tensor_model_parallel_size")


def test_variables_in_a_dockerfile_a_manifest_and_python() -> None:
    docker = "FROM pytorch\nENV NCCL_NVLS_ENABLE=0\nENV NCCL_DEBUG INFO\n"
    pod = "spec:\n  env:\n  - name: NCCL_NVLS_ENABLE\n    value: '0'\n  - {name: NCCL_DEBUG, value: INFO}\n"
    code = 'import os\nos.environ["NCCL_NVLS_ENABLE"] = "0"\nos.environ["NCCL_DEBUG"] = "INFO"\n'
    for name, text in (("Dockerfile", docker), ("pod.yaml", pod), ("x.py", code)):
        assert lint(text, name).values == {"nccl_nvls_enable": 0, "nccl_debug": "INFO"}, text


def test_python_calls_and_assignments_are_parsed_and_never_run(tmp_path: Path) -> None:
    text = f"""
from megatron.core.transformer import TransformerConfig
open({str(tmp_path / "ran")!r}, "w")
config = TransformerConfig(num_layers=4, recompute_granularity="full", recompute_method=METHOD)
recipe.trainer.strategy.context_parallel_size = 2
"""
    values = lint(text, "x.py", dialect="megatron_core").values
    assert values == {"num_layers": 4, "recompute_granularity": "full"}
    assert not (tmp_path / "ran").exists()


def test_a_run_of_ours_reads_from_its_manifest(tmp_path: Path) -> None:
    config = {
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
        "moe_hybridep_num_sms": 20,
        "fp8": None,
    }
    resolved = {name: {"value": value, "origin": "default"} for name, value in config.items()}
    manifest = {"schema_version": 1, "perfdoc_version": "0", "config": resolved, "model": {"num_layers": 3}}
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    text, path = read_text(tmp_path)
    report = lint(text, str(path))
    assert (report.dialect, report.findings) == ("perfdoc", ()), "nobody set what has no effect there"
    assert report.values == config
    job = read_configuration(tmp_path)
    assert (dict(job.values), job.complete, job.dialect) == (config, True, "perfdoc")
    sections = "parallel: {tensor_model_parallel_size: 2}\nkernels: {apply_rope_fusion: false}\n"
    assert lint(sections, "tiny.yaml").dialect == "perfdoc"


LAUGHS = "a0: &a0 [x, y]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("x.yaml", "a: !!python/object/apply:os.system ['touch /tmp/x']", "line 1: has the YAML tag"),
        ("x.yaml", "[" * 100_000, "Give"),  # ours or the library's words
        ("x.yaml", "a: " + "{a: " * 100_000, "Give"),
        ("x.yaml", LAUGHS, "more than 20000 settings"),
        ("x.yaml", "a: &a [*a]", "holds itself"),
        ("x.yaml", "a: [1\nb: 2", "line 2"),
        ("x.yaml", "just words\n", "no settings"),
        ("x.py", "(" * 5_000, "nested"),
        ("x.py", "x = (1 +", "no Python"),
        ("x.py", "-" * 500_000 + "1", "no Python"),
        ("x.sh", "a.b=1 " * 30_000, "more than 20000"),
        ("x.sh", "", "no settings"),
        ("x.sh", "$((" * 100_000, "no settings"),
        ("x.json", '{"a": ', "line 2"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(name: str, text: str, what: str) -> None:
    with pytest.raises(NotAConfigurationError, match=r"^[^\n]+$") as refused:
        read_entries(text, name)
    assert what in str(refused.value)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    for number, (data, what) in enumerate(
        [(b"\x80\x81", "UTF-8"), (b"a: 1\0", "no text"), (b"#" * (MAX_BYTES + 1), "larger")]
    ):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(NotAConfigurationError, match=what):
            read_text(path)
    for missing in (tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(NotAConfigurationError, match=r"cannot be read|no regular file"):
            read_text(missing)
    with pytest.raises(NotAConfigurationError, match=r"^holds no run\.json"):
        read_text(tmp_path)
