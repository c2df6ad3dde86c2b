"""Tables in reports: what is said, and what is folded."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis
from perfdoc.results.tables import (
    AllToAll,
    AllToAllBalance,
    AllToAllRow,
    CollectiveSize,
    CopyRow,
    GpuMetrics,
    MetricMean,
    Tables,
)
from tests.reports.build import one_rank
from tests.reports.fill import with_text
from tests.reports.read_sections import section, table

KNOWN = {"state": "measured", "reason": "", "remedy": ""}
MS = 1_000_000


def size(least: int, gbps: float, of_best: float) -> CollectiveSize:
    return CollectiveSize(
        dimension="dp",
        collective="all_reduce",
        transport="nccl",
        least_bytes=least,
        most_bytes=least,
        ranks=8,
        count=16,
        total_ns=8 * MS,
        mean_ns=MS // 2,
        matched=16,
        transfer_ns=4 * MS,
        basis="transfer",
        bus_bandwidth_gbps=gbps,
        best_gbps=100.0,
        of_best_frac=of_best,
        link_gbps=450.0,
        link="NVLink",
    )


def copy(rank: str, memory: str) -> CopyRow:
    return CopyRow(
        direction="host to device",
        memory=memory,  # type: ignore[arg-type]
        communication=False,
        count=3,
        total_ns=2 * MS,
        bytes=20_000_000,
        gbps=10.0,
        largest_bytes=10_000_000,
        exposed_ns=MS,
        rank=rank,
    )


def made() -> Diagnosis:
    all_to_all = [
        AllToAllRow(
            dimension="ep",
            count=2,
            unknown=0,
            sent_bytes=1 << 20,
            received_bytes=3 << 20,
            to_most_over_mean=1.25,
            rank="rank 0",
        )
    ]
    balance = AllToAllBalance(
        dimension="ep", ranks=2, sent_most_over_mean=1.5, received_most_over_mean=1.5, most_received="rank 0"
    )
    metrics = [
        MetricMean(
            metric="Tensor Active [Throughput %]",
            meaning="tensor_active",
            kernel_class="gemm",
            samples=samples,
            mean=mean,
            most=90,
            rank=rank,
        )
        for rank, samples, mean in (("rank 0", 10, 60.0), ("rank 1", 30, 40.0))
    ]
    tables = Tables(
        collectives=[size(1 << 20, 40.0, 0.4), size(1 << 24, 100.0, 1.0)],
        copies=[copy("rank 0", "pinned"), copy("rank 1", "pinned"), copy("rank 1", "pageable")],
        all_to_all=AllToAll(**KNOWN, by_rank=all_to_all, balance=[balance]),
        gpu_metrics=GpuMetrics(**KNOWN, rows=metrics, period_ns=100_000),
    )
    return replace(one_rank(), tables=tables)


def test_tables_add_up_over_ranks() -> None:
    sizes, copies, all_to_all, metrics = (table(made(), "tables", at) for at in range(4))
    assert sizes[1][3:7] == ["1.0 MiB", "8", "16", "8.000 ms"]
    assert sizes[1][9:] == ["40.0 GB/s", "transfer", "40.0 %", "450.0 GB/s"]
    # 40 MB in 4 ms on two ranks.
    assert copies[1][:6] == ["host to device", "pinned", "6", "38.1 MiB", "4.000 ms", "10.0 GB/s"]
    assert all_to_all[1] == ["ep", "rank 0", "2", "1.0 MiB", "3.0 MiB", "1.25\N{MULTIPLICATION SIGN}"]
    # (10 x 60 + 30 x 40) / 40.
    assert metrics[1] == ["tensor pipes active", "gemm", "40", "45.0", "90"]
    said = " ".join(section(made(), "tables").sentences)
    for figure in ("40.0 %", "100.0 GB/s", "3 copies", "1.50 times", "45.0 %"):
        assert figure in said


def test_the_page_folds_them_and_a_terminal_names_them() -> None:
    page = render_html(made())
    folded = page[page.index('<section id="tables">') :]
    assert folded.index("<details") < folded.index("Collectives by message size") < folded.index("</details>")
    text = render_text(made())
    assert "4 more tables in the report" in text
    assert "tensor pipes active" not in text


def test_hostile_names_are_shown_as_they_are() -> None:
    bad = "<script>alert(1)</script>\x1b[31m\u202e|`" + "x" * 10_000
    tables = with_text(made().tables, bad)
    hostile = replace(made(), tables=tables)
    page = render_html(hostile)
    assert "<script>alert" not in page
    assert "x" * 1_000 not in page
    for text in (page, render_text(hostile), render_markdown(hostile)):
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_without_tables_there_is_no_section() -> None:
    assert '<section id="tables">' not in render_html(replace(one_rank(), tables=None))
