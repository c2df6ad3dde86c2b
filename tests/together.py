"""Which files of tests run on one worker, in the order in which workers take them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling


class Together(LoadFileScheduling):
    """As `--dist loadfile`, but one worker has all files that need the browser, which starts once, and one
    has all that import PyTorch or megatron-core, which takes seven seconds."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        if "browser" in file.rpartition("/")[2]:
            return "tests/*/*browser*.py"
        return "tests of the trainer" if _needs_torch(self.config.rootpath / file) else file


@cache
def _needs_torch(file: Path) -> bool:
    if file.parent.name == "trainer":
        return True
    text = file.read_text(encoding="utf-8")
    return re.search(r"^from tests.megatron_core import|^ +import torch\b", text, re.MULTILINE) is not None
