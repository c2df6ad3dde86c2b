"""`perfdoc.profiling`'s names for other trainers: light to import, silent without a profiler, read back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc import PROFILING_PLACES as PLACES
from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import collectives
from perfdoc.profiling.own import following
from perfdoc.profiling.own.steps import loading, marked, step, steps, vocabulary_name
from perfdoc.profiling.process import started_rank
from tests.profiling.own.traces import counted, names_in

WEIGHT_LIMIT = 150
"""Modules that the marks may load on top of Python's own start: without torch, numpy or msgspec."""


def test_the_marks_are_light() -> None:
    program = (
        "import sys; before = set(sys.modules); import perfdoc.profiling;"
        "bare = len(set(sys.modules) - before);"
        "from perfdoc.profiling import loading, marked, step, steps\n"
        "for _ in steps([1, 2]):\n    with marked('forward'): pass\n"
        "import json; print(json.dumps([bare, sorted(set(sys.modules) - before)]))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare, loaded = json.loads(shown.stdout)
    assert bare <= 5, "importing the namespace imports nothing of it"
    assert not {"torch", "numpy", "msgspec", "yaml", "typer"} & set(loaded)
    assert len(loaded) < WEIGHT_LIMIT


def test_every_published_name_has_a_type() -> None:
    stub = Path(following.__file__).parents[1] / "__init__.pyi"
    lines = stub.read_text().splitlines()
    typed = {line.rpartition(" as ")[2]: line.split(".")[3].split()[0] for line in lines}
    assert typed == PLACES


def test_an_unknown_name_is_an_attribute_error() -> None:
    import perfdoc.profiling

    with pytest.raises(AttributeError, match="no_such"):
        perfdoc.profiling.no_such  # type: ignore[attr-defined]  # noqa: B018


def test_nothing_happens_while_nothing_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "attached", following.Attached())
    monkeypatch.setattr(ranges, "begin", lambda name: pytest.fail(f"opened {name}"))
    seen = []
    for batch in steps([1, 2, 3]):
        with marked("forward"):
            seen.append(batch)
    with step(7):
        seen.extend(loading([4]))
    assert seen == [1, 2, 3, 4]
    assert not ranges.on()
    assert not collectives._originals


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("forward", "perfdoc.forward"),
        ("backward layer=0 module=mlp", "perfdoc.backward layer=0 module=mlp"),
        ("micro_batch 3", "perfdoc.micro_batch 3"),
        ("checkpoint save", "perfdoc.checkpoint save"),
        ("forward pass", "forward pass"),
        ("optimizer state", "optimizer state"),
        ("my own", "my own"),
    ],
)
def test_words_become_names_that_the_analyses_know(word: str, name: str) -> None:
    assert vocabulary_name(word) == name
    assert marked(word).name == name


def test_a_decorator_names_a_range_by_its_function() -> None:
    @marked
    def forward(number: int) -> int:
        return number + 1

    @marked("backward")
    def other() -> str:
        return "done"

    assert (forward(1), forward.__name__, other()) == (2, "forward", "done")


def test_a_step_is_a_number_from_0() -> None:
    with pytest.raises(ValueError, match="-1"):
        step(-1)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "x", "WORLD_SIZE": "8"}, None),
        ({}, None),
    ],
)
def test_the_rank_is_as_the_launcher_says(
    environment: dict[str, str], expected: tuple[int, int] | None
) -> None:
    assert started_rank(environment) == expected


LOOP = """
import gc, sys, torch
from torch.utils.data import DataLoader
from perfdoc.profiling import marked, steps, torch_profiler

weight = torch.ones(8, 8, requires_grad=True)

@marked
def forward(x):
    return (x @ weight).sum()

with torch.profiler.profile(**torch_profiler(steps=(2, 4), folder=sys.argv[1])) as profiler:
    for batch in steps(DataLoader(torch.ones(24, 8), batch_size=4)):
        loss = forward(batch)
        with marked("backward"):
            loss.backward()
        gc.collect()
        profiler.step()
"""


@pytest.mark.slow
def test_a_loop_of_ones_own_under_the_pytorch_profiler(needs_torch: None, tmp_path: Path) -> None:
    """By default tests/test_own_trainer_page.py runs such a loop."""
    subprocess.run([sys.executable, "-c", LOOP, str(tmp_path)], check=True, capture_output=True, timeout=120)
    assert not list(tmp_path.rglob(".part-*"))
    names = counted(names_in(tmp_path / "traces" / "rank0.json.gz"))
    marked_steps = {n: c for n, c in names.items() if n.startswith("perfdoc.step")}
    assert marked_steps == {"perfdoc.step 2": 1, "perfdoc.step 3": 1}
    assert names["perfdoc.forward"] == names["perfdoc.backward"] == 2
    assert names["perfdoc.gc generation=2"] >= 2
    assert names["perfdoc.data"] >= 2
    assert names["perfdoc.rank 0 world=1 device=cpu"] >= 1
