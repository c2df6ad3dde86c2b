"""What `perfdoc run` makes of the arguments behind `--`."""

from __future__ import annotations

import pytest

from perfdoc.profiling.errors import UserError
from perfdoc.run.torchrun import read_torchrun
from tests.cli.running import needs_training

HERE = "--local-addr=127.0.0.1"
"""So that no rank of one machine needs the machine's own name."""


@pytest.fixture(autouse=True)
def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_training()
    for name in ("PET_NNODES", "PET_NPROC_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "added", "world_size", "several"),
    [
        # Eight ranks are what the configuration wants.
        ([], ["--standalone", HERE, "--nproc-per-node=8"], 8, False),
        (["--nproc-per-node", "2"], ["--standalone", HERE], 2, False),
        (["--nproc_per_node=2"], ["--standalone", HERE], 2, False),
        (["--nproc-per-node=gpu"], ["--standalone", HERE], None, False),
        (["--standalone", "--nproc-per-node=2"], [HERE], 2, False),
        (["--standalone", "--nproc-per-node=2", "--local-addr=::1"], [], 2, False),
        (["--nnodes=1", "--master-port=29501"], [HERE, "--nproc-per-node=8"], 8, False),
        (["--nnodes=2", "--rdzv-endpoint=head:29500"], ["--nproc-per-node=4"], 8, True),
        (["--nnodes=2:2", "--nproc-per-node=4", "--node-rank=1"], [], 8, True),
        (["--nnodes=1:4", "--nproc-per-node=4"], [], None, True),
    ],
)
def test_what_is_missing_is_added(
    words: list[str], added: list[str], world_size: int | None, several: bool
) -> None:
    given = read_torchrun(words)
    assert given.completed(8) == (*added, *words)
    assert read_torchrun(given.completed(8)).world_size == world_size
    assert given.several_nodes is several


def test_variables_of_torchrun_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert read_torchrun([]).world_size == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nnodez=2"], "torchrun: unrecognized arguments: --nnodez=2."),
        (["--nnodes"], "torchrun: the last argument lacks its value."),
        (["--nnodes=none"], "--nnodes none: give a number from 1."),
        (["--nproc-per-node=0"], "--nproc-per-node 0: give a number from 1."),
        (
            ["--standalone", "seed=3"],
            "'seed=3': is not an argument of torchrun; overrides (key=value) go before --.",
        ),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_torchrun(words)
    assert str(caught.value) == said


def test_ranks_that_cannot_be_divided() -> None:
    for nodes in ("3", "1:2"):
        with pytest.raises(UserError, match="give --nproc-per-node"):
            read_torchrun([f"--nnodes={nodes}"]).completed(8)
