"""PD306 and PD311: what the mapping leaves of memory; PD317, PD318 and PD320: other mappings."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from perfdoc.knobs.knob import Value
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis
from perfdoc.rules.checks import pd306_uneven_stage_memory as pd306
from perfdoc.rules.checks import pd317_fsdp_candidate as pd317
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.exposed import MIN_FRAC
from tests.analyzers.memory_planted import MIB, a_step, one
from tests.planted.spec import JobSpec
from tests.rules.cases import evidence_of, result, settings_of
from tests.rules.planted_cases import (
    LLAMA,
    MIXTRAL,
    on,
    planted_case,
    shaped,
    under,
    with_compute,
    with_exposed,
)
from tests.rules.test_mapping_rules import CP, NOW, PP, SP, TP, VPP

EP = "expert_model_parallel_size"


@pytest.fixture(scope="module")
def job() -> Case:
    """Two stages, two replicas."""
    return planted_case(JobSpec(pp=2, dp=2, micro_batches=4, steps=2))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> DeviceMemory:
    return one(a_step(), tmp_path_factory.mktemp("memory"), device_total_bytes=100 * MIB)


def remembering(
    case: Case, device: DeviceMemory, *ranks: tuple[int, int], failed: int = 0, activations: float = 0.0
) -> Case:
    """The same with snapshots of ranks 0, 1, …: MiB reserved at the peak and never reserved."""
    found = []
    assert device.composition is not None
    for rank, (peak, free) in enumerate(ranks):
        categories = {**device.composition.category_bytes, "activations": round(activations * peak * MIB)}
        one_device = replace(
            device,
            rank=rank,
            peak_reserved_bytes=peak * MIB,
            peak_allocated_bytes=peak * MIB,
            headroom_bytes=free * MIB,
            oom_events=failed,
            composition=replace(device.composition, category_bytes=categories),
        )
        found.append(one_device)
    memory = MemoryAnalysis(state="measured", reason="", remedy="", devices=found, processes=[])
    return replace(case, memory=memory)


def test_pd306_one_full_stage(job: Case, device: DeviceMemory) -> None:
    """Ranks 0 and 1 are of the first stage, 2 and 3 of the last one."""
    last = 800
    found = result("PD306", remembering(job, device, (1000, 111), (900, 211), (last, 311), (700, 411)))
    assert (found.state, found.level) == ("fires", "information")
    assert "stage 0 is full; stage 1 needs 80 %" in found.reason
    assert evidence_of(found)[0].endswith("GiB")
    for peaks, failed, state in (
        (((1000, 112), (900, 0), (800, 0), (700, 0)), 0, "passes"),  # a tenth of 1,112 and more is free
        (((1000, 100), (900, 0), (801, 0), (700, 0)), 0, "passes"),
        (((1000, 500), (900, 0), (800, 0), (700, 0)), 1, "fires"),
        (((1000, 100), (900, 0)), 0, "skipped"),  # of one stage only
    ):
        assert result("PD306", remembering(job, device, *peaks, failed=failed)).state == state
    assert (pd306.MAX_FREE_FRAC, pd306.MAX_RATIO) == (0.1, 0.8)


@pytest.mark.parametrize(
    ("reserved", "layers", "to"),
    [
        # A layer of eight takes 125 MiB at most: stage 1, which has 200 less, can take one.
        ((1000, 900, 800, 700), 16, {"num_layers_in_last_pipeline_stage": 9}),
        ((1000, 900, 800, 700), 8, {}),  # of four 250 MiB
        # The last stage is full: on the first, twice as many micro-batches are in flight, 250 MiB.
        ((800, 700, 1000, 900), 16, {}),
        ((800, 700, 1000, 900), 32, {"num_layers_in_last_pipeline_stage": 15}),
    ],
)
def test_pd306_moves_a_layer_where_it_fits(
    job: Case, device: DeviceMemory, reserved: tuple[int, ...], layers: int, to: dict[str, Value]
) -> None:
    settings = {**NOW, TP: 1, SP: False, PP: 2, "num_layers": layers, **EVEN_SPLIT}
    free = [(1000 if r == 1000 else 2000) - r + 50 for r in reserved]
    case = remembering(under(job, settings), device, *zip(reserved, free, strict=True))
    found = result("PD306", case)
    assert (found.state, settings_of(found)) == ("fires", to)


def test_pd310_leaves_waiting_for_uneven_stages_to_pd305(job: Case) -> None:
    """Of 6 % exposed between stages 4.1 % are waiting for a slower one: less than 2 % is left."""
    settings = {**NOW, TP: 1, SP: False, PP: 2}
    exposed = with_exposed(with_exposed(job, "pp", 0.06), "dp", 0.0)
    assert exposed.job.pipeline.scope == "job"
    for late, state in ((0.039, "fires"), (0.041, "passes")):
        window = exposed.ranks[0].ledger.total
        rows = [replace(r, late_peer_ns=round(late * window)) for r in exposed.job.pipeline.stages]
        case = replace(exposed, job=replace(exposed.job, pipeline=replace(exposed.job.pipeline, stages=rows)))
        assert result("PD310", under(case, settings, model=shaped(LLAMA, layers=8))).state == state


EVEN_SPLIT: Mapping[str, Value] = {
    VPP: None,
    "pipeline_model_parallel_layout": None,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "mtp_num_layers": None,
}


BIG: Mapping[str, Value] = {**NOW, "global_batch_size": 64, "data_parallel_size": 4}


@pytest.mark.parametrize(
    ("changes", "activations", "to"),
    [
        ({}, 0.5, {CP: 2}),
        ({}, 0.49, {TP: 4}),
        ({TP: 1, SP: False}, 0.49, {TP: 2, SP: True}),
        ({"seq_length": 4096}, 0.9, {TP: 4}),
        ({TP: 8}, 0.0, {PP: 2, VPP: 2}),  # eight GPUs fill the NVLink domain
        (
            {TP: 8, "overlap_p2p_comm": False},
            0.0,
            {PP: 2, "overlap_p2p_comm": True, "batch_p2p_comm": False, VPP: 2},
        ),
        ({TP: 8, "num_layers": 6}, 0.0, {PP: 2}),  # three layers are no two chunks
        ({TP: 8, "num_layers": 7}, 0.0, {}),
        ({TP: 2, "num_attention_heads": 6}, 0.0, {PP: 2, VPP: 2}),  # six heads are not a multiple of 4
        ({"data_parallel_size": 3}, 0.9, {}),  # no rank can be taken
    ],
)
def test_pd311_next_step(
    job: Case, device: DeviceMemory, changes: dict[str, Value], activations: float, to: dict[str, Value]
) -> None:
    case = remembering(under(job, {**BIG, **changes}), device, (1000, 20), failed=1, activations=activations)
    found = result("PD311", case)
    assert (found.state, found.level, settings_of(found)) == ("fires", "information", to)
    assert "PD501" in found.remedy


def test_pd311_takes_the_smallest_tensor_degree_that_fits(job: Case, device: DeviceMemory) -> None:
    """Llama 3 8B over eight ranks: estimated 41.1, 26.2 and 18.7 GiB with TP 2, 4 and 8, of which 70 % of the
    device are allowed: 58.8, 37.4 and 26.7 GiB. Where none fits, one step."""
    settings = {**BIG, TP: 1, "data_parallel_size": 8, "recompute_granularity": "full"}
    for memory, to in ((59, 2), (58, 4), (37, 8), (26, 2)):
        ranks = [replace(r, device=replace(r.device, memory_bytes=memory << 30)) for r in job.ranks]
        small = replace(job, captures=[replace(job.captures[0], ranks=ranks)])
        case = under(small, settings, model=LLAMA)
        found = result("PD311", remembering(case, device, (1000, 20), failed=1))
        assert settings_of(found)[TP] == to, memory


def test_pd311_experts_go_before_stages(job: Case, device: DeviceMemory) -> None:
    """Eight experts over one rank become four a rank; over eight ranks there are no more."""
    settings = {**BIG, "num_moe_experts": 8, EP: 1, "expert_tensor_parallel_size": 1, SP: True}
    for ep, to in ((1, {EP: 2}), (8, {TP: 4})):
        case = under(job, {**settings, EP: ep}, model=MIXTRAL)
        assert settings_of(result("PD311", remembering(case, device, (1000, 20), failed=1))) == to


@pytest.mark.parametrize(
    ("changes", "failed", "state"),
    [
        ({}, 1, "fires"),
        ({}, 0, "passes"),  # full, and yet nothing fails
        ({"use_distributed_optimizer": False}, 1, "passes"),
        ({SP: False}, 1, "passes"),
        ({"micro_batch_size": 2}, 1, "passes"),
    ],
)
def test_pd311_comes_last(
    job: Case, device: DeviceMemory, changes: dict[str, Value], failed: int, state: str
) -> None:
    """Ranks are given up only where PD502 has no setting left that costs none."""
    case = remembering(under(job, {**BIG, **changes}), device, (1000, 0), failed=failed)
    found, first = result("PD311", case), result("PD502", case)
    assert (found.state, first.state) == (state, "fires" if failed else "passes")
    assert (state == "passes" and failed == 1) == bool(settings_of(first))
    assert result("PD311", job).state == "skipped"


def small_and_long(job: Case, step_ms: int = 10_000) -> Case:
    """A small model on four ranks, with 8,192 tokens in a micro-batch; 5 % exposed. GPUs of 56 GiB, which do
    not hold it whole. In each step so much more compute."""
    longer = with_compute(job, step_ms * 1_000_000)
    case = with_exposed(with_exposed(longer, "pp", 0.0), "tp", MIN_FRAC)
    ranks = [replace(r, device=replace(r.device, memory_bytes=56 << 30)) for r in case.ranks]
    case = replace(case, captures=[replace(case.captures[0], ranks=ranks)])
    return under(case, NOW, model=shaped(LLAMA, layers=8))


@pytest.fixture(scope="module")
def slow(job: Case) -> Case:
    return small_and_long(job)


def test_pd317_fsdp(slow: Case) -> None:
    found = result("PD317", slow)
    assert (found.state, found.level) == ("fires", "information")
    to = {
        SP: False,
        TP: 1,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": "optim_grads_params",
    }
    assert settings_of(found) == to
    # 18 / 4 bytes a parameter and two layers whole; activations 9.9 GiB, logits 11.7.
    assert evidence_of(found)[1:4] == ["2.8 billion", "8,192", "34.8 GiB"]


@pytest.mark.parametrize(
    ("dp", "sent", "step_ms"),
    [
        # 64 sequences over four ranks of a node: 16 micro-batches x 6 bytes x 2.8 billion at 450 GB/s.
        (2, "596 ms", 640),
        # Over 16 ranks four; through the eight cards of a node, 400 GB/s.
        (8, "168 ms", 190),
    ],
)
def test_pd317_traffic_is_hidden_or_not(job: Case, dp: int, sent: str, step_ms: int) -> None:
    for more, hidden in ((step_ms, True), (step_ms * 3 // 4, False)):
        case = small_and_long(job, more)
        found = result("PD317", under(case, {**NOW, "data_parallel_size": dp}, model=case.job.facts.model))
        assert (evidence_of(found)[4], "traffic" in found.reason) == (sent, not hidden)
        assert found.state == ("fires" if hidden and dp == 2 else "passes")  # 16 ranks are more than it needs


def test_pd317_is_for_what_does_not_fit_without(slow: Case) -> None:
    ranks = [replace(r, device=replace(r.device, memory_bytes=80 << 30)) for r in slow.ranks]
    large = with_exposed(replace(slow, captures=[replace(slow.captures[0], ranks=ranks)]), "dp", 0.0)
    assert result("PD310", large).state == "fires"
    assert (result("PD317", large).state, "PD310" in result("PD317", large).reason) == ("passes", True)


@pytest.mark.parametrize(
    ("changes", "layers", "state"),
    [
        ({"seq_length": 8191}, 8, "passes"),
        ({"seq_length": 4096, "micro_batch_size": 2}, 8, "passes"),  # no longer than it is wide
        ({"data_parallel_size": 32, "recompute_granularity": "full"}, 88, "passes"),  # 20.2 billion
        ({"data_parallel_size": 32, "recompute_granularity": "full"}, 86, "fires"),  # 19.8
        ({"data_parallel_size": 32}, 86, "passes"),  # 86 layers of activations do not fit
        ({"use_torch_fsdp2": True}, 8, "not_applicable"),
        ({TP: 1, SP: False}, 8, "not_applicable"),
    ],
)
def test_pd317_only_small_and_long(slow: Case, changes: dict[str, Value], layers: int, state: str) -> None:
    assert (pd317.MIN_TOKENS, pd317.MAX_PARAMETERS) == (8192, 20_000_000_000)
    found = result("PD317", under(slow, {**NOW, **changes}, model=shaped(LLAMA, layers=layers)))
    assert found.state == state


def test_pd317_threshold_and_queues(slow: Case) -> None:
    assert result("PD317", with_exposed(slow, "tp", MIN_FRAC - 0.001)).state == "passes"
    one_queue = under(slow, {**NOW, "cuda_device_max_connections": 1}, model=slow.job.facts.model)
    assert settings_of(result("PD317", one_queue))["cuda_device_max_connections"] == 32
    # Where the rest of the configuration excludes megatron-core's, PyTorch's is advised.
    other = under(slow, {**NOW, "use_tp_pp_dp_mapping": True}, model=slow.job.facts.model)
    fsdp2 = {"use_distributed_optimizer": False, "use_torch_fsdp2": True}
    assert settings_of(result("PD317", other)) == {SP: False, TP: 1, **fsdp2}
    uneven = under(slow, {**NOW, "global_batch_size": 6}, model=slow.job.facts.model)
    assert (result("PD317", uneven).advice, "FSDP" in result("PD317", uneven).remedy) == ([], True)


@pytest.mark.parametrize(
    ("settings", "state", "to"),
    [
        ({}, "skipped", {}),
        ({"use_torch_fsdp2": False, "use_megatron_fsdp": False}, "not_applicable", {}),
        ({"use_megatron_fsdp": True, "cuda_device_max_connections": 8}, "passes", {}),
        ({"use_megatron_fsdp": True, "cuda_device_max_connections": 1}, "passes", {}),  # PD112 says it
        ({"use_torch_fsdp2": True}, "fires",
         {"use_torch_fsdp2": False, "use_distributed_optimizer": True, "overlap_grad_reduce": True,
          "overlap_param_gather": True, "use_megatron_fsdp": True,
          "data_parallel_sharding_strategy": "optim_grads_params"}),
    ],
)  # fmt: skip
def test_pd318_fsdp_setup(job: Case, settings: dict[str, Value], state: str, to: dict[str, Value]) -> None:
    found = result("PD318", under(job, settings))
    assert (found.state, settings_of(found)) == (state, to)


def test_nemo_selects_its_fsdp_by_one_setting(job: Case) -> None:
    chosen = {"fsdp_strategy_nemo": "megatron", "data_parallel_sharding_strategy": "optim_grads_params"}
    for now, state, to in (("pytorch", "fires", chosen), ("megatron", "passes", {})):
        found = result("PD318", under(job, {"fsdp_strategy_nemo": now}, dialect="nemo"))
        assert (found.state, settings_of(found)) == (state, to)
    # The same setting is read by whoever asks for either switch.
    bucketed = {"fsdp_strategy_nemo": "megatron", "bucket_size": 10_000_000, PP: 1}
    exposed = with_exposed(job, "dp", MIN_FRAC)
    assert settings_of(result("PD101", under(exposed, bucketed, dialect="nemo"))) == {"bucket_size": None}
    assert result("PD312", under(job, {**NOW, "fsdp_strategy_nemo": "pytorch"}, dialect="nemo")).state == (
        "not_applicable"
    )
    case = small_and_long(job)
    nemo = result("PD317", under(case, NOW, model=case.job.facts.model, dialect="nemo"))
    assert settings_of(nemo) == {SP: False, TP: 1, **chosen}


def test_pd318_is_a_problem_where_it_shows(job: Case) -> None:
    settings = {"use_megatron_fsdp": True, "cuda_device_max_connections": 1}
    assert settings_of(result("PD112", under(job, settings))) == {"cuda_device_max_connections": 32}
    beside = result("PD112", under(job, {**settings, TP: 2}))
    assert "TP and CP overlap needs 1:" in beside.advice[0].costs
    unknown = on(job, "Mystery")
    for exposed, level in ((MIN_FRAC, "problem"), (MIN_FRAC - 0.001, "information")):
        found = result("PD318", under(with_exposed(unknown, "dp", exposed), settings))
        assert (found.level, settings_of(found)) == (level, {"cuda_device_max_connections": 32})


STAGES, TENSOR = "encoder_pipeline_model_parallel_size", "encoder_tensor_model_parallel_size"


@pytest.mark.parametrize(
    ("settings", "state", "level"),
    [
        ({}, "skipped", "problem"),
        ({STAGES: 0}, "not_applicable", "problem"),
        ({STAGES: 0, TENSOR: 2, TP: 4, PP: 1}, "fires", "problem"),  # read with a stage only
        ({STAGES: 1, TENSOR: 8, TP: 4, PP: 1}, "fires", "problem"),
        ({STAGES: 1, TENSOR: 4, TP: 4, PP: 1}, "fires", "information"),
        ({STAGES: 1, TENSOR: 0, TP: 4, PP: 1}, "fires", "information"),
        ({STAGES: 1, TENSOR: 2, TP: 4, PP: 1}, "passes", "problem"),
        ({STAGES: 1, TENSOR: 2, TP: 4, PP: 2, CP: 1, "world_size": 20}, "passes", "problem"),
        ({STAGES: 1, TENSOR: 2, TP: 4, PP: 2, CP: 1, "world_size": 16}, "fires", "problem"),
    ],
)
def test_pd320_encoders(job: Case, settings: dict[str, Value], state: str, level: str) -> None:
    found = result("PD320", under(job, settings, dialect="nemo"))
    assert (found.state, found.level) == (state, level)
    to = (
        {TENSOR: 2}
        if level == "information"
        else {STAGES: 1}
        if settings.get(STAGES) == 0 and TENSOR in settings
        else {}
    )
    assert settings_of(found) == to
    assert all("experimental" in piece.costs for piece in found.advice)


def test_other_gpus_have_other_domains(job: Case, device: DeviceMemory) -> None:
    """Where nobody knows the NVLink domain, neither tensor ranks nor stages are proposed."""
    case = on(under(job, BIG), "NVIDIA H100 PCIe")
    assert result("PD311", remembering(case, device, (1000, 20), failed=1)).advice == []
