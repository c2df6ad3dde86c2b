"""A training loop of somebody else, with perfdoc's steps: `job.py [EXIT CODE [SECONDS A STEP]]`."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed

from perfdoc.profiling import marked, steps


def main(code: int = 0, sleep_s: float = 0.0) -> int:
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    sys.stdout.write("the job speaks\n")
    sys.stdout.flush()
    weight = torch.ones(32, 32, requires_grad=True)
    for batch in steps([torch.ones(4, 32)] * 6):
        with marked("forward"):
            loss = (batch @ weight).sum()
        with marked("backward"):
            loss.backward()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(weight.grad)
        time.sleep(sleep_s)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main(*(t(word) for t, word in zip((int, float), sys.argv[1:], strict=False))))
