"""The diagnosis as JUnit XML: one test case a rule."""

from __future__ import annotations

from collections.abc import Collection
from xml.etree import ElementTree

from perfdoc.reports.advice import lines_of
from perfdoc.reports.gaps import RULE_STATES
from perfdoc.reports.github import message_of, named
from perfdoc.reports.names import prose, shorten
from perfdoc.results import Diagnosis, RuleResult

_WORDS = dict(RULE_STATES)
_LIMIT = 400


def render_junit(diagnosis: Diagnosis, fail_on: Collection[str] = ()) -> str:
    """A rule that fires and that --fail-on names is a failure; one that it names and that failed to run is an
    error. Other rules that fire pass, with what they found as their output, since JUnit has no warnings; what
    has no answer is skipped with the reason."""
    suite = ElementTree.Element("testsuite", {"name": "perfdoc"})
    counts = {"tests": len(diagnosis.rules), "failures": 0, "errors": 0, "skipped": 0}
    for rule in diagnosis.rules:
        name = f"{shorten(rule.code, 48)} {shorten(rule.title)}"
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "perfdoc.rules", "name": name, "time": "0"}
        )
        kind = _fill(case, rule, named(rule, fail_on))
        if kind:
            counts[kind] += 1
    suite.attrib |= {key: str(value) for key, value in counts.items()} | {"time": "0"}
    suites = ElementTree.Element(
        "testsuites", {"name": "perfdoc"} | {k: str(counts[k]) for k in ("tests", "failures", "errors")}
    )
    suites.append(suite)
    ElementTree.indent(suites)
    body = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _fill(case: ElementTree.Element, rule: RuleResult, fails: bool) -> str:
    """What became of the rule, into its case; under which count it goes, if any."""
    reason = prose(rule.reason, _LIMIT)
    if rule.state == "fires" and fails:
        failure = ElementTree.SubElement(
            case, "failure", {"message": message_of(rule), "type": shorten(rule.code, 48)}
        )
        failure.text = _whole(rule)
        return "failures"
    if rule.state == "error" and fails:
        ElementTree.SubElement(case, "error", {"message": reason, "type": shorten(rule.code, 48)})
        return "errors"
    if rule.state == "fires":
        word = "warning" if rule.level == "problem" else "information"
        ElementTree.SubElement(case, "system-out").text = f"{word}: {_whole(rule)}"
    elif rule.state != "passes":
        ElementTree.SubElement(case, "skipped", {"message": f"{_WORDS[rule.state]}: {reason}"})
        return "skipped"
    return ""


def _whole(rule: RuleResult) -> str:
    """All that the rule says."""
    lines = [prose(rule.reason)]
    lines += [f"{shorten(fact.label)}: {shorten(fact.value)}" for fact in rule.evidence]
    lines += [f"{label}: {prose(words)}" for label, words in lines_of(rule)]
    return "\n".join(lines)
