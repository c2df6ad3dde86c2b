"""Memory snapshots for tests: dictionaries as torch.cuda.memory._snapshot makes them, and files of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.results.memory import DeviceMemory

MIB = 1 << 20
GIB = 1 << 30
US = 1000

Frame = tuple[str, str, int]
"""(path, function, line)."""

FORWARD: Frame = ("/home/ann/net/model.py", "forward", 30)
CALL: Frame = ("/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", "_call_impl", 1790)
ENGINE: Frame = (
    "??",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)",
    0,
)
ADAM: Frame = ("/opt/venv/lib/python3.11/site-packages/torch/optim/adamw.py", "_init_group", 100)
ZERO_GRAD: Frame = ("/opt/venv/lib/python3.11/site-packages/torch/optim/optimizer.py", "zero_grad", 1000)
SCRIPT: Frame = ("/home/ann/net/train.py", "main", 12)
LOST: Frame = ("/home/ann/net/loss.py", "entropy", 5)


class Planted:
    """A snapshot under construction: events in order, and what the segments are at the end."""

    def __init__(self) -> None:
        self._frames: dict[Frame, dict[str, Any]] = {}
        self._stacks: dict[tuple[Frame, ...], list[dict[str, Any]]] = {}
        self.traces: dict[int, list[dict[str, Any]]] = {}
        self.segments: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {"expandable_segments": False, "max_split_size": -1}
        self.time_us = 1_000_000

    def frames(self, *stack: Frame) -> list[dict[str, Any]]:
        """A stack, the innermost frame first; frames and stacks are shared, as PyTorch shares them."""
        for path, function, line in stack:
            self._frames.setdefault(
                (path, function, line), {"name": function, "filename": path, "line": line}
            )
        return self._stacks.setdefault(stack, [self._frames[frame] for frame in stack])

    def event(
        self,
        action: str,
        address: int,
        size: int,
        stack: Sequence[Frame] = (),
        *,
        device: int = 0,
        **more: Any,
    ) -> None:
        """One event, a microsecond after the last one."""
        self.time_us += 1
        entry = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": 0,
            "time_us": self.time_us,
            "compile_context": "".join(("N", "/A")),  # a new string each time, as PyTorch makes it
            "user_metadata": "",
            "frames": self.frames(*stack),
        }
        self.traces.setdefault(device, []).append(entry | more)

    def alloc(self, address: int, size: int, *stack: Frame, device: int = 0) -> None:
        self.event("alloc", address, size, stack, device=device)

    def free(self, address: int, size: int, *stack: Frame, device: int = 0) -> None:
        self.event("free_requested", address, size, stack, device=device)
        self.event("free_completed", address, size, stack, device=device)

    def annotate(self, stage: str, name: str, device: int = 0) -> None:
        self.time_us += 1
        self.annotations.append({"stage": stage, "name": name, "device": device, "time_us": self.time_us})

    def segment(
        self,
        address: int,
        size: int,
        blocks: Sequence[tuple[int, int, str]],
        *,
        device: int = 0,
        stacks: Sequence[Sequence[Frame]] = (),
        **more: Any,
    ) -> None:
        """A segment at the end; blocks are (size, requested size, state), one behind the other."""
        at, made = address, []
        for i, (length, requested, state) in enumerate(blocks):
            stack = stacks[i] if i < len(stacks) else ()
            block = {"address": at, "size": length, "requested_size": requested, "state": state}
            made.append(block | {"frames": self.frames(*stack)})
            at += length
        entry = {
            "device": device,
            "address": address,
            "total_size": size,
            "stream": 0,
            "segment_type": "small" if size <= 2 * MIB else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": made,
        }
        self.segments.append(entry | more)

    def snapshot(self) -> dict[str, Any]:
        devices = max(self.traces, default=-1) + 1
        return {
            "segments": self.segments,
            "device_traces": [self.traces.get(i, []) for i in range(devices)],
            "allocator_settings": self.settings,
            "external_annotations": self.annotations,
        }

    def write(self, path: Path, protocol: int = 4) -> Path:
        return write(path, self.snapshot(), protocol)


def write(path: Path, snapshot: object, protocol: int = 4) -> Path:
    """As torch.cuda.memory._dump_snapshot does."""
    with path.open("wb") as file:
        pickle.dump(snapshot, file, protocol)
    return path


def one(planted: Planted, folder: Path, **given: int) -> DeviceMemory:
    (measured,) = measure_snapshot(planted.write(folder / "m.pickle"), **given)
    return measured


def a_step() -> Planted:
    """One segment of 40 MiB from address 1 GiB. In MiB, parameters 4 (before the history, alive at the end),
    a gradient of 2 from the step before (freed by zero_grad first) and then:

    alive           event                                             allocated
    P4 G2                                                               6
    P4              zero_grad frees G                                   4
    P4 A8           forward allocates 8, saved                          12
    P4 A8 L1        the script allocates 1                              13
    P4 A8 L1 B4     backward allocates 4                                17
    P4 L1 B4        backward frees the 8                                9
    P4 L1 B4 W10    backward allocates 10                               19   the peak
    P4 L1 W10       backward frees the 4                                15
    P4 L1 W10 O3    the optimizer allocates 3                           18
    """
    p, base = Planted(), GIB
    p.free(base + 4 * MIB, 2 * MIB, ZERO_GRAD, SCRIPT)
    p.alloc(base + 6 * MIB, 8 * MIB, FORWARD, CALL, SCRIPT)
    p.alloc(base + 14 * MIB, 1 * MIB, LOST, SCRIPT)
    p.alloc(base + 15 * MIB, 4 * MIB, ENGINE)
    p.free(base + 6 * MIB, 8 * MIB, ENGINE)
    p.alloc(base + 19 * MIB, 10 * MIB, ENGINE)
    p.free(base + 15 * MIB, 4 * MIB, ENGINE)
    p.alloc(base + 29 * MIB, 3 * MIB, ADAM, SCRIPT)
    p.segment(
        base,
        40 * MIB,
        [
            (4 * MIB, 4 * MIB, "active_allocated"),
            (10 * MIB, 0, "inactive"),
            (1 * MIB, 1 * MIB, "active_allocated"),
            (4 * MIB, 0, "inactive"),
            (10 * MIB, 10 * MIB, "active_allocated"),
            (3 * MIB, 3 * MIB, "active_allocated"),
            (8 * MIB, 0, "inactive"),
        ],
    )
    return p
