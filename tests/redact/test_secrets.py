"""Secrets of every kind in every field of every format: none is in the copy, whatever it looks like."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.redact.copying import redact
from perfdoc.redact.nsys import CALL_NAMES, KERNEL_NAMES, RANGE_NAMES, TEXTS
from perfdoc.redact.texts import gpu_name
from perfdoc.redact.words import Names, known_words
from tests.captures.kineto import write_kineto
from tests.simulator.hand_laid import hand_laid_timeline, write_hand_laid

PLACES = {
    "/srv/zorp's dir/q=blarf/(wumpus)/mifty.cu": ("zorp", "blarf", "wumpus", "mifty"),
    "/" + "zorpblarf" * 40 + "/mifty.cu": ("zorpblarf", "mifty"),
    r"C:\Zorp Blarf\mifty.cu": ("Zorp", "Blarf", "mifty"),
    "kern10.66.77.88x": ("66.77", "77.88"),
    "kern10-66-77-88x": ("66-77", "77-88"),
    "xfe80::1ff:fe23:4567:890a": ("1ff", "fe23", "4567"),
    "x00:1b:44:11:3a:b7y": ("1b:44", "44:11"),
    "x550e8400-e29b-41d4-a716-446655440000": ("e29b", "a716", "446655440000"),
    "zorp.blarf@mifty.example": ("zorp", "blarf", "mifty"),
    "Größe_zorpblarf": ("Größe", "zorpblarf"),
}
"""Text that no kernel's name holds, and the parts of it that must not be in a copy."""
WORDS = {
    "r91n34": ("r91n34", "91", "n34"),
    "zorp17": ("zorp", "17"),
    "AKIAZORPBLARF0000001": ("AKIA", "ZORP"),
    "sk-a1b2c3d4e5f6": ("a1b2", "d4e5"),
    "4111111111111111": ("41111",),
    "ZorpBlarfForward3": ("Zorp", "Blarf"),
}
"""What may be the name of a kernel, and of nothing else."""


def parts(secrets: dict[str, tuple[str, ...]]) -> set[str]:
    return {part for found in secrets.values() for part in found if len(part) > 3}


def assert_gone(content: bytes, secrets: dict[str, tuple[str, ...]]) -> None:
    for part in parts(secrets):
        for form in (part, json.dumps(part)[1:-1]):
            assert form.encode().lower() not in content.lower(), part


@pytest.mark.parametrize("secret", [*PLACES, *WORDS])
def test_a_secret_in_any_text(secret: str) -> None:
    names = Names()
    gone = (PLACES | WORDS)[secret]
    for text in (
        secret,
        f"step {secret}",
        f"{secret} forward",
        f"layer_{secret}_mlp",
        f"'{secret}'",
        f"x={secret}",
    ):
        cleaned = [names.of_range(text), names.of_call(text), gpu_name(names, f"NVIDIA {text} H100", {})]
        if secret in PLACES:
            cleaned.append(names.of_kernel(f"void f<{text}>(int)"))
        for found in cleaned:
            assert found is not None
            assert [part for part in gone if part in found] == []


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Every column of text holds every secret, in one row each; so do the names that rows refer to."""
    path = write_hand_laid(tmp_path / "demo")[0]
    everything = [*PLACES, *WORDS]
    with sqlite3.connect(path) as db:
        tables = {r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, columns in TEXTS.items():
            if table not in tables:
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            there = {r[1] for r in db.execute(f"PRAGMA table_info({table})")}
            for column in set(columns) & there:
                for secret in everything:
                    _insert(db, table, {column: secret})
        for number, (references, secrets) in enumerate(
            ((KERNEL_NAMES, [*PLACES]), (CALL_NAMES, everything), (RANGE_NAMES, everything))
        ):
            for i, secret in enumerate(secrets):
                key = 1_000_000 + 1000 * number + i
                db.execute("INSERT INTO StringIds VALUES (?, ?)", (key, secret))
                for table, columns in references.items():
                    for column in columns if table in tables else ():
                        _insert(db, table, {column: key})
        for table in tables & {"CUPTI_ACTIVITY_KIND_RUNTIME", "SCHED_EVENTS", "ThreadNames"}:
            for column in [r[1] for r in db.execute(f"PRAGMA table_info({table})")]:
                _insert(db, table, {column: " ".join(everything)})
    db.close()
    return path


def _insert(db: sqlite3.Connection, table: str, changes: dict[str, object]) -> None:
    """Another row like the table's first one, but for these columns."""
    columns = [r[1] for r in db.execute(f"PRAGMA table_info({table})")]
    first = db.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
    row = {**dict(zip(columns, first or [None] * len(columns), strict=True)), **changes}
    db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", list(row.values()))


def test_an_export_keeps_none(export: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        assert_gone(export.read_bytes(), PLACES | WORDS)
    redact([export], tmp_path / "copy.sqlite", keep=None, force=False, verify=False)
    assert_gone((tmp_path / "copy.sqlite").read_bytes(), PLACES | WORDS)


def test_a_profiler_trace_keeps_none(tmp_path: Path) -> None:
    timeline = hand_laid_timeline()[0]
    trace = json.loads(write_kineto(timeline, tmp_path / "plain.json", timeline.processes[0].pid).read_text())
    # A number is no secret where a number belongs.
    words = {word: found for word, found in WORDS.items() if not word.isdecimal()}
    secrets = [*PLACES, *words]
    planted: list[dict[str, Any]] = []
    for event in _one_of_each(trace["traceEvents"]):
        is_kernel = event.get("cat") == "kernel"
        for secret in secrets:
            keys = [
                k
                for k in event
                if k not in ("ph", "cat", "args") and (k != "name" or not is_kernel or secret in PLACES)
            ]
            planted += [{**event, k: secret} for k in keys]
            planted += [
                {**event, "args": {**event.get("args", {}), k: secret}}
                for k in (*event.get("args", {}), secret)
            ]
    trace["traceEvents"] += planted
    trace["deviceProperties"] = [{"id": 0, **dict.fromkeys(("name", "numSms", "uuid"), s)} for s in secrets]
    config = [{"pg_name": s, "pg_desc": s, "backend_config": s, "ranks": [0, s]} for s in secrets]
    trace["distributedInfo"] = {
        **dict.fromkeys(("backend", "rank", "nccl_version"), secrets[0]),
        "pg_config": config,
    }
    trace |= {"schemaVersion": secrets[0], "baseTimeNanoseconds": secrets[1], secrets[2]: secrets[3]}
    source = tmp_path / "planted.json"
    source.write_text(json.dumps(trace))
    redact([source], tmp_path / "copy.json", keep=None, force=False, verify=False)
    assert_gone((tmp_path / "copy.json").read_bytes(), PLACES | words)


def _one_of_each(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({(e.get("ph"), e.get("cat")): e for e in events}.values())


_SEGMENT = st.text("BCDFGHJKMNPQRSTVWXZ0123456789", min_size=6, max_size=24)
_GLUE = st.sampled_from(["", " ", "_", "-", ".", "'", "=", "(", ")", "/", "\\", ":", "[", ",", "@", "é"])


@given(
    st.lists(st.tuples(_GLUE, _SEGMENT), min_size=1, max_size=5), st.sampled_from(["", "step ", "forward_"])
)
def test_random_secrets(pieces: list[tuple[str, str]], before: str) -> None:
    secret = "".join(glue + segment for glue, segment in pieces)
    names = Names()
    found = [names.of_range(before + secret), names.of_call(secret), gpu_name(names, f"NVIDIA {secret}", {})]
    found.append(names.of_kernel("void f<int>[lambda at /" + secret + ":3](int)"))
    for _, segment in pieces:
        if any(letters.lower() not in known_words() for letters in re.findall("[A-Z]+", segment)):
            assert all(text is not None and segment not in text for text in found)
