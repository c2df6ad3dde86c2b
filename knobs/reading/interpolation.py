"""References between the settings of a YAML file, as OmegaConf has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.values import Raw

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_DEFAULT = re.compile(r"\$\{oc\.(?:env|select):[\w.]+,\s*([^${}]*)\}")
_MOST = 8
"""References that lead to one another."""


def interpolated(entries: Sequence[Entry]) -> Iterator[Entry]:
    """The same with `${dataset.sequence_length}` as the value that the file has there, and with the default
    of `${oc.env:NAME,default}`, as a variable of a script has its own."""
    values: dict[str, Raw] = {}
    for entry in entries:
        if entry.form == "path":  # two documents that differ say nothing
            values[entry.name] = entry.raw if values.get(entry.name, entry.raw) == entry.raw else None
    for entry in entries:
        raw = entry.raw
        for _ in range(_MOST):
            if not isinstance(raw, str) or "$" not in raw:
                break
            named, given = _REFERENCE.fullmatch(raw.strip()), _DEFAULT.fullmatch(raw.strip())
            found = values.get(named[1]) if named else given[1].strip("\"' ") if given else None
            if found is None:
                break
            raw = found
        yield entry if raw is entry.raw else replace(entry, raw=raw)
