"""YAML that people write, read as plain data within bounds: a file of a kilobyte may ask for gigabytes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_DIGITS = 400
MAX_MERGED_KEYS = 100_000
"""Keys that `<<` may copy in one file. Merges of merges double with every line."""


class UnfitError(ConstructorError):
    """What YAML allows and no configuration needs."""


class PlainLoader(_Base):
    """Plain data only. Dates stay text, which no setting is; what is no number says so with its line."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """As PyYAML merges, and no more than MAX_MERGED_KEYS in all. Raises UnfitError before it does."""
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                for target in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(target, yaml.MappingNode):
                        self.flatten_mapping(target)
                        self._merged += len(target.value)
                    if self._merged > MAX_MERGED_KEYS:
                        words = f"merges more than {MAX_MERGED_KEYS:,} keys"
                        raise UnfitError(None, None, words, node.start_mark)
        super().flatten_mapping(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Raises UnfitError in place of Python's words for a number of thousands of digits."""
        return int(self._number(node, super().construct_yaml_int))

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        """Raises UnfitError for what is too large: with colons a number is in base 60."""
        return float(self._number(node, super().construct_yaml_float))

    def _number(self, node: yaml.ScalarNode, read: Callable[[yaml.ScalarNode], Any]) -> Any:
        try:
            if len(node.value) <= MAX_DIGITS:
                return read(node)
        except (ValueError, OverflowError):
            pass
        raise UnfitError(None, None, "holds no number of a usual size", node.start_mark)


def _text(loader: PlainLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_yaml_str(node))


# PyYAML keeps the functions of its own class.
PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)
PlainLoader.add_constructor("tag:yaml.org,2002:float", PlainLoader.construct_yaml_float)
PlainLoader.add_constructor("tag:yaml.org,2002:timestamp", _text)
