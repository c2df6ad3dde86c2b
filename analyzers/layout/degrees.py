"""The degrees of parallelism of a job, from its groups, its ranks, and arithmetic.

Everything that is known is a product of degrees: the job has tp x cp x dp x pp ranks, a group that is called
DATA_PARALLEL_GROUP_WITH_CP has cp x dp. Where all factors of a product but one are known, so is the last;
where the known ones make up the whole, one rank is left for each of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Final

from perfdoc.analyzers.layout.job_uses import JobUses, RankUses
from perfdoc.analyzers.layout.products import Product, Solver
from perfdoc.results.degrees import STRENGTHS, Degree, DegreeName
from perfdoc.results.figures import plural
from perfdoc.traces.job_facts import JobFacts, derived_sizes

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
