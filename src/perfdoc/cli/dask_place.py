"""`--dask` of `perfdoc analyze`: which of its words is a scheduler's address."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfdoc.diagnose.asked import UserError

if TYPE_CHECKING:
    from perfdoc.diagnose.place import Place


def dask_place(paths: Sequence[str], jobs: int | None) -> tuple[list[str], Place]:
    """Paths without a scheduler's address, and the place. Raises UserError."""
    from perfdoc.diagnose.cluster import Dask, is_address, looks_like_address, require_dask

    require_dask()
    addresses = [path for path in paths if is_address(path)]
    if len(addresses) > 1:
        raise UserError(f"--dask: {' and '.join(addresses)} are two schedulers. Give one.")
    if addresses and jobs is not None:
        raise UserError("--jobs: is for workers of this machine; a scheduler has its own.")
    rest = [path for path in paths if path not in addresses]
    if wrong := next((p for p in rest if looks_like_address(p) and not os.path.lexists(p)), None):
        raise UserError(f"--dask: {wrong} is no address of a scheduler. Give tcp://HOST:PORT.")
    if addresses and not rest:
        raise UserError(f"--dask {addresses[0]}: no capture is given. Is a variable of the shell empty?")
    place = Dask(addresses[0].rstrip("/") if addresses else None, jobs or os.cpu_count() or 1)
    return rest, place
