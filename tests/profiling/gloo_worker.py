"""One of two gloo ranks that issue collectives of known size; prints its records, captures its ranges."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

# Its default arguments keep the default group of the time of its import for ever, and the profiler imports
# it: gloo's threads would outlive the interpreter, which now and then ends the process with SIGABRT.
import torch.distributed.nn.functional
import torch.profiler as profiler

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import collectives, groups


def issue_all(rank: int, pair: dist.ProcessGroup) -> None:
    other = 1 - rank
    eight = torch.ones(8)  # 32 bytes.
    sixteen = torch.zeros(16, dtype=torch.bfloat16)  # 32 bytes.
    dist.all_reduce(eight, group=pair)
    work = dist.all_reduce(eight, group=pair, async_op=True)
    work.wait()
    work.wait()  # A second wait adds nothing.
    dist.all_gather_into_tensor(torch.zeros(16), eight)
    dist.all_gather([torch.zeros(8), torch.zeros(8)], eight)
    dist.reduce_scatter_tensor(torch.zeros(4), eight)
    dist.all_to_all_single(torch.zeros(8), eight, group=pair)
    # Each rank gives 1 of its 4 to rank 0 and 3 to rank 1.
    received = [1, 1] if rank == 0 else [3, 3]
    dist.all_to_all_single(torch.zeros(sum(received)), torch.ones(4), received, [1, 3])
    dist.broadcast(sixteen, 0)
    if rank == 0:
        dist.send(sixteen, 1)
    else:
        dist.recv(sixteen, 0)
    operations = [dist.P2POp(dist.isend, eight, other), dist.P2POp(dist.irecv, torch.zeros(8), other)]
    with collectives.serving("pp"):
        requests = dist.batch_isend_irecv(operations)
    for request in requests:
        request.wait()
    with dist._coalescing_manager(group=pair, async_ops=True) as manager:
        dist.all_reduce(eight, group=pair)
        dist.all_reduce(sixteen.float(), group=pair)  # 64 bytes.
    manager.wait()
    dist.barrier()


def main(meeting: str, rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    pair = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    collectives.install()
    dist.all_reduce(torch.ones(1), group=pair)  # Off: takes sequence number 0 and leaves nothing else.
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        ranges.enable()
        groups.emit_marks(rank=rank, world_size=2, device="cpu")
        issue_all(rank, pair)
        ranges.disable()
    profile.export_chrome_trace(str(folder / f"rank{rank}.json"))
    listed = groups.gather_groups()
    records = collectives.drain()
    dist.all_reduce(torch.ones(1), group=pair)
    collectives.uninstall()
    dist.all_reduce(torch.ones(1))  # torch's own methods are back.
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(msgspec.to_builtins({"records": records, "groups": listed})))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
