"""Which files of tests run on one worker, in the order in which workers take them."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling


class Together(LoadFileScheduling):
    """As `--dist loadfile`, but one worker has all files that need the browser: it starts once."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/*/*browser*.py" if "browser" in file.rpartition("/")[2] else file
