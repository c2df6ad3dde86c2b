"""What a shell offers after <TAB>: codes of rules, names of knobs, configurations and their settings.

A shell waits for it, so nothing heavy is imported: the titles of rules are read from their files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_CODE = re.compile(r"pd(\d{3})_\w+\.py")
_TITLE = re.compile(r'^    title="([^"]+)"', re.MULTILINE)

Offered = list[tuple[str, str]]
"""What can be typed, and what it is."""


def rule_codes(incomplete: str) -> Offered:
    """Codes of rules that begin so, in capitals or not; after a comma the next one of a list."""
    before, comma, last = incomplete.rpartition(",")
    found = {}
    for file in sorted((_package() / "rules" / "checks").glob("pd*.py")):
        if match := _CODE.fullmatch(file.name):
            title = _TITLE.search(file.read_text(encoding="utf-8"))
            found[f"PD{match[1]}"] = title[1] if title else ""
    return [(f"{before}{comma}{code}", title) for code, title in _beginning(last.upper(), found.items())]


def knob_names(incomplete: str) -> Offered:
    """Ids of the catalogue that begin so."""
    from perfdoc.knobs.load import catalogue

    return _beginning(incomplete, ((k.id, k.title) for k in catalogue().values() if k.kind == "knob"))


def configurations(incomplete: str) -> Offered:
    """Configurations that ship, and files of YAML."""
    from perfdoc.trainer.config.resolve import described_configs

    folder, slash, start = incomplete.rpartition("/")
    here = Path(folder or slash or ".")
    files = [
        (f"{folder}{slash}{file.name}{'/' * file.is_dir()}", "")
        for file in sorted(here.iterdir() if here.is_dir() else ())
        if file.name.startswith(start)
        and (start or file.name[0] != ".")
        and (file.is_dir() or file.suffix in (".yaml", ".yml"))
    ]
    return [*_beginning(incomplete, described_configs().items()), *files]


def settings(incomplete: str) -> Offered:
    """Settings of the trainer, by their names without the section, each with its `=`."""
    from perfdoc.trainer.config.resolve import KEYS

    return _beginning(incomplete, ((f"{key}=", f"in {section}") for key, section in KEYS.items()))


def configuration_or_setting(incomplete: str) -> Offered:
    """The words of `perfdoc run`."""
    return [*configurations(incomplete), *settings(incomplete)]


def published_models(incomplete: str) -> Offered:
    """Names of models that `perfdoc simulate` knows."""
    from perfdoc.traces.known_models import known_models

    return _beginning(incomplete, ((name, "") for name in known_models()))


def _beginning(start: str, known: Iterable[tuple[str, str]]) -> Offered:
    return [(name, about) for name, about in known if name.startswith(start)]


def _package() -> Path:
    return Path(__file__).resolve().parents[1]
