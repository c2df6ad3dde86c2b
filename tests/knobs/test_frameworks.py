"""How files of several frameworks are read, beside what the corpus of public ones shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.arithmetic import computed
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.knobs.reading.file import read_entries, syntax_of
from perfdoc.knobs.settings import read_configuration


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
    [("[a\nb = 1", "line 1"), ("a = " + "[" * 5_000, "no TOML"), ("a = " + "9" * 6_000, "no TOML")],
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
        (TWO_ARRAYS.rpartition("torchrun")[0], ["PL301", "PL301"]),
    ],
)
def test_flags_count_where_a_command_takes_them(text: str, codes: list[str]) -> None:
    """A file that runs nothing is taken by another one, so that all of it counts."""
    findings = lint(ONE + text, "x.sh").findings
    assert [f.code for f in findings] == codes
    assert {f.line for f in findings} == {4}, "where the flag stands"


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
    assert [f.code for f in lint(together, "x.py", dialect="megatron_bridge").findings] == ["PL301"]
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
