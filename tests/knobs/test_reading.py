"""Files of every kind and framework to settings, and files that are none or made to take hours."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.entry import MAX_BYTES, NotAConfigurationError
from perfdoc.knobs.reading.file import read_entries, read_text, syntax_of, takes_more
from perfdoc.knobs.reading.python_text import python_entries
from perfdoc.knobs.reading.shell_variables import computed
from perfdoc.knobs.settings import MAX_SCOPES, read_configuration
from perfdoc.knobs.values import OPAQUE

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
        **{"recompute_granularity": "selective", "tensor_model_parallel_size": 4},
    }, "TP has its default where the script is run as it is"


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


def test_the_words_that_a_dockerfile_lists_are_read_as_json() -> None:
    text = (
        'CMD ["python", "train.py", "--pipeline-model-parallel-layout=Et*3|t,L", \\\n'
        '  "--a", "[1, \\"x\\"]", "--b=o\\\nne","-c" ]\nENTRYPOINT ["-d", no JSON]\nENV NCCL_DEBUG=INFO\n'
    )
    found = {e.name: (e.raw, e.line) for e in read_entries(text, "Dockerfile")}
    assert found["--pipeline-model-parallel-layout"] == ("Et*3|t,L", 1)
    assert (found["--a"], found["--b"]) == (('[1, "x"]', 2), ("one", 2))
    assert found["NCCL_DEBUG"] == ("INFO", 5)


def test_the_words_of_a_function_are_the_scripts_own_where_it_calls_it() -> None:
    script = 'function go () {\n  torchrun x.py "$@"\n}\n%s\nlast() {\n  echo\n'
    assert not takes_more(script % "go --bf16", "run.sh")
    assert takes_more(script % "gone --bf16", "run.sh")
    assert takes_more(script % "go --bf16\ntorchrun x.py $@", "run.sh")
    many = "".join(f'f{n}() {{\n  torchrun x.py "$@"\n}}\n' for n in range(400))
    started = time.process_time()
    assert takes_more(many, "run.sh")
    takes_more("f() {\n" * 50_000, "run.sh")
    assert time.process_time() - started < 3


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
        ("x.py", "x = (1 +", "line 1: '(' was never closed: no Python"),
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


def test_toml_has_a_line_for_every_key() -> None:
    text = (
        '# x\n[training]\nseq_len = 4_096\n"local_batch_size" = 2\n[a.b]\nc = [\n  1,\n  2,\n]\nd.e = true\n'
    )
    assert [(e.name, e.raw, e.line) for e in read_entries(text, "x.toml")] == [
        ("training.seq_len", "4096", 3),
        ("training.local_batch_size", "2", 4),
        ("a.b.c", ("1", "2"), 6),
        ("a.b.d.e", "True", 10),
    ]
    assert syntax_of(text) == "toml", "without the file's ending too"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[a\nb = 1", "line 1: Expected '.*: no TOML"),
        ("a = " + "[" * 5_000, "no TOML"),
        ("a = " + "9" * 6_000, "no TOML"),
    ],
)
def test_what_is_no_toml_is_refused(text: str, what: str) -> None:
    with pytest.raises(NotAConfigurationError, match=what):
        read_entries(text, "x.toml")


DUMP = """12:00:01 0: ------------------------ arguments ------------------------
0:   tensor_model_parallel_size ...................... 8
0:   num_attention_heads ............................. 32
0:   bf16 ............................................ True
0:   gradient_accumulation_fusion .................... False
0:   a_name_so_long_that_there_is_no_room_for_leaders . 1
0: -------------------- end of arguments ---------------------
iteration 1/10 | elapsed ... 3 ms
"""


def test_a_list_of_arguments_in_a_log_is_a_whole_configuration(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(DUMP)
    found = read_configuration(tmp_path / "train.log")
    assert (found.dialect, found.complete) == ("megatron_lm", True)
    assert found.values == {
        **{"tensor_model_parallel_size": 8, "num_attention_heads": 32, "bf16": True},
        "gradient_accumulation_fusion": False,
    }
    again = DUMP + DUMP.replace("... 8", "... 3")
    assert [(f.code, f.line) for f in lint(again, "train.log").findings] == [("PL301", 10)], (
        "the last one counts"
    )
    assert lint(DUMP, "train.log").findings == (), "a running job had its variables"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("$((1024 * 2))", "2048"),
        ("$(((a + 2) * ${b} / 4))", "9"),
        ("$((10 - 2 - 3))", "5"),
        ("$((1 / 0))", None),
        ("$((c + 1))", None),
        ("$((a +))", None),
        ("$((" + "(" * 90 + "1" + ")" * 90 + "))", "1"),
        ("$((2 ** 3))", None),
    ],
)
def test_sums_of_a_script(value: str, number: str | None) -> None:
    """(10 + 2) * 3 / 4 = 9. Nothing is run."""
    assert computed(value, {"a": "10", "b": "3", "c": None}) == (number or value)


ONE = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
TWO_ARRAYS = """A=(--tensor-model-parallel-size 2 --bf16)
B=(
  --overlap-param-gather
)
torchrun pretrain_gpt.py ${A[@]} --num-layers 4 %s
"""


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (TWO_ARRAYS % "", ["PL306"]),
        (TWO_ARRAYS % "${B[@]}", ["PL301", "PL301"]),
        (TWO_ARRAYS % '"${B[*]}"', ["PL301", "PL301"]),
        ((TWO_ARRAYS % "").replace("torchrun pretrain_gpt.py", "eval torchrun x.py"), ["PL301", "PL301"]),
        (TWO_ARRAYS.rpartition("torchrun")[0], []),
    ],
)
def test_flags_count_where_a_command_takes_them(text: str, codes: list[str]) -> None:
    """A file that runs nothing is taken by another one: all of it counts, and the rest may be set there."""
    findings = lint(ONE + text, "x.sh").findings
    assert [f.code for f in findings] == codes
    assert {f.line for f in findings} <= {4}, "where the flag stands"


def test_one_queue_is_a_note_since_no_file_names_the_gpu() -> None:
    run = "torchrun pretrain_gpt.py --num-layers 4 --bf16 "
    for degree in ("--tensor-model-parallel-size 8", "--context-parallel-size 2"):
        severities = [
            [(f.severity, f.knob) for f in lint(before + run + degree, "x.sh").findings]
            for before in ("", ONE, ONE.replace("=1", "=32"), ONE.replace("=1", "=${N:-1}"))
        ]
        knob = "tensor_model_parallel_size" if "tensor" in degree else "context_parallel_size"
        assert severities == [[("note", knob)], [], [("note", knob)], []]
    sharded = run + "--tensor-model-parallel-size 8 --use-megatron-fsdp"
    assert [f for f in lint(sharded, "x.sh").findings if "queue" in f.why] == [], "FSDP wants several queues"


def test_recipes_of_one_program_do_not_mix() -> None:
    one, other = "    cfg.model.tensor_model_parallel_size = 1\n", "    cfg.model.sequence_parallel = True\n"
    apart = f"def a():\n{one}\ndef b():\n{other}"
    assert lint(apart, "x.py", dialect="megatron_bridge").findings == ()
    together = f"def a():\n{one}{other}"
    assert [f.code for f in lint(together, "x.py", dialect="megatron_bridge").findings] == ["PL302"]
    shared = f"cfg.model.tensor_model_parallel_size = 1\ndef b():\n{other}"
    assert [f.line for f in lint(shared, "x.py", dialect="megatron_bridge").findings] == [3]


def test_values_that_the_program_fills_in_are_unknown() -> None:
    text = (
        '{"train_batch_size": "auto", "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto"}}'
    )
    report = lint(text, "x.json")
    assert (report.dialect, report.values, report.findings) == ("deepspeed", {}, ())
    rest = lint("[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n", "x.toml")
    assert rest.values == {"tensor_model_parallel_size": 2}


SPACES = " " * 100_000
DIGITS = "0x" + "f" * 5_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.log", DUMP.replace("... 8", f"... 8{SPACES}9{SPACES}")),
        ("x.log", DUMP.replace("arguments -", f"arguments -\na ... b{SPACES}\n-")),
        ("x.toml", f'a = """\n{SPACES}\n"""\n'),
        ("x.toml", f'a = """\n[{SPACES}\n[ b{SPACES}c\n"""\n'),
    ],
)
def test_a_line_of_spaces_takes_no_longer_than_a_line_of_words(name: str, text: str) -> None:
    """Quadratic time on 100,000 spaces would be minutes."""
    started = time.process_time()
    read_entries(text, name)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.toml", f"[training]\nseq_len = {DIGITS}\nbatches = [1, {DIGITS}]\n"),
        ("x.py", f"c = TransformerConfig(num_layers={DIGITS}, hidden_size=-{DIGITS})\n"),
        ("x.sh", f"A={'9' * 4_000}\nB=$((A * A))\ntorchrun x.py --num-layers $B --hidden-size $((A * A))\n"),
    ],
)
def test_a_number_without_end_is_no_value(name: str, text: str) -> None:
    report = lint(text, name)
    assert "num_layers" not in report.values
    assert "seq_length" not in report.values


def test_a_sum_has_numbers_that_a_setting_may_have() -> None:
    assert computed("$((a * a))", {"a": "9" * 9}) == str(int("9" * 9) ** 2)
    for number in ("9" * 10, "9" * 19):
        assert computed("$((a * a))", {"a": number}) == "$((a * a))"


def functions(count: int) -> str:
    return "".join(f"def f{n}():\n    cfg.model.num_layers = {n + 1}\n" for n in range(count))


def test_functions_of_a_program_are_counted() -> None:
    shared = "cfg.model.hidden_size = 8\n"
    report = lint(shared + functions(3), "x.py", dialect="megatron_bridge")
    assert report.values == {
        **{f"f{n}:num_layers": n + 1 for n in range(3)},
        **{f"f{n}:hidden_size": 8 for n in range(3)},
    }
    started = time.process_time()
    with pytest.raises(NotAConfigurationError, match=f"more than {MAX_SCOPES} functions"):
        lint(functions(4_000), "x.py", dialect="megatron_bridge")
    assert time.process_time() - started < 3


@pytest.mark.parametrize("path", ["'s3://b/x'", "http://foo.com", '"a//b"', "b//c", "//server/x"])
def test_signs_of_a_remark_in_a_value_are_no_remark(path: str) -> None:
    text = f"{{data: {path}, num_layers: 4}}"
    assert [(e.name, e.raw) for e in read_entries(text, "x.yaml")] == [
        ("data", path.strip("'\"")),
        ("num_layers", "4"),
    ]


def test_remarks_of_json_are_no_words() -> None:
    text = '{ // it\'s\n "a": 1, /* "b": 2,\n */ "c": "d//e" // f\n}'
    assert [(e.name, e.raw, e.line) for e in read_entries(text, "x.json")] == [
        ("a", "1", 2),
        ("c", "d//e", 3),
    ]


@pytest.mark.parametrize("text", ["{" + "/*" * 60_000, '{"' + '\\"' * 60_000])
def test_what_is_not_closed_is_read_once(text: str) -> None:
    """Quadratic time would be minutes."""
    started = time.process_time()
    with pytest.raises(NotAConfigurationError):
        read_entries(text, "x.json")
    assert time.process_time() - started < 1


TWO_BRANCHES = """%s
    cfg.model.tensor_model_parallel_size = 2
else:
    cfg.model.pipeline_model_parallel_size = 4
cfg.model.num_layers = 8
"""
TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 4}


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("DEBUG = True\nif DEBUG:", TENSOR),
        ("DEBUG = 0\nif DEBUG:", PIPELINE),
        ("if __name__ == '__main__':", TENSOR),
        ("if __name__ != '__main__':", {}),
        ("if " + " + ".join(["a"] * 900) + ":", {}),
    ],
)
def test_a_branch_counts_where_it_is_known_to_be_taken(condition: str, values: dict[str, int]) -> None:
    report = lint(TWO_BRANCHES % condition, "x.py", dialect="megatron_bridge")
    assert report.values == {**values, "num_layers": 8}


@pytest.mark.parametrize("value", ["-" * 1_500 + "1", "x" + "['a']" * 1_500])
def test_a_deep_expression_is_no_error(value: str) -> None:
    text = f"x{'[0]' * 900} = 1\nos.environ['NCCL_DEBUG'] = 'INFO'\ncfg.model.num_layers = {value}\n"
    assert lint(text, "x.py", dialect="megatron_bridge").values == {"nccl_debug": "INFO"}


@pytest.mark.parametrize(
    ("line", "is_read"),
    [
        ("print(%s)", False),
        ("self.logger.info('Try: ' + %s)", False),
        ("warnings.warn(%s)", False),
        ("raise ValueError(f'{x}' + %s)", False),
        ("p = argparse.ArgumentParser(epilog=%s)", False),
        ("p.add_argument('--x', help=%s)", False),
        ("USAGE: str = %s", False),
        ("example_of_use = [%s]", False),
        ("login.run(%s)", True),
        ("docs.run(%s)", True),
        ("if os.system(%s) != 0: pass", True),
        ("docker_command = %s", True),
        ("subprocess.run(%s, shell=True)", True),
    ],
)
def test_a_command_that_is_shown_to_people_is_not_run(line: str, is_read: bool) -> None:
    command = '"python pretrain_gpt.py --tensor-model-parallel-size 3 --num-layers 4 --bf16"'
    entries = read_entries(f"NAME = 1\n{line % command}\n", "x.py")
    assert ("--num-layers" in {e.name for e in entries}) == is_read


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("int(RATIO)", "4"),
        ("int(-4.7)", "-4"),
        ("int(4096.0)", "4096"),
        ("int('12')", "12"),
        ("int('0x10', 16)", None),
        ("int('0x10', base=16)", None),
        ("int(RATIO / 2)", None),
        ("int(1e400)", None),
        ("int('nan')", None),
        ("int(None)", None),
        ("str(4096)", "4096"),
        ("f'{HIDDEN}'", "4096"),
        ("f'{HIDDEN:,}'", None),
        ("f'{HIDDEN:06d}'", None),
        ("f'{HIDDEN!r}'", None),
    ],
)
def test_a_number_that_a_program_cuts_or_formats(value: str, written: str | None) -> None:
    text = f"RATIO = 4.7\nHIDDEN = 4096\nc = TransformerConfig(hidden_size={value})\n"
    raw = next(e.raw for e in python_entries(text) if e.name.endswith("hidden_size"))
    assert raw == (OPAQUE if written is None else written)
    wrong = [f for f in lint(text, "x.py").findings if f.code == "PL201"]
    assert bool(wrong) == (written == "-4")  # the only one that is below 1
