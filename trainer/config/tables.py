"""Tables of what this trainer does not have or cannot do: tables.yaml, which says what each one is."""

from pathlib import Path
from types import SimpleNamespace

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILE = Path(__file__).resolve().with_name("tables.yaml")
TABLES = SimpleNamespace(**yaml.load(_FILE.read_text(encoding="utf-8"), Loader=_LOADER))
