"""The search: what is tried, what is left out and why, and that the best one is found."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from perfdoc.knobs.check import check
from perfdoc.profiling.errors import UserError
from perfdoc.tune.run import axes_for, fixed_of, key_of, only_of
from perfdoc.tune.search import search
from perfdoc.tune.space import MBS, PP, RECOMPUTE, VPP, axes_of, changes_of, point_of, points, settings_of
from tests.simulator.hand_model import US, settings
from tests.tune.hand_job import facts, job

GIB = 2**30


def test_degrees_divide_the_gpus_and_chunks_the_layers() -> None:
    base = settings(layers=(6, 6))
    axes = axes_of(base, micro_batch_known=True, reduces=True, nvlink_domain=None, experts=None)
    # No communication over CP was captured: nothing says what it takes.
    assert (axes.values["tp"], axes.values["cp"]) == ([1, 2, 4], [1])
    assert axes.values["pp"] == [1, 2, 4]  # of 4 GPUs, and 12 layers divide by each
    assert axes.values["vpp"] == [1, 2, 3, 6]
    assert axes.values["mbs"] == [1, 2, 4, 8]  # of 4 micro-batches of 1 on 2 replicas
    found = list(points(axes))
    assert all(4 % p.pp == 0 and (12 // p.pp) % p.vpp == 0 for p in found if p.first is None)
    assert {(p.pp, p.vpp) for p in found if p.first is None} == {
        *((1, 1), (2, 1), (2, 2), (2, 3), (2, 6), (4, 1), (4, 3))
    }
    assert len(set(found)) == len(found)


def test_uneven_stages_keep_all_layers() -> None:
    base = settings(layers=(6, 6))
    axes = axes_of(base, micro_batch_known=False, reduces=True, nvlink_domain=None, experts=None)
    split = {settings_of(base, p).layers for p in points(axes) if p.first is not None and p.pp == 2}
    assert split == {(6 + i, 6 - i) for i in range(-4, 5) if i}
    four = {settings_of(base, p).layers for p in points(axes) if p.first is not None and p.pp == 4}
    assert {(2, 4, 4, 2), (4, 3, 3, 2)} <= four
    assert all(sum(n) == 12 and n[1] == n[2] for n in four)
    # Stages that differ now may become even, which even ones are already.
    odd = axes_of(
        settings(layers=(7, 5)), micro_batch_known=False, reduces=True, nvlink_domain=None, experts=None
    )
    assert (6, 6) in {(p.first, p.last) for p in points(odd)}
    assert (6, 6) not in {(p.first, p.last) for p in points(axes)}


def test_other_degrees_keep_the_global_batch() -> None:
    base = settings()
    new = settings_of(base, replace(point_of(base), pp=1, mbs=2))
    assert (new.dp, new.micro_batches, new.mbs, new.layers) == (4, 1, 2, (4,))
    assert changes_of(point_of(base), replace(point_of(base), pp=1, mbs=2), new, base) == {
        PP: 1,
        MBS: 2,
        "data_parallel_size": 4,
    }
    with pytest.raises(ValueError, match="8 sequences"):
        settings_of(base, replace(point_of(base), mbs=3))


def test_chunks_bring_overlapped_messages() -> None:
    base = settings()
    point = replace(point_of(base), vpp=2)
    new = settings_of(base, point)
    assert new.messages_overlap
    assert changes_of(point_of(base), point, new, base) == {VPP: 2, "overlap_p2p_comm": True}


def test_the_best_of_every_combination_comes_first() -> None:
    one = job()
    found = search(one, axes_for(one, [], {}))
    assert found.method == "exhaustive"
    best = found.tried[0]
    # Without stages there is no bubble: two micro-batches of 4 x 300 us and both ends, 160 us.
    assert (best.settings.pp, best.settings.dp, best.settings.mbs) == (1, 4, 1)
    assert best.step_ns == pytest.approx(2 * 1360 * US)
    for tried in found.tried:
        assert tried.step_ns == one.models.model.step_ns(tried.settings) >= best.step_ns
        assert not check(one.configuration, tried.changes)
    assert sum(r.count for r in found.left_out) + len(found.tried) == found.combinations


def test_what_a_constraint_forbids_is_left_out_with_its_reason() -> None:
    one = job(num_layers_in_first_pipeline_stage=1, num_layers_in_last_pipeline_stage=3)
    found = search(one, axes_for(one, [VPP], {}))
    assert [t.settings.vpp for t in found.tried] == [1]
    (left,) = found.left_out
    assert (left.kind, left.count) == ("forbidden", 1)
    assert left.reason == check(one.configuration, {VPP: 2})[0].words


def test_batched_messages_are_given_up_for_overlapped_ones() -> None:
    one = job(batch_p2p_comm=True)
    best = search(one, axes_for(one, [VPP], {})).tried[0]
    assert best.changes == {VPP: 2, "overlap_p2p_comm": True, "batch_p2p_comm": False}


def test_modules_of_selective_recomputation_are_taken_back() -> None:
    one = job(recompute_granularity=None, recompute_modules=("core_attn",))
    (_, full) = search(one, axes_for(one, [RECOMPUTE], {})).tried
    assert full.changes == {
        **{RECOMPUTE: "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        "recompute_modules": None,
    }


def test_what_does_not_fit_is_not_offered() -> None:
    roomy = job(memory_bytes=80 * GIB)
    need = {t.settings.pp: t.need_bytes or 0 for t in search(roomy, axes_for(roomy, [PP], {})).tried}
    assert need[1] > need[2]
    # 0.7 of it lies between what one stage needs and what two need.
    tight = job(memory_bytes=round((need[1] + need[2]) / 2 / 0.7))
    found = search(tight, axes_for(tight, [PP], {}))
    assert 1 not in [t.settings.pp for t in found.tried]
    assert any(r.kind == "memory" for r in found.left_out)


def test_what_the_model_cannot_predict_is_counted() -> None:
    # 3 micro-batches on each of two stages: no multiple of the stages, as chunks need.
    one = job(known=facts(global_batch_sequences=6))
    made = replace(one.models.model, settings=settings(micro_batches=3))
    one = replace(one, models=replace(one.models, model=made))
    found = search(one, axes_for(one, [VPP], {}))
    assert [t.settings.vpp for t in found.tried] == [1]
    (left,) = found.left_out
    assert (left.kind, left.count) == ("not predicted", 1)


def test_only_and_fix_narrow_the_search() -> None:
    one = job()
    assert {t.settings.vpp for t in search(one, axes_for(one, [VPP], {})).tried} == {1, 2}
    assert all(t.settings.pp == 2 for t in search(one, axes_for(one, [VPP], {})).tried)
    fixed = search(one, axes_for(one, [], {MBS: 2})).tried
    assert {t.settings.mbs for t in fixed if t.changes} == {2}


def test_degrees_that_nobody_knows_stay() -> None:
    one = job(known=facts(tp=None))
    assert all(t.settings.pp == 2 for t in search(one, axes_for(one, [], {})).tried)
    with pytest.raises(UserError, match="not all known"):
        axes_for(one, [], {PP: 1})


def test_a_sampled_search_finds_the_same() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    one = job()
    axes = axes_for(one, [], {})
    whole, some = search(one, axes), search(one, axes, exhaustive_max=1, trials=60)
    assert some.method == "sampled"
    assert some.tried[0].step_ns == whole.tried[0].step_ns
    assert search(one, axes, exhaustive_max=1, trials=60).tried == some.tried  # by a fixed seed


def test_a_large_space_without_optuna_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    one = job()
    with pytest.raises(UserError, match=r"pip install .*tune\]'"):
        search(one, axes_for(one, [], {}), exhaustive_max=1)


def test_keys_by_either_name() -> None:
    assert only_of(["vpp,mbs", PP]) == [VPP, MBS, PP]
    assert fixed_of(["tp=8 vpp=none", f"{RECOMPUTE}=full"]) == {
        key_of("", "tp"): 8,
        VPP: None,
        RECOMPUTE: "full",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [(["vp=2"], "did you mean"), (["tp"], "key=value"), (["tp=0"], "tp=0"), (["tp=x"], "tp=x")],
)
def test_a_wrong_fix_is_told(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        fixed_of(words)
