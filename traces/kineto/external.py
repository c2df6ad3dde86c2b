"""Kineto over roctracer: calls and kernels share an external id, or their operator's."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from perfdoc.patterns import pattern_of
from perfdoc.traces.kineto.names import CALLS, COPIES, KERNELS
from perfdoc.traces.kineto.rows import EventRows
from perfdoc.traces.kineto.values import DECODERS, Args
from perfdoc.traces.model import UNKNOWN, ApiCalls
from perfdoc.traces.table import I64, among


class _ByExternalId(Args, gc=False):
    correlation: Any = msgspec.field(name="External id", default=None)
    external: Any = msgspec.field(name="correlation", default=None)


EXTERNAL_DECODERS = DECODERS | dict.fromkeys((*CALLS, *COPIES, *KERNELS), msgspec.json.Decoder(_ByExternalId))
_LAUNCHES = pattern_of(r"(?i)launch|memcpy|memset")


def with_own_ids(calls: ApiCalls, rows: EventRows) -> tuple[ApiCalls, I64]:
    """The calls with ids with which they alone launch, and all others: of an operator's several launches none
    tells which kernel is whose."""
    launches = np.array([_LAUNCHES.search(s) is not None for s in rows.strings.values], bool)[calls.name]
    ids, count = np.unique(calls.correlation[launches], return_counts=True)
    own = launches & among(calls.correlation, ids[(count == 1) & (ids > 0)])
    kept = np.where(own, calls.correlation, UNKNOWN)
    return replace(calls, correlation=kept), np.setdiff1d(calls.correlation, kept)
