"""PD101 in jobs whose gradients PyTorch's DistributedDataParallel reduces."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.communication.ddp import Ddp, find_ddp
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.gradient_sums import settings_of_ddp
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder
from tests.rules.cases import gain_of, predicting, result, settings_of
from tests.rules.communicating import communicating, having, with_rows

ONE = "torch.nn.parallel.DistributedDataParallel(model)"


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """DP communication of f32 that is exposed for a tenth of each step, of 0.1 ms, and hidden for 0.02."""
    case = communicating(tmp_path_factory.mktemp("ddp"), "dp", 100, hidden_us=20)
    return with_rows(replace(case, configuration=having(case).configuration), element_type="f32")


def shown(case: Case, ddp: Ddp | None) -> Case:
    """The same of plain PyTorch whose captures show so much of DDP."""
    captures = [replace(c, framework="pytorch", ddp=ddp) for c in case.captures]
    configuration = replace(case.configuration, dialect=None)
    return replace(case, captures=captures, configuration=configuration)


def test_ddp_is_not_advised_where_it_runs(exposed: Case) -> None:
    """What acts there is: buckets, a hook that halves bytes; the search for unused parameters, where seen."""
    found = result("PD101", shown(exposed, Ddp(searches=False)))
    assert (found.state, settings_of(found)) == ("fires", {})
    assert "bf16_compress_hook" in found.remedy
    assert "find_unused_parameters" not in found.remedy
    assert "overlap_grad_reduce" not in found.remedy
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", 0.1)  # nothing was replayed
    searching = result("PD101", shown(exposed, Ddp(searches=True)))
    assert "find_unused_parameters=False" in searching.remedy


@pytest.mark.parametrize(("sums", "most_ms"), [("f32", 0.1), ("bf16", 0.02)])
def test_compute_bounds_other_buckets_but_not_half_the_bytes(
    exposed: Case, sums: str, most_ms: float
) -> None:
    """0.1 ms exposed of a step that computes for 0.02: no more can be hidden. Half of the bytes of FP32
    save more."""
    case = with_rows(shown(exposed, Ddp(searches=False)), element_type=sums)
    (rank,) = case.ranks
    little = replace(rank, ledger=replace(rank.ledger, compute=rank.window.steps * 20_000))
    found = result("PD101", replace(case, captures=[replace(case.captures[0], ranks=[little])]))
    assert ("half the bytes" in found.action) == (sums == "f32")
    assert gain_of(found).high_ms == pytest.approx(most_ms)


def test_ddp_is_advised_where_nothing_shows_it(exposed: Case) -> None:
    found = result("PD101", shown(exposed, None))
    assert [a.dialects["pytorch"] for a in found.advice if "pytorch" in a.dialects] == [ONE]


def test_no_bound_is_promised_where_the_replay_gains_nothing(exposed: Case) -> None:
    """0 ± 0.04 ms of other buckets, 0 to 0.01 of half the bytes: the step does not wait for it."""
    nothing = {
        "buckets_x4": (-0.04, 0.0, 0.04),
        "buckets_x0.25": (-0.04, 0.0, 0.04),
        "dp_half_bytes": (0.0, 0.0, 0.01),
        "overlapped_dp": (0.0, 0.0, 0.01),
    }
    ours = shown(exposed, Ddp(searches=False))
    for left_out in nothing:  # of what was not replayed nothing is known
        some = {key: band for key, band in nothing.items() if key != left_out}
        assert result("PD101", predicting(ours, **some)).state == "fires", left_out
    case = predicting(ours, **nothing)
    found = result("PD101", case)
    assert (found.state, found.gain) == ("passes", None)
    assert "DDP overlaps it already" in found.reason
    # Something waits for it, says the replay of an overlap: then the bound stays.
    waits = predicting(ours, **{**nothing, "overlapped_dp": (0.01, 0.02, 0.03)})
    assert result("PD101", waits).state == "fires"
    # Of Megatron, whose reductions may all come after the backward, it proves no overlap.
    assert result("PD101", predicting(exposed, **nothing)).state == "fires"


def test_the_gain_is_the_best_replayed_change(exposed: Case) -> None:
    gains = {"buckets_x4": (0.01, 0.03, 0.05), "dp_half_bytes": (0.0, 0.01, 0.02)}
    found = result("PD101", predicting(shown(exposed, Ddp(searches=False)), **gains))
    assert found.state == "fires"
    assert (found.gain and found.gain.method, found.gain and found.gain.mid_ms) == ("replay", 0.03)
    assert found.remedy.startswith("bucket_cap_mb for fewer, larger messages")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("aten::add",), None),
        # A program's own class of that name, and what only speaks of it.
        (("nn.Module: DistributedDataParallel_0", "my reducer::copy"), None),
        (("DistributedDataParallel.forward",), Ddp(searches=False)),
        (("torch::distributed::reducer::mul_out",), Ddp(searches=False)),
        (
            ("DistributedDataParallel.forward", "torch.distributed.ddp.reducer::search_unused_parameters"),
            Ddp(searches=True),
        ),
    ],
)
def test_what_a_capture_shows_of_it(tmp_path: Path, names: tuple[str, ...], expected: Ddp | None) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    thread = process.thread()
    process.device().kernel(GEMM, 0, 100)
    for i, name in enumerate(names):
        process.operator(thread, name, 10 * i, 10 * i + 5)
    assert find_ddp(read_kineto(write_kineto(builder.build(), tmp_path / "x.json", process.pid))) == expected


@pytest.mark.parametrize(
    ("count", "mib", "said"),
    [
        # Two steps. An eighth of a step's bytes, in one digit.
        (4, 8000, "bucket_cap_mb=500 (25 by default): 2 messages a step begin late."),
        (4, 44.4, "bucket_cap_mb=3 (25 by default): 2 messages a step begin late."),
        (2, 8, "bucket_cap_mb=1 (25 by default): 1 message a step begins late."),
        (20, 400, "Compare bucket_cap_mb=50 and 12 with 25"),
        (4, 0.2, ""),  # too small for any bucket
        (4, None, ""),
        (0, 0, ""),
    ],
)
def test_the_bucket_follows_the_bytes_of_a_step(
    exposed: Case, count: int, mib: float | None, said: str
) -> None:
    sized = with_rows(exposed, count=count, bytes=None if mib is None else round(mib * 2**20))
    words = settings_of_ddp(sized, "")
    assert said in words
    assert ("bucket_cap_mb" in words) == bool(said)
