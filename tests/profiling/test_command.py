from __future__ import annotations

import os
import sys

import pytest

from perfdoc.profiling.environment import COMMAND_VARIABLE, name_command, own_command


def test_the_users_words_reach_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    variables: dict[str, str] = {}
    words = ["perfdoc", "run", "tiny", "data.text=my text.txt", "caf\u00e9", "$(x)"]
    name_command(variables, words)
    monkeypatch.setenv(COMMAND_VARIABLE, variables[COMMAND_VARIABLE])
    assert own_command() == tuple(words)


@pytest.mark.parametrize("value", [None, "", "perfdoc run", '{"a": 1}', "[1]"])
def test_a_process_started_otherwise_names_its_own(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(COMMAND_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(COMMAND_VARIABLE, value)
    assert own_command() == tuple(sys.orig_argv[1:])


def test_bytes_that_are_no_text_do_not_break_the_manifest() -> None:
    variables: dict[str, str] = {}
    name_command(variables, [os.fsdecode(b"run-\xff")])
    assert "udcff" in variables[COMMAND_VARIABLE].encode("utf-8").decode()
