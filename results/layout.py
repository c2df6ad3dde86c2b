"""How diagnosis.json is laid out: a key to a line, and a list of numbers on one line."""

from __future__ import annotations

import re

import msgspec

_NUMBER = rb"(?:[-+.0-9eE]++|null)"
# No string of JSON holds a line break as such, so only lists match. Nothing is given back once it matched
# (*+), which keeps the search linear whatever is in the file.
_NUMBERS = re.compile(rb"\[\n *+(" + _NUMBER + rb"(?:,\n *+" + _NUMBER + rb")*+)\n *+\]")
_BREAK = re.compile(rb"\n *+")


def laid_out(serial: bytes) -> bytes:
    """JSON indented by two, for people and for comparing versions.

    The columns of a timeline hold thousands of numbers; each on a line of its own would be most of the file.

    >>> print(laid_out(b'{"a":[1,-2.5e3,null],"b":["x"]}').decode())
    {
      "a": [1, -2.5e3, null],
      "b": [
        "x"
      ]
    }
    """
    return _NUMBERS.sub(
        lambda found: b"[" + _BREAK.sub(b" ", found[1]) + b"]", msgspec.json.format(serial, indent=2)
    )
