"""Whatever a file holds, linting it ends in findings or in one line."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.knobs.knob import DIALECTS
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.naming.meaning import nearest
from perfdoc.knobs.reading.entry import NotAConfigurationError
from tests.amount import tries

NAMES = sorted(
    {s.name for k in catalogue().values() for s in k.spellings}
    | set(catalogue())
    | {f.name for k in catalogue().values() for f in k.former}
)
ODD = [
    "0",
    "-1",
    "1",
    "2",
    "4e7",
    "1e400",
    "nan",
    "true",
    "null",
    "[]",
    "[a, b]",
    "p2p",
    "full",
    "9" * 40,
    "<int>",
]
ODD += [
    *("$X", "${X:-2}", "expandable_segments:True", "fp32", "torch.bfloat16", "'", '"', "\\", "{", "a=b", "#"),
    "",
]
VALUES = st.one_of(st.sampled_from(ODD), st.text(max_size=8))
ENDINGS = st.sampled_from(["x.yaml", "x.sh", "x.py", "x.json", "x.txt", "x.toml", "x.log", ""])
CALM = settings(max_examples=tries(50, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def try_lint(text: str, name: str, dialect: object = None) -> None:
    said = ""
    try:
        report = lint(text, name, dialect=dialect, unknown=True)  # type: ignore[arg-type]
    except NotAConfigurationError as refused:
        said = str(refused)
    if said:
        assert "\n" not in said
        return
    for finding in report.findings:
        assert finding.line >= 1
        assert finding.message
        assert finding.why


@CALM
@given(
    lines=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(["=", ": ", " ", " = "]), VALUES), max_size=12
    ),
    ending=ENDINGS,
    dialect=st.sampled_from([None, *DIALECTS]),
)
def test_lines_of_known_names_and_odd_values(
    lines: list[tuple[str, str, str]], ending: str, dialect: object
) -> None:
    try_lint("\n".join(a + b + c for a, b, c in lines), ending, dialect)


@CALM
@given(
    data=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(NAMES + ["a", "+b", "--c"]), inner, max_size=4),
        ),
        max_leaves=25,
    )
)
def test_any_yaml_tree(data: object) -> None:
    try_lint(yaml.safe_dump(data), "x.yaml")


@CALM
@given(
    chosen=st.dictionaries(
        st.sampled_from(
            [k.id for k in catalogue().values() if k.type in ("int", "bool") and k.spelled("megatron_bridge")]
        ),
        st.integers(0, 9),
        min_size=1,
        max_size=12,
    )
)
def test_what_is_written_is_what_is_read(chosen: dict[str, int]) -> None:
    # By each place of a knob, since Bridge may turn on what is off in one; a value that its range does not
    # admit is a finding and not a value.
    knobs = catalogue()
    text = "".join(f"{s.name}={v}\n" for k, v in chosen.items() for s in knobs[k].spelled("megatron_bridge"))
    report = lint(text, "x.args", dialect="megatron_bridge")
    wrong = {f.knob for f in report.findings if f.code == "PL201"}
    assert set(report.values) | wrong == set(chosen)
    for name, value in report.values.items():
        assert value == (bool(chosen[name]) if knobs[name].type == "bool" else chosen[name])


@given(
    name=st.sampled_from(NAMES),
    where=st.integers(0, 60),
    letter=st.characters(min_codepoint=97, max_codepoint=122),
)
def test_one_slip_of_the_pen_is_traced_back(name: str, where: int, letter: str) -> None:
    if len(name.removeprefix("--")) < 8:
        return
    start = 2 if name.startswith("--") else 0
    place = start + where % (len(name) - start)
    slip = name[:place] + letter + name[place:]
    found = nearest(slip, NAMES)
    assert slip in NAMES or found is not None


def test_published_recipes_are_read_whole() -> None:
    # The trainer's own configurations, which are sound, give no finding.
    folder = Path(__file__).parents[2] / "trainer" / "configs"
    files = sorted(folder.glob("*.yaml"))
    assert files
    for path in files:
        report = lint(path.read_text(encoding="utf-8"), str(path), dialect="perfdoc")
        assert [f for f in report.findings if f.severity != "note"] == [], path.name
