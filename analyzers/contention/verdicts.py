"""Whether a kernel is slower beside communication, and the runs that were slowed most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.contention.comparison import Compared
from perfdoc.analyzers.contention.samples import Samples
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.results.contention import Verdict
from perfdoc.traces.table import F64, Bool

MIN_SAMPLES = 8
"""Of each set: with fewer no difference is called one."""
SIGNIFICANCE = 0.05
"""Chance of calling any kernel of one kind slower that is not; and each one as slow as alone that is not."""
SLOWER_MIN_FRAC = 0.05
"""A smaller difference of the medians is called none: clocks and memory traffic make as much."""
MIXED_MAX_RATIO = 1.5
"""Runs alone that spread further (longest tenth over shortest tenth) hardly do the same work each."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict, and what it lacks where it is none."""

    verdict: Verdict
    reason: str


def judge(found: Compared, mine: Bool) -> dict[int, Judged]:
    """Verdicts on the kernels of one kind, by index; `mine` says which these are.

    found: compared with tolerance_frac=SLOWER_MIN_FRAC. The kernels' tests share SIGNIFICANCE by Holm's
    procedure, over those whose samples suffice to pass: 70 kernels of eight and eight runs give no p below
    0.00094, and 0.05 / 70 is less than that. Of such the 53 that come first are tested, the rest are not.
    """
    enough = (found.count[0] >= MIN_SAMPLES) & (found.count[1] >= MIN_SAMPLES) & mine
    tested = _testable(found.least_p_value, enough)
    differs = _holm(found.p_value, tested)
    low, median, high = found.low_ns, found.median_ns, found.high_ns
    slower = differs & (median[1] >= (1 + SLOWER_MIN_FRAC) * median[0])
    within = found.within_p_value < SIGNIFICANCE
    reasons = (
        ("too_few_samples", ~enough, ""),
        ("mixed_work", found.gapped, "runs alone fall into groups of different length: different work"),
        ("mixed_work", high[0] > MIXED_MAX_RATIO * low[0], "runs alone spread too far to be the same work"),
        ("mixed_work", high[1] < low[0], "runs beside communication are faster: they do other work"),
        ("slower", slower, ""),
        ("no_difference", within, ""),
        (
            "undecided",
            enough & ~tested,
            f"too few runs to prove anything of one of {int(enough.sum()):,} kernels tested together",
        ),
        ("undecided", enough, "inconclusive: too few runs, or too scattered"),
    )
    verdicts: dict[int, Judged] = {}
    for i in np.flatnonzero(mine).tolist():
        verdict, _, reason = next(r for r in reasons if r[1][i])
        if verdict == "too_few_samples":
            alone, beside = int(found.count[0][i]), int(found.count[1][i])
            reason = (
                f"{alone:,} runs alone and {beside:,} beside communication; {MIN_SAMPLES} of each are needed"
            )
        verdicts[i] = Judged(verdict=verdict, reason=reason)  # type: ignore[arg-type]
    return verdicts


def _testable(least_p: F64, enough: Bool) -> Bool:
    """As many kernels as can be tested together such that each of them could pass the strictest level.

    The smallest p that a kernel can reach depends on how many samples it has and not on which of them ran
    beside communication, so to choose by it leaves the tests' level as it is (Tarone, 1990).
    """
    rows: I64 = np.flatnonzero(enough)
    rows = rows[np.argsort(least_p[rows], kind="stable")]
    could = least_p[rows] <= SIGNIFICANCE / np.arange(1, len(rows) + 1)
    found = np.zeros(len(enough), bool)
    found[rows[: len(rows) if could.all() else int(np.argmin(could))]] = True
    return found


def _holm(p: F64, tested: Bool) -> Bool:
    """Those of the tested whose difference is more than chance, all tests together."""
    rows = np.flatnonzero(tested)
    rows = rows[np.argsort(p[rows], kind="stable")]
    passes = p[rows] <= SIGNIFICANCE / np.arange(len(rows), 0, -1)
    found = np.zeros(len(tested), bool)
    found[rows[: len(rows) if passes.all() else int(np.argmin(passes))]] = True
    return found


KEYS = ("contention.norm", "contention.other")


def contention_spots(
    view: DeviceView, samples: Samples, found: Compared, verdicts: Sequence[Mapping[int, Judged]]
) -> list[Spot]:
    """verdicts: of norms, and of other kernels, by signature. Only kernels that are slower for certain
    count, and of their runs those beside communication, against the median alone."""
    spots = []
    for key, judged in zip(KEYS, verdicts, strict=True):
        slower = np.zeros(len(samples.signatures), bool)
        slower[[i for i, j in judged.items() if j.verdict == "slower"]] = True
        rows = np.flatnonzero(samples.beside & slower[samples.signature]) if slower.any() else ()
        if not len(rows):
            continue
        lost = samples.duration_ns[rows] - found.median_ns[0][samples.signature[rows]]
        row = int(rows[int(np.argmax(lost))])
        if (cost := int(lost.max())) > 0:
            name = view.trace.strings[samples.signatures[int(samples.signature[row])].name]
            spots.append(
                Spot(
                    key=key,
                    start_ns=int(samples.start_ns[row]),
                    end_ns=int(samples.end_ns[row]),
                    cost_ns=cost,
                    name=name,
                )
            )
    return spots
