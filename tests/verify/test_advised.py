"""Which settings a verification makes, what it refuses to, and that all advice can be run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from perfdoc.compare.runs import run_manifest
from perfdoc.compare.verify.advised import Advised, advised, arms_of, rule_codes
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.values import read_value
from perfdoc.profiling.errors import UserError
from perfdoc.results import Diagnosis
from perfdoc.rules.engine.advisable import advisable
from perfdoc.rules.engine.registry import own_rules
from perfdoc.trainer.config.resolve import KEYS, resolve, why_refused
from perfdoc.trainer.constraints import PACKAGES
from perfdoc.trainer.layout import plan
from tests.rules.examples import examples
from tests.verify.planted import WORKERS, diagnosis_of, fires, replayed, run_directory, setting

SETTINGS = Configuration(values={"tensor_model_parallel_size": 1}, dialect="perfdoc", complete=True)


@pytest.fixture
def diagnosis(tmp_path: Path) -> Diagnosis:
    return diagnosis_of(
        tmp_path / "x",
        fires("PD203", setting(WORKERS, "2", now="0"), setting(WORKERS, "8"), gain=replayed(8, 10, 12)),
        fires("PD202", setting("manual_gc", "true"), setting("manual_gc_interval", "100"),
              gain=replayed(1, 2, 3)),
        fires("PD101", setting("sequence_parallel", "true", forbidden="it needs tensor parallelism")),
        fires("PD303", remedy="Look at rank 3."),
        fires("PD110", setting(WORKERS, "4"), gain=replayed(1, 1, 1)),
        fires("PD204", setting("sequence_parallel", "true")),
        fires("PD301", setting(WORKERS, "many")),
        fires("PD901", setting("no_such_knob", "1")),
    )  # fmt: skip


def taken(diagnosis: Diagnosis, codes: str, *knobs: str) -> Advised:
    return advised(diagnosis, rule_codes(codes), knobs, SETTINGS)


def test_all_that_is_allowed_is_made_and_the_first_of_several_for_one_knob(diagnosis: Diagnosis) -> None:
    one = taken(diagnosis, "pd203")
    assert (one.changes, one.predicted.mid_ms) == ({WORKERS: 2}, 10)
    both = taken(diagnosis, "PD202")
    assert both.changes == {"manual_gc": True, "manual_gc_interval": 100}
    assert (both.predicted.method, both.predicted.high_ms) == ("replay", 3)
    # Which of its pieces gains those 3 ms is not known: of one alone they are the most.
    one_piece = taken(diagnosis, "PD202", "manual_gc")
    assert one_piece.changes == {"manual_gc": True}
    assert (one_piece.predicted.method, one_piece.predicted.mid_ms) == ("ceiling", None)
    assert one_piece.predicted.high_ms == 3


def test_a_piece_that_is_made_gains_what_was_predicted_for_it(tmp_path: Path) -> None:
    both = ("overlap_grad_reduce", "overlap_param_gather")
    pieces = [
        setting("bucket_size", "100", gain=replayed(1, 2, 3)),
        setting("bucket_size", "1", gain=replayed(7, 8, 9)),  # not made: the first for a knob is
        *(setting(k, "true", gain=replayed(4, 5, 6), together=[o for o in both if o != k]) for k in both),
        setting("grad_reduce_in_fp32", "false"),
    ]
    found = diagnosis_of(tmp_path / "x", fires("PD101", *pieces, gain=replayed(7, 8, 9)))

    def of(*knobs: str) -> tuple[str, float | None, float | None]:
        said = taken(found, "PD101", *knobs).predicted
        return said.method, said.mid_ms, said.high_ms

    assert of("bucket_size") == ("replay", 2, 3)
    assert of(*both) == ("replay", 5, 6)
    assert of(both[0]) == ("ceiling", None, 6)  # predicted with the other
    assert of("bucket_size", *both) == ("replay", 5, 6)
    assert of("grad_reduce_in_fp32") == ("none", None, None)


def test_what_changes_the_work_of_a_step_is_not_measured_by_its_time(tmp_path: Path) -> None:
    """Twice the batch takes twice as long, whatever it gains."""
    batch = setting("global_batch_size", "64")
    chunks = setting("overlap_p2p_comm", "true", gain=replayed(1, 2, 3))
    found = diagnosis_of(tmp_path / "x", fires("PD301", chunks, batch), fires("PD380", batch))
    made = taken(found, "PD301")
    assert (made.changes, made.left_out) == ({"overlap_p2p_comm": True}, ["global_batch_size"])
    assert made.predicted.method == "replay"
    for codes, knobs in (("PD380", ()), ("PD301", ("global_batch_size",))):
        with pytest.raises(UserError, match="global_batch_size: changes the work of a step"):
            taken(found, codes, *knobs)


def test_gains_of_several_rules_are_not_added(diagnosis: Diagnosis) -> None:
    # 8 to 12 ms and 1 to 3 ms: no less than the best of them, no more than all; nothing in the middle.
    found = taken(diagnosis, "PD203,PD202").predicted
    assert (found.method, found.low_ms, found.mid_ms, found.high_ms) == ("bounds", 8, None, 15)
    assert taken(diagnosis, "PD203").predicted.method == "replay"


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ("PD999", "no rule PD999"),
        ("PD101", "forbidden here: it needs tensor parallelism"),
        ("PD303", "advises no setting here, so nothing can be applied. It says: Look at rank 3."),
        ("PD203,PD110", "another rule wants another"),
        ("PD204", "do not go together"),
        ("PD301", "takes a whole number"),
        ("PD901", "is not a setting in the catalogue"),
        (" , ", "codes of rules"),
    ],
)
def test_refusals_are_one_line(diagnosis: Diagnosis, codes: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        taken(diagnosis, codes)
    assert "\n" not in str(error.value)


def test_both_configurations_are_the_runs_own_but_for_the_change(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", 100, "save=somewhere", "hidden_size=64", "lr=1e-4")
    arms = arms_of(run_manifest(run), {WORKERS: 2}, steps=30)
    sides = []
    for name, text in (("before", arms.before), ("after", arms.after)):
        (tmp_path / f"{name}.yaml").write_text(text)
        sides.append(resolve(str(tmp_path / f"{name}.yaml")).config)
    before, after = sides
    assert after.data.dataloader_num_workers == 2
    assert before.data.dataloader_num_workers == 0
    assert (before.model, before.optimizer.lr) == (after.model, 1e-4)
    assert before.model.hidden_size == 64
    assert (before.training.train_iters, before.training.eval_interval) == (30, None)
    assert before.checkpoint.save is None
    assert [(s.knob, s.before, s.after) for s in arms.settings] == [(WORKERS, "0", "2")]


def test_data_parallelism_takes_the_ranks_that_another_degree_leaves(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", 100)
    arms = arms_of(run_manifest(run), {"tensor_model_parallel_size": 2}, steps=30)
    assert {(s.knob, s.before, s.after) for s in arms.settings} == {
        ("tensor_model_parallel_size", "1", "2"),
        ("data_parallel_size", "2", "null"),
    }
    assert arms.world_size == 2


@pytest.mark.parametrize(
    ("changes", "nodes", "ranks", "words"),
    [
        ({"nccl_nvls_enable_typo": 1}, 1, None, "not a setting of perfdoc's trainer"),
        ({WORKERS: 0}, 1, None, "has these settings already"),
        ({WORKERS: 2}, 2, None, "2 machines"),
        ({WORKERS: 2}, 1, 1_000_000, "1000000 ranks"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused(
    tmp_path: Path, changes: dict[str, int], nodes: int, ranks: int | None, words: str
) -> None:
    manifest = run_manifest(run_directory(tmp_path / "run", 100, nodes=nodes))
    if ranks is not None:
        layout = msgspec.structs.replace(manifest.layout, world_size=ranks)
        manifest = msgspec.structs.replace(manifest, layout=layout)
    with pytest.raises(UserError, match=words):
        arms_of(manifest, changes, steps=30)


EXAMPLES = json.loads((Path(__file__).parents[2] / "docs/rules/examples.json").read_text(encoding="utf-8"))
RANKS = 16


def _advised(code: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for piece in EXAMPLES[code]["advice"]:
        knob, _, change = piece["change"].partition(": ")
        change = change.removesuffix(", if not set already")
        value = read_value(catalogue()[knob], change.split(" → ")[-1])
        assert isinstance(value, str | int | float | bool | tuple | None), knob
        found[knob] = value
    return found


def _planned(settings: Sequence[str]) -> None:
    # Of both kinds of graphs the trainer has one, and says so where the other is given.
    local = [re.sub("^(cuda_graph_impl=).*", r"\1local", each) for each in settings]
    config = resolve("llama3_8b", ["data_parallel_size=null", *local]).config
    plan(config, RANKS, "cuda", PACKAGES)


def _override(knob: str, value: Value) -> str:
    return f"{knob}={json.dumps(list(value) if isinstance(value, tuple) else value)}"


@pytest.mark.parametrize("code", [code for code, example in EXAMPLES.items() if example["advice"]])
def test_what_a_rule_advises_can_be_run(code: str) -> None:
    """On 16 GPUs, TP 2, a dense model of 32 layers and what the example presupposes. What is of other
    frameworks, the trainer refuses with the reason."""
    advised, job = _advised(code), examples()[code].presupposes
    foreign = advised.keys() - KEYS.keys()
    assert all(why_refused(knob) for knob in foreign)
    _planned(job)
    if advised.get("cuda_graph_impl") == "transformer_engine":
        advised["cuda_graph_impl"] = "local"  # the trainer refuses the other, and names this one
    _planned([*job, *(_override(k, v) for k, v in advised.items() if k not in foreign)])


def test_a_rule_that_can_advise_a_setting_does_on_its_example() -> None:
    silent = {r.meta.code for r in own_rules() if advisable(r) and not EXAMPLES[r.meta.code]["advice"]}
    # Its example is a slow GPU; what it sets is for uneven experts, below and in test_moe_rules.py.
    assert silent == {"PD303"}


def test_what_evens_out_experts_can_be_run() -> None:
    knobs = advisable(next(rule for rule in own_rules() if rule.meta.code == "PD303"))
    tried: dict[str, Value] = {
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
        "moe_expert_capacity_factor": 1.0,
    }
    assert {*knobs} == {*tried}
    experts = ["num_moe_experts=8", "expert_model_parallel_size=8"]
    _planned([*experts, *(_override(knob, value) for knob, value in tried.items())])
