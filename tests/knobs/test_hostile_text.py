"""Texts that are made to take hours, or to end in an error of perfdoc's own."""

from __future__ import annotations

import time

import pytest

from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.reading.arithmetic import computed
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.knobs.reading.file import read_entries
from perfdoc.knobs.settings import MAX_SCOPES
from tests.knobs.test_frameworks import DUMP

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
