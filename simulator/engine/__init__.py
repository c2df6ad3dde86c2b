"""The discrete-event engine: tasks, what each waits for, and when they run then."""

from perfdoc.simulator.engine.graph import EdgeKind, Edges, GraphBuilder, TaskGraph, TaskKind
from perfdoc.simulator.engine.schedule import Schedule, critical_path, schedule

__all__ = ["EdgeKind", "Edges", "GraphBuilder", "Schedule", "TaskGraph", "TaskKind"]
__all__ += ["critical_path", "schedule"]
