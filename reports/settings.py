"""Settings to copy: every report prints those of a row of the ranking, in the job's own spelling first."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.records import dataclass
from perfdoc.reports.advice import OWN_WORDS
from perfdoc.reports.ranking import Ranked
from perfdoc.results import Advice, Diagnosis
from perfdoc.results.names import columns, shorten
from perfdoc.results.ranking import Setting

DIALECT_TITLES = {
    "megatron_bridge": "Megatron-Bridge",
    "megatron_core": "megatron-core",
    "megatron_lm": "Megatron-LM",
    "nemo": "NeMo",
    "verl": "verl",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "pytorch": "PyTorch",
    "vllm": "vLLM",
    "jax": "JAX",
    "env": "environment",
    "perfdoc": "perfdoc run",
}
"""In the order of the page."""
_EXAMPLE = "megatron_lm"
_SETTINGS = 5
_AS_NAMED = "as perfdoc names it"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """Settings as one dialect writes them."""

    dialect: str
    title: str
    lines: tuple[tuple[str, str], ...]
    """(title, text) of each setting; one that the dialect has no name for, such as a variable, is of
    another."""


def snippets(advice: Advice) -> list[Spelling]:
    """Every spelling of one piece, none where the configuration forbids it."""
    setting = Setting(knob=advice.knob, value=advice.to_value, dialects=advice.dialects)
    return [] if advice.forbidden else _spelled([setting])


def spellings(settings: Sequence[Setting], diagnosis: Diagnosis) -> list[Spelling]:
    """All settings of a thing to do in every spelling of the main one: the job's own first, then the words of
    a program, then the others. Empty where no setting makes it."""
    own = diagnosis.job.dialect if diagnosis.job is not None else None
    example = not knows_settings(diagnosis)
    return sorted(
        _spelled(settings),
        key=lambda s: (
            s.dialect != own,
            s.dialect not in OWN_WORDS,
            example and s.dialect != "env",
            example and s.dialect != _EXAMPLE,
        ),
    )


def _spelled(settings: Sequence[Setting]) -> list[Spelling]:
    if not settings:
        return []
    if not settings[0].dialects:
        lines = tuple((_AS_NAMED, shorten(f"{s.knob}={s.value}", 400)) for s in settings)
        return [Spelling(dialect="other", title=_AS_NAMED, lines=lines)]
    order = [*(d for d in DIALECT_TITLES if d in settings[0].dialects)]
    order += [d for d in settings[0].dialects if d not in DIALECT_TITLES]
    return [
        Spelling(
            dialect=dialect if dialect in DIALECT_TITLES else "other",
            title=_title(dialect),
            lines=tuple(dict.fromkeys(_line(setting, dialect) for setting in settings)),
        )
        for dialect in order
    ]


def _line(setting: Setting, dialect: str) -> tuple[str, str]:
    written = setting.dialects
    own = next((d for d in (dialect, "env") if d in written), next(iter(written)))
    return _title(own), shorten(written[own], 400)


def _title(dialect: str) -> str:
    return DIALECT_TITLES.get(dialect, shorten(dialect, 48))


def knows_settings(diagnosis: Diagnosis) -> bool:
    """Whether it is known whose settings the job has; else those of one framework are an example."""
    job = diagnosis.job
    return job is None or job.dialect not in (None, "env") or bool(job.framework)


def setting_lines(ranked: Ranked, diagnosis: Diagnosis, room: int) -> list[str]:
    """`set (Megatron-LM): --overlap-grad-reduce`, a line a setting, the main one first; none where no setting
    makes it.

    A setting stands at the end of its line, to be copied: one with a word wider than room is left to the
    report.
    """
    spelled = spellings(ranked.row.settings, diagnosis)
    if not spelled:
        return []
    first = spelled[0]
    word = "set" if knows_settings(diagnosis) or first.dialect in ("env", "other") else "for example"
    before = f"{word} ({first.title}): "
    main, *others = first.lines
    lines = [before + main[1]]
    for title, text in others:
        lines.append((" " * columns(before) if title == first.title else f"set ({title}): ") + text)
    if max(map(columns, main[1].split()), default=0) > room:
        return [f"{before}too long for this line; the report has it"]
    shown = [line for line in lines[:_SETTINGS] if max(map(columns, line.split())) <= room]
    more = len(lines) - len(shown)
    return [*shown, f"and {more} more: --full"] if more else shown
