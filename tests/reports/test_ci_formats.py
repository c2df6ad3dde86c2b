"""JUnit XML and GitHub annotations: what fails, what warns, and that no name breaks their form."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from perfdoc.reports.annotations import command
from perfdoc.reports.ci import render_github, render_junit
from perfdoc.results import Diagnosis
from tests.reports import build, hostile
from tests.reports.build_choices import with_choices

MADE = with_choices(build.one_rank())
"""Fires: PD202, PD203, PD301, PD501, and PD902 for information. PD402 failed to run."""
ANNOTATION = re.compile(r"::(error|warning|notice) title=([^:,]*)::([^\r\n]*)\Z")
ATTRIBUTES = {
    "testsuites": {"name", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time"},
    "testcase": {"classname", "name", "time"},
    "failure": {"message", "type"},
    "error": {"message", "type"},
    "skipped": {"message"},
    "system-out": set(),
}
"""Of the elements that readers of JUnit XML know."""


def _suite(made: Diagnosis, fail_on: Collection[str]) -> ElementTree.Element:
    root = ElementTree.fromstring(render_junit(made, fail_on))
    for element in root.iter():
        assert set(element.attrib) == ATTRIBUTES[element.tag]
    (suite,) = root
    assert len(suite) == len(made.rules) == int(suite.attrib["tests"]) == int(root.attrib["tests"])
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.attrib[count]) == len(suite.findall(f".//{tag}"))
    assert {case.attrib["classname"] for case in suite} == {"perfdoc.rules"}
    return suite


def _by_code(suite: ElementTree.Element) -> dict[str, str]:
    return {case.attrib["name"].split()[0]: ",".join(each.tag for each in case) for case in suite}


def test_named_rules_fail_and_the_others_say_what_they_found() -> None:
    calm = {"PD202": "system-out", "PD203": "system-out", "PD301": "system-out", "PD501": "system-out"}
    others = {"PD902": "system-out", "PD102": "", "PD401": "skipped", "PD402": "skipped"}
    # build.one_rank has PD301 twice: here it fires, there it does not apply.
    made = replace(MADE, rules=[r for r in MADE.rules if r.state != "not_applicable"])
    assert _by_code(_suite(made, ())) == calm | others
    assert _by_code(_suite(made, {"PD203", "PD402", "PD102"})) == calm | others | {
        "PD203": "failure",
        "PD402": "error",
    }
    every = _suite(made, {"ANY"})
    assert (every.attrib["failures"], every.attrib["errors"]) == ("5", "1")


def test_a_failure_says_what_to_do_and_what_it_saves() -> None:
    (failure,) = _suite(MADE, {"PD203"}).findall(".//failure")
    assert failure.attrib["message"] == (
        "batches arrive later than the step wants them. Prepare batches in processes of their own. "
        "Saves 10 ms per step (5 ms to 15 ms), predicted."
    )
    assert failure.text is not None
    assert "idle behind data: 6.5 %" in failure.text
    assert "verify: Run again." in failure.text


def test_annotations_are_errors_where_named_and_notices_where_they_inform() -> None:
    lines = [ANNOTATION.match(line) for line in render_github(MADE, {"PD203"}).splitlines()]
    found = [(match[1], match[2]) for match in lines if match]
    assert len(found) == len(lines)
    assert found == [
        ("error", "perfdoc PD203 Waiting for data"),
        ("warning", "perfdoc PD202 Garbage collection inside steps"),
        ("warning", "perfdoc PD501 Fragmented memory"),
        ("warning", "perfdoc PD301 A long bubble"),
        ("warning", "perfdoc PD402 Exposed data-parallel communication"),
        ("warning", "perfdoc few_steps"),
        ("notice", "perfdoc"),
        ("notice", "perfdoc PD902 Something to try"),
    ]
    assert lines[0] is not None
    assert lines[0][3].startswith("batches arrive later")
    assert [line.split()[0] for line in render_github(MADE, {"ANY"}).splitlines()].count("::error") == 5


def test_a_workflow_command_holds_what_it_is_given() -> None:
    assert command("warning", "a: b, c", "50 %\nnew\r") == "::warning title=a%3A b%2C c::50 %25%0Anew%0D"


def test_more_annotations_than_github_shows_are_counted() -> None:
    rules = [replace(MADE.rules[1], code=f"PD{100 + i}") for i in range(14)]
    lines = render_github(replace(MADE, rules=rules, quality=[])).splitlines()
    assert len(lines) == 10 + 1 + 1
    assert lines[10] == "4 more of kind warning: see the report."


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_names_break_neither_form(text: str) -> None:
    for added in (text, "]]>" + text, "\n::set-output name=x::" + text):
        made = hostile.hostile_choices(added)
        suite = _suite(made, {"ANY"})
        assert len(suite.findall(".//failure")) == sum(rule.state == "fires" for rule in made.rules)
        lines = render_github(made, {"ANY"}).splitlines()
        assert all(ANNOTATION.match(line) for line in lines)
        assert len(lines) == len(render_github(hostile.hostile_choices("harmless"), {"ANY"}).splitlines())
