"""The kinds of inputs: each makes one from a seed and says what it came to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from tests.fuzz import base, folders, kineto, memory, nsys, summaries, words
from tests.fuzz.oracle import LIMIT_S, analysed, commanded, in_time

Kind = Callable[[Random, Path, Path], str]
"""(drawing, an empty folder, a folder of what inputs are made from) → how it ended."""


def _captures(make: Callable[[Random, Path, Path], Path]) -> Kind:
    def kind(rng: Random, folder: Path, bases: Path) -> str:
        return analysed([make(rng, folder, bases)], rng)

    return kind


def _with_config(rng: Random, folder: Path, bases: Path) -> str:
    given = words.config(rng, folder)
    if rng.random() < 0.4:
        dialect = rng.choice(
            ("megatron_bridge", "megatron_core", "megatron_lm", "nemo", "verl", "env", "perfdoc")
        )
        return commanded("lint", given, *rng.choice(((), ("--all",), ("--dialect", dialect))), cwd=folder)
    capture = folder / "rank0.json"
    capture.write_bytes(base.content(bases, "json", 0, "new"))
    option = rng.choice(("--config", "--config", "--model-config"))
    out = rng.choice(("text", "json", "markdown"))
    return commanded("analyze", capture, option, given, "-o", folder / "out", "--format", out, cwd=folder)


def _gate(rng: Random, folder: Path, bases: Path) -> str:
    runs = [words.log(rng, folder, f"{i}.log") for i in range(rng.choice((1, 3, 4)))]
    ended = commanded("gate", "record", *runs, "--label", "x", *rng.choice(((), ("--few",))), cwd=folder)
    out = rng.choice(("text", "json", "markdown", "junit", "github"))
    new = words.log(rng, folder, "y.log")
    checked = commanded("gate", "check", new, "--label", "x", "--format", out, cwd=folder)
    return f"{ended}, {checked}"


def _diff(rng: Random, folder: Path, bases: Path) -> str:
    one = words.diagnosis(rng, folder, bases)
    two = folder / "two.json"
    two.write_bytes(one.read_bytes() if rng.random() < 0.3 else words._diagnosis(bases))
    pair = rng.choice(((one, two), (two, one)))
    return commanded("diff", *pair, "--format", rng.choice(("text", "json", "markdown")), cwd=folder)


def _others(rng: Random, folder: Path, bases: Path) -> str:
    """The other commands that read captures."""
    make = rng.choice(
        (nsys.rows, nsys.schema, nsys.pages, nsys.parquet, kineto.events, kineto.text, kineto.packed)
    )
    path = make(rng, folder, bases)
    out = folder / "out"
    more = rng.choice(
        (("redact", path, "-o", out), ("export", path, "-o", out), ("ranges", path), ("diff", path, path))
    )
    return commanded(*more, cwd=folder)


KINDS: Mapping[str, Kind] = {
    "nsys-rows": _captures(nsys.rows),
    "nsys-schema": _captures(nsys.schema),
    "nsys-bytes": _captures(nsys.pages),
    "nsys-real": _captures(nsys.real),
    "parquet": _captures(nsys.parquet),
    "kineto-rows": _captures(kineto.events),
    "kineto-real": _captures(kineto.real),
    "kineto-bytes": _captures(kineto.text),
    "kineto-gzip": _captures(kineto.packed),
    "memory-values": _captures(memory.values),
    "memory-bytes": _captures(memory.opcodes),
    "summary-bytes": _captures(summaries.damaged),
    "summary-values": _captures(summaries.forged),
    "shaken": _captures(folders.shaken),
    "ranks": _captures(folders.ranks),
    "run-directory": _captures(folders.run_directory),
    "config": _with_config,
    "gate-logs": _gate,
    "diagnosis": _diff,
    "other-commands": _others,
}


def run(kind: str, seed: int, scratch: Path, bases: Path, *, limit_s: int = LIMIT_S) -> str:
    """Make one input in a folder under `scratch`, which goes again, and see what it comes to.

    Raises oracle.Found, or whatever the program should not have raised.
    """
    folder = scratch / "input"
    folder.mkdir()
    try:
        with in_time(limit_s):
            return KINDS[kind](Random(f"{kind}/{seed}"), folder, bases)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
