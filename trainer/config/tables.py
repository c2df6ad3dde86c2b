"""Tables of what this trainer does not have or cannot do: tables.yaml, which says what each one is."""

from pathlib import Path
from types import SimpleNamespace

from perfdoc.kept import table

TABLES = SimpleNamespace(**table(Path(__file__).resolve().with_name("tables.yaml")))
