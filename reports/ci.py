"""The diagnosis for CI: annotations of a GitHub workflow, and JUnit XML with one test case a rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal
from xml.etree import ElementTree

from perfdoc.reports.advice import change_title, gain_words, lines_of
from perfdoc.reports.annotations import command
from perfdoc.reports.gaps import RULE_STATES
from perfdoc.reports.ranking import in_order
from perfdoc.reports.savings import next_said
from perfdoc.reports.sections.section import stopped
from perfdoc.results import Diagnosis, RuleResult
from perfdoc.results.names import prose, sentences, shorten
from perfdoc.results.ranking import allowed_in

ANY = "ANY"
"""In place of codes: every rule."""
_LIMIT = 400
_ANNOTATIONS = 10
"""Of each kind; GitHub shows no more of a step."""


def named(rule: RuleResult, fail_on: Collection[str]) -> bool:
    """Whether this rule fails the job where it fires."""
    return rule.code in fail_on or ANY in fail_on


def message_of(rule: RuleResult) -> str:
    """What a rule that fires found, what to do, and what that saves, in one line."""
    piece = next((f"Set {change_title(piece)}" for piece in allowed_in(rule)), "")
    do = piece or rule.action or next(iter(sentences(rule.remedy)), f"Investigate: {rule.title}")
    said = [stopped(prose(rule.reason, _LIMIT)), stopped(prose(do, _LIMIT).replace("`", ""))]
    return " ".join([*said, gain_words(rule.gain, rule.gain_per)]).strip()


def render_github(diagnosis: Diagnosis, fail_on: Collection[str] = ()) -> str:
    """An annotation for every rule that fires: an error where --fail-on names it, else a warning, or a notice
    where the rule only informs; for rules that failed to run and what is wrong with the captures a warning;
    and the verdict as a notice."""
    found: dict[Literal["error", "warning", "notice"], list[str]] = {"error": [], "warning": [], "notice": []}
    first = f" Next: {words}" if (words := next_said(diagnosis)[1]) else ""
    said = f"{prose(diagnosis.verdict, _LIMIT)}{prose(first, _LIMIT)}"
    found["notice"].append(command("notice", "perfdoc", said))
    for rule in in_order(diagnosis, [r for r in diagnosis.rules if r.state == "fires"]):
        calm: Literal["warning", "notice"] = "warning" if rule.level == "problem" else "notice"
        kind: Literal["error", "warning", "notice"] = "error" if named(rule, fail_on) else calm
        found[kind].append(command(kind, f"perfdoc {_title(rule)}", message_of(rule)))
    for rule in diagnosis.rules:
        if rule.state == "error":
            said = f"The rule failed to run: {prose(rule.reason, _LIMIT)}"
            found["warning"].append(command("warning", f"perfdoc {_title(rule)}", said))
    for item in diagnosis.quality:
        title = f"perfdoc {shorten(item.code, 64)}"
        found["warning"].append(command("warning", title, prose(f"{item.message} {item.remedy}", _LIMIT)))
    lines = []
    for kind, commands in found.items():
        lines += commands[:_ANNOTATIONS]
        if len(commands) > _ANNOTATIONS:
            lines.append(f"{len(commands) - _ANNOTATIONS} more of kind {kind}: see the report.")
    return "\n".join(lines) + "\n"


def _title(rule: RuleResult) -> str:
    return f"{shorten(rule.code, 48)} {shorten(rule.title)}"


_WORDS = dict(RULE_STATES)


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
