"""Ranges of the backward pass by part of the model, on the thread that autograd runs the pass on.

A part begins when the node that made its output is about to run, and ends when the next part begins, when the
node that made its input is about to run, or with the backward pass. That is exact because autograd runs the
nodes of one thread in the reverse order of their creation, so that a part's nodes lie together. The hooks
are of nodes; they are shown gradients and change nothing. Full backward hooks of modules would put nodes of
their own into the graph, which views, in-place operations and outputs that are no tensors do not bear.

A pass inside another (activation recompute) is a graph task of its own: its ranges lie inside the outer ones
and are closed when it ends. What a task opened is closed by autograd's own callback at its end, so that no
range stays open; where that callback ran on another thread (as autograd may do for work that ends on another
device) the thread's next task closes it, and `healed` counts it.
"""

from __future__ import annotations

import functools
from threading import get_ident
from typing import Any

import torch

from perfdoc.profiling import ranges
from perfdoc.profiling.ranges import begin


class _Stack:
    """The ranges that are open on one thread."""

    __slots__ = ("base", "ended_elsewhere", "open", "outer", "task", "thread")

    def __init__(self) -> None:
        self.thread = get_ident()
        self.open: list[tuple[Part, int, ranges.Opened | None]] = []
        """Part, graph task that opened it, what closes its range."""
        self.task = -1
        """The innermost graph task that has hooks of ours on this thread; -1 for none."""
        self.base = 0
        """How many ranges were open when it began."""
        self.outer: list[tuple[int, int]] = []
        """Task and base of those that it runs inside of."""
        self.ended_elsewhere: set[int] = set()


_last = _Stack()
"""The one that was used last, and so nearly always the one that is asked for."""
_stacks = {_last.thread: _last}
"""By thread. Threads are few: autograd has one for each device."""
_current_task = torch._C._current_graph_task_id
_healed = 0


def _own() -> _Stack:
    """This thread's."""
    global _last
    thread = get_ident()
    stack = _last
    if stack.thread != thread:
        stack = _stacks.setdefault(thread, _Stack())
        _last = stack
    return stack


class Part:
    """A part of the model in the backward pass."""

    __slots__ = ("entering", "layer", "leaving", "name")

    def __init__(self, name: str, layer: Part | None = None) -> None:
        self.name = name
        """Of its range."""
        self.layer = layer
        """The layer that it is in; None for a layer and for what is in none."""
        self.entering, self.leaving = _hook(self.enter), _hook(self.leave)
        """For `_register_hook_dict` of the node before which the part's backward begins, or ends."""

    def enter(self, _gradient: Any) -> None:
        """Open the range; what is open beside it is over."""
        # Written for cold caches, which autograd's work between two parts leaves behind.
        stack = _last
        if stack.thread != get_ident():
            stack = _own()
        task = _current_task()
        if task != stack.task:
            _begin(stack, task)
        opened = stack.open
        while len(opened) > stack.base:
            part, _, close = opened[-1]
            if part is self.layer:
                break
            del opened[-1]
            if close is not None:
                close()
        opened.append((self, task, begin(self.name)))

    def leave(self, _gradient: Any) -> None:
        """Close the range, if it is open in this task."""
        stack = _own()
        opened = stack.open
        if stack.task != _current_task() or len(opened) == stack.base:
            return
        if opened[-1][0] is self or any(part is self for part, _, _ in opened[stack.base :]):
            while _close_last(opened)[0] is not self:
                pass


def healed() -> int:
    """How many ranges were closed later than their graph task ended, since the process began."""
    return _healed


def close_all() -> None:
    """Close what is open on this thread while no backward pass runs on it; `healed` counts it."""
    stack = _own()
    if stack.task != -1:
        _close(stack, 0, None)
        stack.task, stack.base = -1, 0
        stack.outer.clear()


def _hook(function: Any) -> torch.Tensor:
    """What carries a hook to nodes. `register_prehook` does the same in six times the time, a dictionary and
    a handle for each node."""
    carrier: Any = torch.zeros(())
    carrier._backward_hooks = {0: function}
    return carrier


def _begin(stack: _Stack, task: int) -> None:
    """A task of which this thread has not seen a hook, or has seen one before a task inside it."""
    if stack.ended_elsewhere:
        _heal(stack)
        if task == stack.task:
            return
    if stack.task != -1:
        stack.outer.append((stack.task, stack.base))
    stack.task, stack.base = task, len(stack.open)
    engine: Any = torch.autograd.Variable._execution_engine
    engine.queue_callback(functools.partial(_task_ended, stack, task))


def _heal(stack: _Stack) -> None:
    """Close what tasks left open whose end was told to another thread, and what is inside of them."""
    tasks = [*stack.outer, (stack.task, stack.base)]
    first = next((i for i, (task, _) in enumerate(tasks) if task in stack.ended_elsewhere), None)
    stack.ended_elsewhere.clear()
    if first is not None:
        _close(stack, tasks[first][1], None)
        stack.outer = tasks[: max(first - 1, 0)]
        stack.task, stack.base = tasks[first - 1] if first > 0 else (-1, 0)


def _task_ended(stack: _Stack, task: int) -> None:
    if get_ident() != stack.thread:
        stack.ended_elsewhere.add(task)
        return
    while stack.task not in (task, -1):  # A task inside it whose end was told to another thread.
        _close(stack, stack.base, None)
        stack.task, stack.base = stack.outer.pop() if stack.outer else (-1, 0)
    if stack.task == task:
        _close(stack, stack.base, task)
        stack.task, stack.base = stack.outer.pop() if stack.outer else (-1, 0)


def _close(stack: _Stack, base: int, task: int | None) -> None:
    """Close down to `base` open ranges; those that another task than `task` opened are late."""
    global _healed
    while len(stack.open) > base:
        _healed += _close_last(stack.open)[1] != task


def _close_last(opened: list[tuple[Part, int, ranges.Opened | None]]) -> tuple[Part, int]:
    part, task, close = opened.pop()
    if close is not None:
        close()
    return part, task
