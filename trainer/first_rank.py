"""What rank 0 does for all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist

from perfdoc.profiling.errors import CaptureError


def problem_on_first_rank(action: Callable[[], None]) -> str:
    """Run on rank 0 while the others wait; a failure there is everybody's, so that nobody hangs.

    Returns on every rank what went wrong, in one line; empty where nothing did. Exceptions other than
    OSError, CaptureError and ValueError are defects and end rank 0.
    """
    problem = [""]
    if dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            problem[0] = f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
        except (CaptureError, ValueError) as error:
            problem[0] = str(error)
    dist.broadcast_object_list(problem, src=0)
    return problem[0]
