"""How the ranks are arranged, and every rule that can be checked before a process starts."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from perfdoc.knobs.pipeline_layout import stages_of
from perfdoc.profiling.marks import DeviceKind
from perfdoc.trainer.adapt import kernel_packages
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.constraints import problems

RANK_ORDER = ("tp", "cp", "dp", "pp")
"""Fastest-varying first, as megatron-core's `tp-cp-ep-dp-pp` for the dense layers."""
EXPERT_RANK_ORDER = ("etp", "ep", "edp", "pp")
"""The same for the expert layers."""
STAGES_INSIDE = (("tp", "cp", "pp", "dp"), ("etp", "ep", "pp", "edp"))
"""Both with use_tp_pp_dp_mapping: megatron-core's `tp-cp-ep-pp-dp`."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of the dimensions. world = tp · cp · dp · pp = etp · ep · edp · pp."""

    world_size: int
    tp: int
    cp: int
    dp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    edp: int
    num_microbatches: int
    """Micro-batches per step of one data-parallel rank."""
    stages_inside: bool = False
    """Whether the ranks of a pipeline are neighbours, and those of data parallelism apart."""

    def groups(self) -> dict[str, list[list[int]]]:
        """Ranks of every process group, by dimension. tp=2, dp=2: tp [[0,1],[2,3]], dp [[0,2],[1,3]]."""
        dense = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        expert = {"etp": self.etp, "ep": self.ep, "edp": self.edp, "pp": self.pp}
        order, expert_order = STAGES_INSIDE if self.stages_inside else (RANK_ORDER, EXPERT_RANK_ORDER)
        found = {name: _groups_along(dense, order, (name,)) for name in order}
        found["dp_cp"] = _groups_along(dense, order, ("dp", "cp"))
        for name in ("etp", "ep", "edp"):
            found[name] = _groups_along(expert, expert_order, (name,))
        return found


def _groups_along(sizes: dict[str, int], order: tuple[str, ...], along: tuple[str, ...]) -> list[list[int]]:
    """Ranks that differ in the given dimensions only, groups in the order of their first rank."""
    world = math.prod(sizes[name] for name in order)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        rest, place = rank, []
        for name in order:
            rest, index = divmod(rest, sizes[name])
            if name not in along:
                place.append(index)
        groups.setdefault(tuple(place), []).append(rank)
    return list(groups.values())


def default_world_size(config: Config) -> int:
    """Number of ranks that the configuration asks for: its own product, or the least that holds its
    experts."""
    parallel = config.parallel
    model_parallel = (
        parallel.tensor_model_parallel_size
        * parallel.context_parallel_size
        * parallel.pipeline_model_parallel_size
    )
    if parallel.data_parallel_size is not None:
        return model_parallel * parallel.data_parallel_size
    expert = (
        parallel.expert_tensor_parallel_size
        * parallel.expert_model_parallel_size
        * parallel.pipeline_model_parallel_size
    )
    return math.lcm(model_parallel, expert)


def virtual_stages(config: Config) -> int:
    """Chunks of layers per pipeline rank: as set, else as many as the pipeline layout has."""
    parallel = config.parallel
    if parallel.virtual_pipeline_model_parallel_size is not None:
        return parallel.virtual_pipeline_model_parallel_size
    written = parallel.pipeline_model_parallel_layout
    found = None if written is None else stages_of(written)
    return max(1, len(found.stages) // parallel.pipeline_model_parallel_size) if found else 1


def plan(
    config: Config, world_size: int, device: DeviceKind, packages: Collection[str] | None = None
) -> Layout:
    """Check every rule and work out the arrangement.

    packages: of `constraints.PACKAGES`, those that the run will have; None: those that are installed here.

    Raises:
        ValueError: the first rule broken, as `section.key = value: rule`.
    """
    layout = _arrange(config, world_size)
    found = kernel_packages() if packages is None else packages
    for problem in problems(config, layout, device, found):
        raise ValueError(problem)
    return layout


def _arrange(config: Config, world_size: int) -> Layout:
    parallel = config.parallel
    tp = parallel.tensor_model_parallel_size
    cp = parallel.context_parallel_size
    pp = parallel.pipeline_model_parallel_size
    ep = parallel.expert_model_parallel_size
    etp = parallel.expert_tensor_parallel_size
    if parallel.use_tp_pp_dp_mapping and config.moe.num_moe_experts is None:
        etp = tp  # megatron-core makes groups of experts anyhow, and their stages must be the dense layers'
    if world_size % (tp * cp * pp):
        raise ValueError(
            f"parallel.tensor_model_parallel_size = {tp}: {world_size} ranks cannot be divided into "
            f"TP {tp} x CP {cp} x PP {pp} = {tp * cp * pp}"
        )
    dp = world_size // (tp * cp * pp)
    if parallel.data_parallel_size not in (None, dp):
        raise ValueError(
            f"parallel.data_parallel_size = {parallel.data_parallel_size}: {world_size} ranks over "
            f"TP {tp} x CP {cp} x PP {pp} leave {dp}; "
            f"start {default_world_size(config)} ranks, or set it to null"
        )
    if world_size % (etp * ep * pp):
        raise ValueError(
            f"parallel.expert_model_parallel_size = {ep}: {world_size} ranks cannot be divided into "
            f"expert-TP {etp} x EP {ep} x PP {pp} = {etp * ep * pp}"
        )
    batch = config.training.global_batch_size
    share = config.training.micro_batch_size * dp
    if batch % share:
        raise ValueError(
            f"training.global_batch_size = {batch}: not a multiple of micro_batch_size x DP = "
            f"{config.training.micro_batch_size} x {dp} = {share}"
        )
    return Layout(
        world_size=world_size,
        tp=tp,
        cp=cp,
        dp=dp,
        pp=pp,
        vpp=virtual_stages(config),
        ep=ep,
        etp=etp,
        edp=world_size // (etp * ep * pp),
        num_microbatches=batch // share,
        stages_inside=parallel.use_tp_pp_dp_mapping,
    )
