"""From an analysis to the contract's type of the same field names."""

from __future__ import annotations

from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def copied(result: object, to: type[_T]) -> _T:
    """The result as the other type; what that one does not have is left out.

    Two types, so that the published contract stays as it is when an analysis changes.
    """
    return msgspec.convert(result, to, from_attributes=True)
