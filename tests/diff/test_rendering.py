"""Text and Markdown of a comparison: the figures that it holds, and names that try to be more than names."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.compare.diff.result import Flag
from perfdoc.compare.diff.screen import first_screen, next_step
from perfdoc.compare.diff.sections import render_markdown, render_text
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.side import KernelTotal, Loaded
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.load import catalogue
from perfdoc.results import Gpu, KernelClass
from tests.diff.sides import NAMES, rank_of_leaves, rank_of_steps, side, side_of
from tests.reports.build import one_rank
from tests.reports.hostile import TEXTS, hostile


def hostile_side(text: str, time_ns: int) -> Loaded:
    """Every name from outside is the text."""
    ranks = [replace(r, gpu=Gpu(name=text, sm_count=1, memory_bytes=1), label=text) for r in one_rank().ranks]
    made = replace(hostile(text), ranks=ranks, analyses=one_rank().analyses)
    return side_of(
        made,
        path=text,
        kernels={text: KernelTotal(kernel_class=text, count=1, total_ns=time_ns)},
        configuration=Configuration(values={"cuda_graph_impl": f"{text}{time_ns}"}),
        versions={text: f"{text}{time_ns}"},
    )


@pytest.mark.parametrize("text", TEXTS)
def test_names_stay_names(text: str) -> None:
    found = compare(hostile_side(text, 50), hostile_side(text, 90))
    assert found.kernels.kernels
    assert found.configuration.settings
    shown = {"text": render_text(found), "screen": first_screen(found), "markdown": render_markdown(found)}
    for rendered in shown.values():
        assert re.fullmatch(
            r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2066-\u2069\u200b\ufeff\ud800-\udfff]*", rendered
        )
        assert len(rendered) < 60_000
        rendered.encode()
    assert not re.search(r"<(?!/?code>)", shown["markdown"])
    lines = shown["markdown"].splitlines()
    tables = [line.count("|") for line in lines if line.startswith("|")]
    assert set(tables) <= {4, 6, 7}  # no cell ends early: of settings, ranks, and kernels and leaves


def test_other_work_and_other_kernels_come_before_any_figure() -> None:
    """Worked: 100 launches against 80, and a kernel of 40 of 140 ns that the other side does not have."""

    def one(kernels: dict[str, tuple[int, int]]) -> Loaded:
        totals = {
            name: KernelTotal(kernel_class="gemm", count=count, total_ns=ns)
            for name, (count, ns) in kernels.items()
        }
        made = side([rank_of_steps(0, [100])], kernels=totals, path="/me/x.sqlite")
        count, ns = (sum(of) for of in zip(*kernels.values(), strict=True))
        analyses = made.diagnosis.analyses
        of_all = [KernelClass(name="gemm", count=count, total_ns=ns, share_frac=1.0)]
        analyses = replace(analyses, kernels=replace(analyses.kernels, classes=of_all))
        return replace(made, diagnosis=replace(made.diagnosis, analyses=analyses))

    new = "void ns::fused<(int)8>(float*, T1)"
    found = compare(one({"gemm": (100, 200)}), one({"gemm": (70, 100), new: (10, 40)}))
    assert [flag.code for flag in found.flags[:2]] == ["other-work", "other-kernels"]
    assert "note: Not the same work" in render_text(found)
    markdown = render_markdown(found)
    lines = markdown.splitlines()
    assert lines[4].startswith("> - Not the same work: ")
    assert "80 kernels, -20.0 % against 100 before" in lines[4]
    assert lines[5] == "> - Other kernels: 1 kernel only after (28.6 % of kernel time: fused)."
    assert markdown.index("> - Not") < markdown.index("| compute")
    assert "- before: me/x.sqlite: 1 rank" in markdown
    assert "/me" not in markdown
    same = render_markdown(compare(one({"gemm": (100, 200)}), one({"gemm": (100, 260)})))
    assert "Not the same work" not in same
    assert "Other kernels" not in same


def test_markdown_is_short_and_sums_to_the_total() -> None:
    def one(scale: int) -> Loaded:
        totals = {
            f"void at::native::kernel{i % 20}<(int){i}>(T{i})": KernelTotal(
                kernel_class="other", count=10, total_ns=1000 * scale + i
            )
            for i in range(60)
        }
        ranks = [rank_of_leaves(r, [100 * scale * (i + 1) for i in range(len(NAMES))]) for r in range(16)]
        settings = Configuration(values=dict.fromkeys([*catalogue()][:12], scale))
        return side(ranks, kernels=totals, configuration=settings)

    found = compare(one(1), one(2))
    assert max(map(len, render_text(found, width=80).splitlines())) <= 80
    found = replace(found, flags=[Flag(code="x", message="note " * 500)] * 9)
    markdown = render_markdown(found)
    assert len(markdown.splitlines()) <= 60
    assert "> - 3 more: see diff.json." in markdown
    assert re.search(r"kernel\d+, 3 variants \| \d+ → \d+ \|", markdown)
    (rest,) = re.findall(r"\| (\d+) other leaves \|", markdown)
    assert int(rest) == len(NAMES) - 9
    assert "Ranks (12 more)" in markdown
    assert "(4 more) | before | after |" in markdown


def steps_of(*durations: int, **settings: object) -> Loaded:
    return side([rank_of_steps(0, durations)], configuration=Configuration(values=settings))


BEFORE = steps_of(*[100_000_000 + i % 2 for i in range(10)], tensor_model_parallel_size=1)
LONGER = [150_000_000 + i % 2 for i in range(10)]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (BEFORE, "nothing to do"),
        (steps_of(*LONGER, tensor_model_parallel_size=2), "set back tensor_model_parallel_size=1"),
        (steps_of(*LONGER, tensor_model_parallel_size=1), "`perfdoc analyze runs/one`"),
        (steps_of(*[50_000_000 + i % 2 for i in range(10)]), "keep the change"),
        # Two steps, 40 ms apart: they scatter more than the change of 10 ms.
        (steps_of(90_000_000, 130_000_000), "10 and 2 steps here"),
        (steps_of(110_000_000), "10 and 1 step here"),
        # Twelve that scatter by 20 ms: more of the same capture would not tell either.
        (steps_of(*[90_000_000, 112_000_000] * 6), "several runs"),
        (steps_of(*LONGER, tensor_model_parallel_size=1, recompute_granularity="full"), "remove `recompute"),
    ],
)
def test_the_first_screen_fits_and_says_what_next(after: Loaded, said: str) -> None:
    found = compare(BEFORE, after)
    lines = first_screen(found, width=80).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert said in next_step(found)
    assert any(line.startswith("Next: ") for line in lines)
    assert any(line.startswith("Why: ") for line in lines) == (found.outcome != "no_change")


def test_what_is_next_agrees_with_the_steps_there_are() -> None:
    """12 steps a side are asked for no 10; steps that ranks do not share are not said to be none."""
    within = next_step(compare(BEFORE, steps_of(*[90_000_000, 112_000_000] * 6)))
    assert ("gate" in within, "10 steps or more" in within) == (True, False)
    uneven = side([rank_of_steps(0, LONGER), rank_of_steps(1, LONGER[1:])])
    assert "0 and 0" not in next_step(compare(uneven, replace(uneven, path="runs/two")))


def test_settings_that_nobody_set_are_removed() -> None:
    """Before: nothing set of recomputation. After: set, beside a degree that was set and is raised."""
    one = next_step(compare(BEFORE, steps_of(*LONGER, tensor_model_parallel_size=1, sequence_parallel=True)))
    assert one.startswith("remove `sequence_parallel`, run again")
    changed = {"recompute_granularity": "full", "tensor_model_parallel_size": 2}
    several = next_step(compare(BEFORE, steps_of(*LONGER, **changed)))
    assert "one setting at a time" in several
    assert "None" not in several


def test_many_leaves_and_long_remarks_fit_a_screen() -> None:
    """Every leaf changed, and five remarks."""
    one, two = (side([rank_of_leaves(0, [n * (i + 1) for i in range(len(NAMES))])]) for n in (1_000, 3_000))
    found = replace(compare(one, two), flags=[Flag(code="x", message="words " * 30)] * 5)
    lines = first_screen(found, width=80).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "3 more remarks" in lines[-1]


@pytest.mark.parametrize("code", ["other-work", "batch-differs", "no-steps"])
def test_nothing_is_kept_where_the_work_differs(code: str) -> None:
    found = compare(BEFORE, steps_of(*[50_000_000 + i % 2 for i in range(10)]))
    assert next_step(found).startswith("keep the change")
    assert "keep" not in next_step(replace(found, flags=[Flag(code=code, message="words")]))
    # New kernels in place of others are what a change is for.
    assert "keep" in next_step(replace(found, flags=[Flag(code="other-kernels", message="words")]))


@pytest.mark.parametrize(
    ("derived", "source"),
    [
        ("data_parallel_size", "tensor_model_parallel_size"),
        ("world_size", "nproc_per_node"),
        ("seq_length", "dataset_seq_length"),
    ],
)
def test_a_setting_that_follows_from_another_is_none_to_set_back(derived: str, source: str) -> None:
    before, after = (
        steps_of(*durations, **{derived: value, source: value})
        for durations, value in (([100_000_000 + i % 2 for i in range(10)], 4), (LONGER, 2))
    )
    said = next_step(compare(before, after))
    assert f"set back {source}=4" in said
    assert "one setting at a time" not in said
    alone = compare(
        steps_of(*[100_000_000 + i % 2 for i in range(10)], **{derived: 4}), steps_of(*LONGER, **{derived: 2})
    )
    assert f"set back {derived}=4" in next_step(alone)


def test_paths_in_commands_are_taken_by_a_shell(tmp_path: Path) -> None:
    """A path with a space, a quoted list of captures, and a path too long to be shown."""
    there = tmp_path / "a b"
    there.mkdir()
    found = compare(BEFORE, steps_of(*LONGER, tensor_model_parallel_size=1))

    def words(path: str) -> list[str]:
        said = next_step(replace(found, after=replace(found.after, path=path)))
        return shlex.split(said.split("`")[1])

    assert words("x y.sqlite z.sqlite") == ["perfdoc", "analyze", "x", "y.sqlite", "z.sqlite"]
    assert words(str(there)) == ["perfdoc", "analyze", str(there)]
    assert words("x" * 500) == ["perfdoc", "analyze", "AFTER"]
    changed = compare(BEFORE, steps_of(*LONGER, tensor_model_parallel_size=2))
    said = next_step(replace(changed, before=replace(changed.before, path="a b; c")))
    assert shlex.split(said.split("`")[1]) == ["perfdoc", "diff", "a b; c", "AGAIN"]
    assert "diff BEFORE AGAIN" in next_step(replace(changed, before=replace(changed.before, path="\u202e")))


def test_names_give_way_where_a_table_is_wider_than_the_terminal() -> None:
    """A kernel of 60 characters, a label of 90 and a setting of 60: at 100 columns nothing is wider."""
    totals = (KernelTotal(kernel_class="gemm", count=100, total_ns=ns) for ns in (2_500_300, 5_500_300))
    before, after = (
        side(
            [replace(rank_of_steps(i, [n * 1_000_333 + i]), label=f"{'rank' * 22}{i}") for i in range(2)],
            kernels={"k" * 60: total},
            configuration=Configuration(values={"cuda_graph_impl": f"{'v' * 60}{n}"}),
        )
        for n, total in zip((1, 2), totals, strict=True)
    )
    lines = render_text(compare(before, after), width=100).splitlines()
    assert any("kkkk" in line for line in lines)
    assert any("vvvv" in line for line in lines)
    assert [line for line in lines if len(line) > 100] == []


def test_a_sentence_goes_on_after_a_colon() -> None:
    """Logs of 100 and 80 ms without the profiler; two steps each with it, which tell nothing."""
    before, after = (
        replace(steps_of(*steps), logged_ns=np.array([ms * 1_000_000 + i for i in range(200)], np.int64))
        for ms, steps in ((100, (90_000_000, 130_000_000)), (80, (80_000_000, 130_000_000)))
    )
    screen = first_screen(compare(before, after))
    assert "\nWith the profiler: within noise" in screen


def test_idle_time_beside_the_only_step_is_not_compared() -> None:
    """A step of 50 ms on both sides, beside which the device idled 45 ms and now does 5."""
    made = rank_of_steps(0, [50_000_000])
    both = [side([replace(made, window=replace(made.window, outside_ns=ms * 1_000_000))]) for ms in (45, 5)]
    found = compare(*both)
    assert "45 ms and 5 ms" in first_screen(found)
    assert next_step(found).startswith("capture several steps")
    assert next_step(compare(both[1], both[1])).startswith("nothing to do")
    # Of several steps it is between them: 95 ms each, 45 of which are in the change.
    (flag,) = (
        f
        for f in compare(both[0], side([rank_of_steps(0, [95_000_000] * 4)])).flags
        if f.code == "beside-steps"
    )
    assert "45 ms; the other side's steps hold theirs" in flag.message
