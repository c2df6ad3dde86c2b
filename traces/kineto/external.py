"""Kineto over roctracer: calls and kernels share no correlation id but an external one."""

from typing import Any

import msgspec

from perfdoc.traces.kineto.names import CALLS, COPIES, KERNELS
from perfdoc.traces.kineto.values import DECODERS, Args


class _ByExternalId(Args, gc=False):
    correlation: Any = msgspec.field(name="External id", default=None)
    external: Any = msgspec.field(name="correlation", default=None)


EXTERNAL_DECODERS = DECODERS | dict.fromkeys((*CALLS, *COPIES, *KERNELS), msgspec.json.Decoder(_ByExternalId))
