"""Every command of README and docs is run, on files of the names that it uses: none is dead.

What trains is run with --dry-run. Lines whose words stand for others (`analyze FILE -o DIR`) are left to
test_documented_commands, which knows their options.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from perfdoc.capture import prepare
from perfdoc.profiling.nsys.command import Nsys
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.gate.commands import megatron_log
from tests.test_documented_commands import PAGES, written_commands
from tests.traces.test_model_config import PUBLISHED

FINE = (0, 1, 3)
"""Of a command that was understood: 1 found what it looks for, 3 inconclusive."""
_GENERAL = re.compile(r"^[A-Z]{2,}|^\[|^ID$|\$|:$|/dev/|^\w+,\w+,|[a-z]\.$")
"""Words that stand for others, or are of the sentence."""
_WITH_FILE = ("--config", "--config-before", "--config-after", "--model-config", "--beside")
_ELSEWHERE = {
    "mcp": "serves until its standard input ends: tests/agent",
    "peak": "measures the machine for a minute: tests/peak",
    "nsys": "needs nsys: tests/cli/test_nsys_recipe.py",
    "--verify": "trains: tests/tune",
    "--apply": "trains: tests/verify",
    "--dask": "needs a scheduler: tests/diagnose/test_cluster.py",
    "snapshot.pickle": "tests/cli/test_memory_command.py",
}


_READ = frozenset(
    (
        "analyze",
        "diff",
        "tune",
        "lint",
        "export",
        "ranges",
        "redact",
        "summarize",
        "gate",
        "verify",
        "watch",
        "capture",
    )
)
"""Commands that read what they are given."""


def files_of(words: list[str]) -> Iterator[int]:
    """Places of the words that name what is read."""
    for place, word in enumerate(words[1:], start=1):
        before = words[place - 1]
        if word.startswith("-") or "=" in word or (before.startswith("-") and before not in _WITH_FILE):
            continue
        if words[0] in ("explain", "knobs", "schema", "config", "simulate", "run", "capture"):
            continue
        if words[0] == "gate" and place == 1:
            continue
        yield place


def lines() -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command that says all that it needs."""
    seen = set()
    for page in PAGES:
        for words in written_commands(page.read_text(encoding="utf-8")):
            words = words[: words.index(">")] if ">" in words else words
            general = any(_GENERAL.search(word) for word in words[1:] if not re.fullmatch(r"PD\d+", word))
            general |= words[:1] in (["explain"], ["simulate"]) and len(words) == 1
            general |= (
                words[:1] != [] and words[0] in _READ and not list(files_of(words)) and "--" not in words
            )
            text = " ".join(words)
            if words and not words[0].startswith("-") and not general and text not in seen:
                seen.add(text)
                yield page.name, words


LINES = list(lines())


class Stage:
    """Files as pages name them."""

    def __init__(self, folder: Path) -> None:
        self.kept = folder / "kept"
        self.kept.mkdir()
        assert perfdoc("demo", cwd=self.kept).returncode == 0
        self.trace = self.kept / "demo" / "traces" / "rank0.sqlite"
        builder = TimelineBuilder()
        for rank in range(2):
            process = builder.process(pid=rank + 1, rank=rank)
            thread, device = process.thread(), process.device()
            thread.range("step 0", 0, 300_000)
            device.kernel("gemm", 100_000, 200_000, launch=(thread, 10_000, 11_000))
        timeline = builder.build()
        for rank in range(2):
            self.kineto = write_kineto(timeline, self.kept / f"rank{rank}.json", rank + 1)
        self.report = self.kept / "report"
        done = perfdoc("analyze", self.trace, "-o", self.report)
        assert done.returncode == 0, done.stderr

    def make(self, path: Path, command: str, place: int) -> None:
        """What a page means by a path, by its name. place: of it in the command, so that runs differ."""
        path.parent.mkdir(parents=True, exist_ok=True)
        name = path.name.replace("*", "0")
        target = path.with_name(name)
        if command in ("gate", "watch"):
            megatron_log(target, 100 + place / 10)
        elif name.endswith(".sqlite"):
            shutil.copy(self.trace, target)
        elif name.endswith(".json.gz"):
            for rank in range(2 if "*" in path.name else 1):
                trace = self.kineto.with_name(f"rank{rank}.json")
                target.with_name(path.name.replace("*", str(rank))).write_bytes(
                    gzip.compress(trace.read_bytes())
                )
        elif name == "config.json":
            target.write_bytes(msgspec.json.encode(PUBLISHED["llama3-8b"]))
        elif name.endswith(".sh"):
            target.write_text("python pretrain_gpt.py --tensor-model-parallel-size 1 --seq-length 4096\n")
        elif name.endswith((".yaml", ".yml")):
            target.write_text("model: {tensor_model_parallel_size: 1, seq_length: 4096}\n")
        elif name == "diagnosis.json":
            shutil.copy(self.report / name, target)
        elif name in ("report", "frames"):
            shutil.copytree(self.report, target)
        elif not target.exists():
            target.mkdir()
            shutil.copy(self.trace, target / "rank0.sqlite")
            shutil.copy(self.trace.with_name("rank1.sqlite"), target)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("stage"))


def test_most_commands_are_run() -> None:
    run = [words for _, words in LINES if not set(words) & set(_ELSEWHERE)]
    assert len(run) > 70
    assert {"analyze", "diff", "tune", "gate", "lint", "knobs", "simulate", "run"} <= {w[0] for w in run}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "words"), LINES, ids=[" ".join(w)[:70] for _, w in LINES])
def test_a_documented_command_works(
    page: str, words: list[str], stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if elsewhere := set(words) & set(_ELSEWHERE):
        pytest.skip(_ELSEWHERE[elsewhere.pop()])
    if words[0] in ("run", "capture") and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    words = [word.removeprefix("/") if "/" in word and not word.startswith("-") else word for word in words]
    if words[0] == "gate":  # whose patterns the shell expands
        words = [word.replace("*", "0") for word in words]
    for place in files_of(words):
        stage.make(tmp_path / words[place].rstrip("/"), words[0], place)
    if words[0] in ("run", "capture"):
        end = words.index("--") if "--" in words else len(words)
        words = [*words[:end], "--dry-run", *words[end:]]
        monkeypatch.setattr(prepare, "find_nsys", lambda: Nsys(path=Path("/opt/nsys"), version=(2025, 1, 1)))
        monkeypatch.setattr(prepare, "_device", lambda: "cuda")
    if words[0] == "watch" and "--once" not in words:
        words = [*words, "--once"]  # it follows a training
    if words[:2] in (["gate", "check"], ["gate", "promote"]):
        accepted = [str(megatron_log(tmp_path / f"accepted{n}", 99 + n / 4)) for n in range(5)]
        label = words[words.index("--label") :][:2] if "--label" in words else []
        assert perfdoc("gate", "record", *accepted, *label, cwd=tmp_path).returncode == 0
    if words[0] == "run" and not set(words) & {"tiny"} and len(words) > 2:
        pytest.skip("a configuration for CUDA: test_documented_commands resolves it")
    done = perfdoc(*words, cwd=tmp_path)
    assert done.returncode in FINE, f"{page}: perfdoc {' '.join(words)}: {done.stderr}"
    assert "internal error" not in done.stderr
