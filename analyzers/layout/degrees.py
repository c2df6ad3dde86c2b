"""The degrees of parallelism of a job, from its groups, its ranks, and arithmetic.

Everything that is known is a product of degrees: the job has tp x cp x dp x pp ranks, a group that is called
DATA_PARALLEL_GROUP_WITH_CP has cp x dp. Where all factors of a product but one are known, so is the last;
where the known ones make up the whole, one rank is left for each of the others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, fields, replace
from typing import Any, Final

from perfdoc.analyzers.layout.job_uses import JobUses, RankUses
from perfdoc.records import dataclass
from perfdoc.results.degrees import STRENGTHS, Degree, DegreeName, Strength
from perfdoc.results.figures import plural
from perfdoc.traces.job_facts import JobFacts, derived_sizes

_DERIVED: Strength = "derived"
_PARTS = ("replicas", "shards")
"""Of dp: groups that hold copies of the weights, and those that share them out (HSDP)."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """The product of some degrees, and who says so."""

    factors: tuple[str, ...]
    ranks: int
    strength: Strength
    evidence: str


@dataclass(kw_only=True)
class Value:
    """A degree that is known."""

    ranks: int
    strength: Strength
    evidence: list[str]


@dataclass(kw_only=True)
class Solver:
    """Takes products, strongest first, and keeps what follows from them."""

    whole: Sequence[str]
    """Degrees whose product is `world_size`."""
    seen: AbstractSet[str]
    """Degrees of which communication is seen."""
    values: dict[str, Value] = field(default_factory=dict)
    against: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What contradicts a value, by degree."""
    _open: list[Product] = field(default_factory=list)
    _divided: set[tuple[str, ...]] = field(default_factory=set)
    """Factors of what was left of a product over another."""
    _split: set[str] = field(default_factory=set)
    """Degrees of whose factors it was taken down that they multiply to it."""

    def add(self, product: Product) -> None:
        """Take one more, and everything that follows with it."""
        self._open.append(product)
        while self._follow():
            pass

    def set_to_one(self, names: Sequence[str], evidence: str) -> None:
        """Degrees that nothing shows to be above 1 are 1, where they are not known. Where ranks are left over
        that no degree of which something is seen can have, none of those that may have them is."""
        open_ = [name for name in self.whole if name not in self.values]
        world = self.values.get("world_size")
        known = math.prod(self.values[name].ranks for name in self.whole if name in self.values)
        left_over = world is not None and known != world.ranks and not self.seen & set(open_)
        for name in names:
            if name not in self.values and not (left_over and name in open_):
                self.add(Product(factors=(name,), ranks=1, strength="derived", evidence=evidence))
        for part, other in zip(_PARTS, _PARTS[::-1], strict=True):
            if part in self.values and other not in self.values:
                self.add(Product(factors=(other,), ranks=1, strength="derived", evidence=evidence))

    def _follow(self) -> bool:
        """Whether anything new follows from what is known."""
        for name, factors in (("dp", _PARTS), ("world_size", self.whole)):
            if self._multiply(name, factors):
                return True
        for product in sorted(self._open, key=lambda p: len(p.factors)):
            if self._use(product):
                self._open.remove(product)
                return True
        return self._divide()

    def _multiply(self, name: str, factors: Sequence[str]) -> bool:
        """A degree that is a product of others: worked out where they are all known, else one more product
        that is known of them."""
        whole = self.values.get(name)
        if whole is None and all(f in self.values for f in factors):
            known = [self.values[f] for f in factors]
            text = " x ".join(f"{f} {v.ranks}" for f, v in zip(factors, known, strict=True))
            ranks, strength = math.prod(v.ranks for v in known), self._weakest(factors)
            self.values[name] = Value(ranks=ranks, strength=strength, evidence=[text])
            return True
        if whole is None or name in self._split:
            return False
        self._split.add(name)
        strength = max(whole.strength, _DERIVED, key=STRENGTHS.index)
        text = f"{name} {whole.ranks}"
        self._open.append(
            Product(factors=tuple(factors), ranks=whole.ranks, strength=strength, evidence=text)
        )
        return True

    def _divide(self) -> bool:
        """One product over another whose factors are among its own: 128 = tp x cp x dp x pp and 32 = cp x dp
        leave 4 for tp x pp."""
        for large in self._open:
            for small in self._open:
                left = tuple(f for f in large.factors if f not in small.factors)
                if len(left) + len(small.factors) != len(large.factors) or len(small.factors) < 2 or not left:
                    continue
                if left in self._divided or large.ranks % small.ranks:
                    continue
                self._divided.add(left)
                strength = max(_DERIVED, large.strength, small.strength, key=STRENGTHS.index)
                text = f"{large.evidence}, {' x '.join(small.factors)} {small.ranks}"
                ranks = large.ranks // small.ranks
                self._open.append(Product(factors=left, ranks=ranks, strength=strength, evidence=text))
                return True
        return False

    def _weakest(self, names: Sequence[str]) -> Strength:
        """Of what follows from several: no stronger than the weakest of them."""
        known: list[Strength] = [self.values[n].strength for n in names if n in self.values]
        return max([_DERIVED, *known], key=STRENGTHS.index)

    def _use(self, product: Product) -> bool:
        """Whether a product says something: a value, another reason for one, or a contradiction."""
        known = {f: self.values[f] for f in product.factors if f in self.values}
        missing = [f for f in product.factors if f not in known]
        made = math.prod(v.ranks for v in known.values())
        if not missing and made == product.ranks:
            if len(product.factors) == 1:
                known[product.factors[0]].evidence.append(product.evidence)
            return True
        if not missing or product.ranks % made or (made == product.ranks and self._is_above_one(missing)):
            weakest = max(product.factors, key=lambda f: self._rank_of(f, missing))
            if product.evidence not in self.against[weakest]:
                self.against[weakest].append(product.evidence)
            return product in self._open
        if len(missing) > 1 and made != product.ranks:
            return False
        alone = len(product.factors) == 1
        strength = (
            product.strength
            if alone
            else max(product.strength, self._weakest(list(known)), key=STRENGTHS.index)
        )
        text = product.evidence
        if not alone:
            text += "".join(f", {name} {v.ranks}" for name, v in known.items())
        for name in missing:
            self.values[name] = Value(ranks=product.ranks // made, strength=strength, evidence=[text])
        return True

    def _is_above_one(self, names: Sequence[str]) -> bool:
        # Gradients of one replica are reduced over its context-parallel ranks.
        return any(name in self.seen and name != "dp" for name in names)

    def _rank_of(self, name: str, missing: Sequence[str]) -> tuple[bool, int]:
        """How little is to be believed of a factor: what is missing least of all."""
        return name in missing, STRENGTHS.index(self.values[name].strength) if name in self.values else 0


NAMES: Final[tuple[DegreeName, ...]] = ("world_size", "tp", "cp", "ep", "dp", "pp")
_SHARED = ("cp", "dp")
"""What the size of a group is of which nothing says more than that it is data parallelism's: ranks of context
parallelism share gradients and sharded weights too, in Megatron as in torchtitan."""
SHOWN = "the captures"
"""Who says what they show."""
WHOLE = ("tp", "cp", "dp", "pp")


def find_degrees(
    ranks: Sequence[RankUses], facts: JobFacts, world_size: int | None, *, together: int | None = None
) -> list[Degree]:
    """Every degree, in the order of NAMES.

    facts: what was given. world_size: as the captures say. together: ranks that are known to be in the same
    collectives where no group is known.
    """
    job = JobUses.of(ranks)
    solver = Solver(whole=WHOLE, seen=job.seen.keys())
    found = [*_described(job), *_by_dimension(job), *_together(job, together), *_world(job, world_size)]
    for product in sorted(found, key=lambda p: (STRENGTHS.index(p.strength), len(p.factors))):
        solver.add(product)
    if job.seen:
        shown = plural(len(ranks), "rank")
        solver.set_to_one(job.absent, f"no communication of it on {shown}")
    given = {
        name: (value, facts.sources.get(name, "given"))
        for name in (*NAMES, "etp")
        if (value := getattr(facts, name)) is not None
    }
    for name, (value, source) in given.items():
        if source not in ("derived", "the capture"):
            solver.add(Product(factors=(name,), ranks=value, strength="given", evidence=source))
    for name, (value, source) in given.items():
        if source == "derived":
            solver.add(Product(factors=(name,), ranks=value, strength="given", evidence="what was given"))
    return [_degree(name, solver, job) for name in NAMES]


def filled(facts: JobFacts, degrees: Sequence[Degree]) -> JobFacts:
    """The facts with the degrees that nobody gave and the captures show, and with what follows from them.
    What was given stays; where sizes contradict one another nothing is filled in."""
    found: dict[str, Any] = {
        d.name: d.ranks
        for d in degrees
        if d.ranks is not None and not d.contradicted_by and getattr(facts, d.name) is None
    }
    known = {f.name: v for f in fields(facts) if (v := getattr(facts, f.name)) is not None} | found
    try:
        new: dict[str, Any] = {n: v for n, v in derived_sizes(known).items() if n not in known}
    except ValueError:
        return facts
    sources = {**facts.sources, **dict.fromkeys(found, SHOWN), **dict.fromkeys(new, "derived")}
    return replace(facts, **found, **new, sources=sources)


def _degree(name: DegreeName, solver: Solver, job: JobUses) -> Degree:
    value = solver.values.get(name)
    against = solver.against.get(name, [])
    if value is None:
        several = ["more than one rank: " + job.seen[name]] if name in job.seen else []
        open_ = [text for dimensions, text in job.open_uses() if name in dimensions]
        return Degree(
            name=name, ranks=None, strength="unknown", evidence=several or open_, contradicted_by=against
        )
    return Degree(
        name=name,
        ranks=value.ranks,
        strength=value.strength,
        evidence=list(dict.fromkeys(value.evidence)),
        contradicted_by=against,
    )


def _described(job: JobUses) -> list[Product]:
    found = {}
    for group in job.groups:
        if group.factors and group.size:
            text = f"process group {group.description} of {plural(group.size, 'rank')}"
            found[group.factors, group.size] = Product(
                factors=group.factors, ranks=group.size, strength="named", evidence=text
            )
    return list(found.values())


def _by_dimension(job: JobUses) -> list[Product]:
    """Of groups that no description tells the factors of."""
    found = []
    for dimension in ("tp", "cp", "ep", "dp", "pp"):
        groups = [g for g in job.groups if g.dimension == dimension and not g.factors]
        if not groups:
            continue
        size = _size(job, dimension)
        if size is None:
            continue
        strength = min((g.strength for g in groups), key=STRENGTHS.index)
        factors = _SHARED if dimension == "dp" else (dimension,)
        text = f"{job.seen[dimension]}, in groups of {size}"
        found.append(Product(factors=factors, ranks=size, strength=strength, evidence=text))
    return found


def _size(job: JobUses, dimension: str) -> int | None:
    """Ranks of the groups of a dimension; None unknown, or where there are groups of several sizes."""
    if dimension == "pp":
        return job.chained("pp")
    sizes = {g.size for g in job.groups if g.dimension == dimension and not g.factors and g.size}
    if dimension == "dp" and len(sizes) > 1:
        return job.data_parallel_ranks()
    return sizes.pop() if len(sizes) == 1 else None


def _together(job: JobUses, together: int | None) -> list[Product]:
    """Where all captured ranks are in the same collectives, of one dimension alone."""
    if together is None or len(job.seen) != 1 or job.is_open:
        return []
    ((dimension, text),) = job.seen.items()
    factors = _SHARED if dimension == "dp" else (dimension,)
    evidence = f"{text}, which end together on {plural(together, 'rank')}"
    return [Product(factors=factors, ranks=together, strength="counted", evidence=evidence)]


def _world(job: JobUses, world_size: int | None) -> list[Product]:
    if world_size is not None:
        text = "as the captures say"
        return [Product(factors=("world_size",), ranks=world_size, strength="named", evidence=text)]
    count = job.closed
    if count is None:
        return []
    text = f"every group of the {count} captured ranks is among them"
    return [Product(factors=("world_size",), ranks=count, strength="counted", evidence=text)]
