"""YAML that people write, read as plain data within bounds: a file of a kilobyte may ask for gigabytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml
from yaml.constructor import ConstructorError

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_MERGED_KEYS = 100_000
"""Keys that `<<` may copy in one file. Merges of merges double with every line."""


class UnfitError(ConstructorError):
    """What YAML allows and no configuration needs."""


class PlainLoader(_Base):
    """Plain data only. Dates stay text, which no setting is; what is no number says so with its line."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """As PyYAML merges, and no more than MAX_MERGED_KEYS in all. Raises UnfitError beyond."""
        before = len(node.value)
        super().flatten_mapping(node)
        self._merged += max(0, len(node.value) - before)
        if self._merged > MAX_MERGED_KEYS:
            raise UnfitError(None, None, f"merges more than {MAX_MERGED_KEYS:,} keys", node.start_mark)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Raises UnfitError in place of Python's words for an integer of thousands of digits."""
        try:
            return int(super().construct_yaml_int(node))
        except ValueError as error:
            raise UnfitError(None, None, "holds no number of a usual size", node.start_mark) from error


def _text(loader: PlainLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_yaml_str(node))


# PyYAML keeps the functions of its own class.
PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)
PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _text)
