"""Set lines of every rule, in every dialect, put into sound jobs: lint and megatron-core's classes agree."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import DIALECTS, MEGATRONS, PYTORCHS, Dialect, Value
from perfdoc.knobs.lint.finding import Finding
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.settings import read_configuration
from perfdoc.results.headline import Framework
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import settle, value_of
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.registry import applied, own_rules
from tests.amount import some
from tests.megatron_core import import_core
from tests.rules.examples import examples
from tests.rules.set_lines import file_of, jobs, lines_of, linted, printed, with_lines

CORES: tuple[Dialect, ...] = (*MEGATRONS, "perfdoc")
RULES = {rule.meta.code: rule for rule in own_rules()}
USUAL = ("PD101", "PD111", "PD201", "PD204", "PD207", "PD305", "PD317", "PD318", "PD340", "PD342", "PD404")
"""Rules whose advice has companions, or switches a framework on."""
CLASSES: Mapping[str, str] = {
    "TransformerConfig": "megatron.core.transformer.transformer_config",
    "DistributedDataParallelConfig": "megatron.core.distributed.distributed_data_parallel_config",
    "OptimizerConfig": "megatron.core.optimizer.optimizer_config",
}


@cache
def example_case(code: str, folder: Path) -> Case:
    folder.mkdir()
    return examples()[code].case(folder)


def framework(dialect: Dialect, settings: Mapping[str, Value]) -> Framework:
    """Whose ranges a capture of the job shows."""
    of_pytorch = dialect in PYTORCHS or settings.get("verl_strategy", "megatron") != "megatron"
    return "pytorch" if of_pytorch else "megatron"


def advice_for(code: str, case: Case, own: Case) -> list[Advice]:
    """What a rule advises in a job; where it does not fire there, what it advises on its example, made to
    fit. Of all of it and of each piece with what belongs to it, those that are allowed."""
    pieces: Sequence[Advice] = applied(RULES[code], case).result.advice
    if not pieces:
        pieces = settle(case, [replace(p, gain=None) for p in RULES[code].evaluate(own).advice])
    return [piece for piece in pieces if not piece.forbidden]


def chosen(pieces: Sequence[Advice]) -> Iterator[list[Advice]]:
    """All pieces, and each with those that it names: what somebody may take of them."""
    taken: list[set[str]] = []
    for knobs in [{p.knob for p in pieces}, *({p.knob, *p.together} for p in pieces)]:
        if knobs not in taken:
            taken.append(knobs)
            yield [p for p in pieces if p.knob in knobs]


def refusals_of_core(values: Mapping[str, Value]) -> list[str]:
    """megatron-core's own words about a job of gated MLPs; what is only not installed here is none."""
    import torch

    found = []
    for name, module in CLASSES.items():
        own: Any = getattr(import_core(module), name)
        known = {field.name for field in dataclasses.fields(own)}
        fields: dict[str, Any] = {}
        for knob, value in values.items():
            for spelling in catalogue()[knob].spelled("megatron_core"):
                leaf = spelling.name.rpartition(".")[2]
                if leaf in known:
                    fields[leaf] = _as_core_has_it(knob, value)
        if name == "TransformerConfig":
            fields |= {"pipeline_dtype": torch.bfloat16, "gated_linear_unit": True}
            fields["activation_func"] = torch.nn.functional.silu
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                own(**fields)
            except (ImportError, TypeError):
                continue  # Transformer Engine's version is None
            except (ValueError, AssertionError) as error:
                found += [] if "install TE" in str(error) else [f"{name}: {error}"]
    return found


def _as_core_has_it(knob: str, value: Value) -> Any:
    import torch

    formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if catalogue()[knob].type == "dtype":
        return formats.get(str(value), value)
    return list(value) if isinstance(value, tuple) else value


def wrong_in(
    code: str, dialect: Dialect, settings: Mapping[str, Value], configuration: Configuration, folder: Path
) -> Iterator[str]:
    """What lint or megatron-core's classes have against the rule's advice in a job, or that nothing is
    printed for it."""
    own = example_case(code, folder / code)
    shown = framework(dialect, settings)
    captures = [replace(capture, framework=shown) for capture in own.captures]
    case = replace(own, captures=captures, configuration=configuration, as_given=None)
    lines = lines_of(settings, dialect)
    before = {(f.code, f.key) for f in linted(lines, dialect).findings}
    for pieces in chosen(advice_for(code, case, own)):
        texts = [printed(p, dialect) or p.dialects.get("pytorch", "") for p in pieces]
        # Around megatron-core's classes a program has settings of its own.
        if dialect != "megatron_core":
            yield from (
                f"nothing to write for {p.knob}" for p, text in zip(pieces, texts, strict=True) if not text
            )
        new = [text for p in pieces if (text := printed(p, dialect))]
        report = linted(with_lines(lines, new), dialect)
        yield from (f"{new}: {f.message}" for f in report.findings if is_new(f, before))
        if dialect in CORES and "num_layers" in settings:
            values = {**settings, **{p.knob: value_of(p) for p in pieces}}
            yield from (f"{new}: {words}" for words in refusals_of_core(values))


def is_new(finding: Finding, before: Collection[tuple[str, str]]) -> bool:
    """Whether it is more than a note, and not of the job without the advice."""
    return finding.severity != "note" and (finding.code, finding.key) not in before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


ALL = [(dialect, job) for dialect in DIALECTS if dialect != "env" for job in jobs(dialect)]
FEW = [("megatron_lm", "dense"), ("megatron_bridge", "experts"), ("nemo", "interleaved"), ("verl", "FSDP")]


@pytest.mark.parametrize(("dialect", "job"), some(ALL, FEW))
def test_what_any_rule_advises_is_accepted(dialect: Dialect, job: str, folder: Path, request: Any) -> None:
    settings = jobs(dialect)[job]
    text, name = file_of(lines_of(settings, dialect), dialect)
    sound = {"error"} if dialect == "perfdoc" else {"error", "warning"}  # which names what has no effect
    assert [f for f in linted(lines_of(settings, dialect), dialect).findings if f.severity in sound] == []
    if "num_layers" in settings:
        assert refusals_of_core(settings) == []
    file = folder / f"{dialect} {job} {name}"
    file.write_text(text)
    # The file is the whole job: what it does not say has its default.
    configuration = replace(read_configuration(file, dialect), complete=True)
    codes = sorted(examples()) if request.node.get_closest_marker("slow") else USUAL
    found = {c: [*wrong_in(c, dialect, settings, configuration, folder)] for c in codes}
    assert {code: words for code, words in found.items() if words} == {}


def test_a_wrong_line_is_seen(folder: Path) -> None:
    """The oracles are not blind: sequence parallelism without TP, and a setting without a name."""
    lines = lines_of(jobs("megatron_lm")["dense"], "megatron_lm")
    assert linted(with_lines(lines, ["--overlap-param-gather"]), "megatron_lm").findings
    assert refusals_of_core({**jobs("megatron_core")["dense"], "sequence_parallel": True})
