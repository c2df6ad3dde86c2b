"""What a shell offers after <TAB>."""

from __future__ import annotations

from perfdoc.cli import completion
from perfdoc.knobs.load import catalogue
from perfdoc.rules.engine.registry import all_rules


def names(offered: completion.Offered) -> list[str]:
    return [name for name, _ in offered]


def test_rules_are_those_that_run_with_their_titles() -> None:
    own = {r.meta.code: r.meta.title for r in all_rules() if type(r.meta).__module__.startswith("perfdoc.")}
    assert dict(completion.rule_codes("")) == own
    assert names(completion.rule_codes("pd10")) == [code for code in sorted(own) if code.startswith("PD10")]
    assert names(completion.rule_codes("PD101,PD20"))[0] == "PD101,PD201"


def test_knobs_are_those_of_the_catalogue() -> None:
    knobs = [k.id for k in catalogue().values() if k.kind == "knob"]
    assert names(completion.knob_names("")) == knobs
    assert names(completion.knob_names("bucket_s")) == ["bucket_size"]
