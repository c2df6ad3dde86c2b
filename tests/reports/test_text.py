from __future__ import annotations

from perfdoc.reports.text import render_text
from tests.reports import build


def _line(text: str, start: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.strip().startswith(start))


def test_the_verdict_is_the_first_line() -> None:
    made = build.one_rank()
    assert render_text(made, width=200).splitlines()[0] == made.verdict


def test_the_ledger_of_one_rank_by_hand() -> None:
    text = render_text(build.one_rank())
    assert " ".join(_line(text, "DP  exposed")) == "DP exposed comm DP 87.921 ms 19.0 % 87,921,001"
    assert _line(text, "UN  idle") == ["UN", "idle", "unexplained", "7.088", "µs", "<0.1", "%", "7,088"]
    assert _line(text, "sum") == ["sum", "=", "window", "463.440", "ms", "100.0", "%", "463,440,441"]
    assert "exposed comm TP" not in text  # leaves of 0 ns have no row


def test_a_bar_of_letters_is_as_wide_as_its_shares() -> None:
    text = render_text(build.diagnosis([build.rank(0, build.ledger(compute=75, dp=25))]), width=100)
    (bar,) = (line.strip() for line in text.splitlines() if line.strip().startswith("[C"))
    # 96 places for 100 columns: 72 of compute and 24 of exposed communication.
    assert bar == "[C" + "=" * 71 + "DP" + "=" * 22 + "]"


def test_communication_kernels_and_gaps_are_there() -> None:
    text = render_text(build.one_rank(), width=140)
    row = "dp nccl all_reduce bf16 12 88.921 ms 1.000 ms 87.921 ms 43.961 ms 512.0 MiB 231.4 GB/s"
    assert _line(text, "dp ") == [*row.split(), "group_description"]
    assert _line(text, "unknown  nccl")[-4:] == ["—", "—", "—", "none"]
    assert "blocking —: the capture has no CUPTI_ACTIVITY_KIND_CUDA_EVENT table" in text
    assert _line(text, "gemm ") == ["gemm", "400", "600.000", "ms", "60.0", "%"]
    assert "- event record and wait: the capture has no CUPTI" in text
    assert "do: capture with `nsys profile --cuda-event-trace=true`" in text
    assert "! few_steps: only 3 steps were captured" in text
    assert "Rules: 1 firing, 1 failed to run, 1 passing, 1 not applicable, 1 skipped." in text


def test_without_colour_there_is_no_escape_and_with_it_the_words_are_the_same() -> None:
    made = build.two_ranks()
    assert "\x1b" not in render_text(made)
    assert "\x1b[" in render_text(made, colour=True)


def test_a_thousand_ranks_fit_a_screen_or_two_and_the_rest_is_counted() -> None:
    text = render_text(build.many_ranks(1000))
    assert len(text.splitlines()) < 126
    assert "1,000 ranks in 1 role" in text
    assert "984 more inputs" in text


def test_no_rank_at_all_still_says_what_is_missing() -> None:
    text = render_text(build.diagnosis([]))
    assert "0 ranks" in text
    assert "What could not be measured" in text


def test_sentences_break_at_the_width() -> None:
    text = render_text(build.one_rank(), width=60)
    gaps = text[text.index("What could not") : text.index("Findings")]
    assert max(len(line) for line in gaps.splitlines()) <= 60
