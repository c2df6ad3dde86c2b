"""`perfdoc lint` and `perfdoc knobs`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from perfdoc.knobs.load import catalogue
from tests.command import perfdoc


def test_lint_says_where_what_instead_and_why(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text(
        "train:\n  manual_gc_interval: 50\n  manual_gc: false\nmodel:\n  recompute_granuality: full\n"
    )
    done = perfdoc("lint", config)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{config}:2: warning PL302 manual_gc_interval does nothing without manual_gc")
    assert lines[1] == "    write: train.manual_gc=true"
    assert lines[2].startswith("    why: ")
    assert f"{config}:5: error PL101 recompute_granuality does not exist" in done.stdout
    assert "Megatron-Bridge" in done.stderr
    data = json.loads(perfdoc("lint", config, "--format", "json").stdout)
    assert data["dialect"] == "megatron_bridge"
    assert data["findings"][0]["code"] == "PL302"
    assert data["values"]["recompute_granularity"] == "full"


def test_exit_codes(tmp_path: Path) -> None:
    def code(text: str, *more: str) -> int:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return perfdoc("lint", path, *more).returncode

    assert code("train: {manual_gc_interval: 50, manual_gc: true}\n") == 0
    assert code("train: {manual_gc_interval: 50}\n") == 0, "a note is no failure"
    assert code("train: {manual_gc_interval: many}\n") == 1
    assert code("tensor_model_parallel_size: 2\n") == 3, "whose name this is nobody knows"
    assert code("tensor_model_parallel_size: 2\n", "--dialect", "megatron_core") == 0
    assert code("colour: blue\n") == 3
    assert code("a: !!python/name:os.system\n") == 2
    assert code("a: 1\n", "--dialect", "fortran") == 2
    for path in (tmp_path, tmp_path / "none", Path("/dev/null")):
        done = perfdoc("lint", path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_lint_reads_standard_input_and_prints_nothing_of_a_terminals(tmp_path: Path) -> None:
    text = "recompute_granuality=full\nexport EVIL_\x1b[31m=1\nmodel.\x1b]0;owned\x07fp8_recipe=4\n"
    done = perfdoc("lint", "-", "--all", stdin=text)
    assert done.returncode == 1
    assert done.stdout.startswith("-:1: error PL101")
    one = perfdoc("lint", "-", stdin="a_word=4\n")
    assert (one.returncode, "-: 1 setting, 0 of them known" in one.stderr) == (3, True), one.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_knobs_lists_by_topic_and_shows_one() -> None:
    listed = perfdoc("knobs").stdout
    knobs = [k for k in catalogue().values() if k.kind == "knob"]
    assert all(f"\n  {k.id} " in listed for k in knobs)
    assert [k["id"] for k in json.loads(perfdoc("knobs", "--format", "json").stdout)] == [k.id for k in knobs]
    page = perfdoc("knobs", "apply_rope_fusion").stdout
    assert "--no-rope-fusion  (means false)  default true" in page
    assert "TransformerConfig.apply_rope_fusion  default false" in page
    assert "Checked by perfdoc lint" in page
    one = json.loads(perfdoc("knobs", "NVTE_FLASH_ATT", "--format", "json").stdout)
    assert (one["id"], one["choices"]) == ("nvte_flash_attn", [0, 1])
    wrong = perfdoc("knobs", "bukket_size")
    assert (wrong.returncode, "did you mean bucket_size" in wrong.stderr) == (2, True)


def test_help_loads_no_catalogue() -> None:
    script = (
        "import sys; from perfdoc.cli.application import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
    )
    script += "loaded = [m for m in sys.modules if m in ('yaml', 'msgspec')]\n"
    script += "print(loaded + [m for m in sys.modules if m.startswith(('perfdoc.rules', 'perfdoc.knobs'))])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
