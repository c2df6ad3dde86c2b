"""What names say of whose communication it is: those of process groups, ranges, operators, Python functions.

An operator or a function counts only where everything that is launched inside of it is of one dimension: the
forward pass of a wrapped module holds all the others' communication too. The names: dimension_names.yaml.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.profiling.distributed.collective_name import parse_collective

NAMES = SimpleNamespace(**table(Path(__file__).resolve().with_name("dimension_names.yaml")))
"""Of steps and batches too, for which range_names.py looks."""
_FUNCTION = "|".join(f"(?P<{dim}_{i}>{form})" for i, (form, dim) in enumerate(NAMES.functions))
_AROUND = pattern_of(
    r"(?:autograd::engine::evaluate_function: )?(?:torch::autograd::CppNode<)?"
    r"([\w:.]+?)(?:Backward\d*)?>?(?:, (?:seq|op_id) = .*)?"
)
_PYTHON = pattern_of(r"\.py\(\d+\): ")


@lru_cache(maxsize=65536)
def _of_group(description: str) -> tuple[str, tuple[str, ...]] | None:
    text = description.removesuffix("_GLOO")[:512]
    found = (row[1:] for row in NAMES.groups if pattern_of(row[0]).fullmatch(text))
    return next(((dim, tuple(sizes)) for dim, sizes in found), None)


def dimension_of_group(description: str) -> str | None:
    """The dimension that a process-group description names; None where it names none."""
    found = _of_group(description)
    return None if found is None else found[0]


def degrees_of_group(description: str) -> tuple[str, ...]:
    """The degrees whose product the size of a group of this description is; empty where it says none.

    >>> degrees_of_group("DATA_PARALLEL_GROUP_WITH_CP")
    ('cp', 'dp')
    """
    found = _of_group(description)
    return () if found is None else found[1]


@lru_cache(maxsize=65536)
def dimension_of_range(name: str) -> str | None:
    """The dimension of communication launched in a range of this name; None where the name tells none."""
    ours = parse_collective(name)
    if ours is not None:
        return ours.dimension or dimension_of_group(ours.group)
    text = name[:512]
    return next((dim for pattern, dim in NAMES.ranges if pattern_of(pattern).search(text)), None)


@lru_cache(maxsize=65536)
def dimension_of_function(name: str) -> str | None:
    """The dimension of what an operator, an autograd function or a Python function launches itself; None
    where that is of several, or not known.

    >>> dimension_of_function("autograd::engine::evaluate_function: _CopyToModelParallelRegionBackward")
    'tp'
    """
    low, text = name.lower(), name[:512]
    if not any(map(low.__contains__, NAMES.hints)):
        return None
    if _PYTHON.search(text):
        return next((dim for pattern, dim in NAMES.frames if pattern_of(pattern).search(text)), None)
    plain = _AROUND.fullmatch(text)
    found = None if plain is None else pattern_of(_FUNCTION).fullmatch(plain[1])
    if found is None or found.lastgroup is None:
        return dimension_of_range(name)
    return found.lastgroup.partition("_")[0]
