"""Nsight's serialised ids, and the tables of devices, threads and names that they index."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from perfdoc.traces.model import Device, Thread
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints
from perfdoc.traces.table import I32, I64, Bool, Strings, among, distinct, unique
from perfdoc.traces.validate import check_devices


def process_of(global_id: I64 | int) -> Any:
    """Process id inside a globalPid or globalTid: bits 24 to 47 (Nsight's analysis guide)."""
    return (global_id >> 24) & 0xFFFFFF


def thread_of(global_tid: I64 | int) -> Any:
    """Thread id inside a globalTid: the low 24 bits."""
    return global_tid & 0xFFFFFF


_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"


class Ids:
    """Collects devices, threads and names while the tables of one export are read."""

    def __init__(self, source: NsysSource) -> None:
        self._source = source
        self.strings = Strings()
        self.devices: list[Device] = []
        self.threads: list[Thread] = []
        self._device_index: dict[tuple[int, int], int] = {}
        self._thread_index: dict[int, int] = {}
        self._name_index: dict[int, int] = {NULL: 0}
        self._missing: set[int] = set()

    def devices_of(self, global_pids: I64, device_ids: I64, *, add: bool = True) -> I32:
        """Index into `devices` for each row; a new pair of process and CUDA ordinal adds a device, or is -1.

        Raises TraceError where there are more than a node can have.
        """
        if (lost := global_pids == NULL).any():
            global_pids = np.where(lost, self._only_process, global_pids)
        pids, pid_code = distinct(global_pids)
        ordinals, ordinal_code = distinct(device_ids)
        pairs, pair_code = distinct(pid_code * max(1, len(ordinals)) + ordinal_code)
        index = np.empty(len(pairs), np.int32)
        for i, pair in enumerate(pairs.tolist()):
            process = int(process_of(int(pids[pair // len(ordinals)])))
            key = process, int(ordinals[pair % len(ordinals)])
            index[i] = self._device(*key) if add else self._device_index.get(key, -1)
        return index.take(pair_code)

    @cached_property
    def _only_process(self) -> int:
        """The globalPid of the process that made all CUDA calls, for rows without one; NULL of several."""
        found = unique(read_ints(self._source, _CALLS, {"globalTid": NULL})["globalTid"] >> 24)
        return int(found[0]) << 24 if len(found) == 1 and found[0] >= 0 else NULL

    def _device(self, process: int, ordinal: int) -> int:
        key = (process, ordinal)
        if key not in self._device_index:
            check_devices(self._source.path, len(self.devices) + 1)
            self._device_index[key] = len(self.devices)
            self.devices.append(Device(process=process, ordinal=ordinal))
        return self._device_index[key]

    def threads_of(self, global_tids: I64) -> I32:
        """Index into `threads` for each row; -1 where the row has no thread."""
        ids, code = distinct(global_tids)
        index = np.empty(len(ids), np.int32)
        for i, gid in enumerate(ids.tolist()):
            if gid == NULL:
                index[i] = -1
                continue
            if gid not in self._thread_index:
                self._thread_index[gid] = len(self.threads)
                self.threads.append(Thread(process=int(process_of(gid)), tid=int(thread_of(gid))))
            index[i] = self._thread_index[gid]
        return index.take(code)

    def known_threads(self, global_tids: I64) -> Bool:
        """Which rows are of a thread that is in `threads` already."""
        known: Bool = among(global_tids, np.array(list(self._thread_index), np.int64))
        return known

    def names_of(self, string_ids: I64) -> I32:
        """Index into `strings` for each row of StringIds references; 0 (the empty string) for NULL."""
        ids, code = distinct(string_ids)
        wanted = [i for i in ids.tolist() if i not in self._name_index]
        texts = self._source.strings(wanted) if wanted else {}
        for i in wanted:
            text = texts.get(i)
            if text is None:
                self._missing.add(i)
                text = f"[name {i} missing in StringIds]"
            self._name_index[i] = self.strings.intern(text)
        index = np.array([self._name_index[i] for i in ids.tolist()], np.int32)
        return index.take(code) if len(index) else np.empty(0, np.int32)

    @property
    def missing_names(self) -> int:
        """How many of the name ids so far StringIds does not hold."""
        return len(self._missing)

    def either_of(self, one: I64, other: I64) -> tuple[I32, I32]:
        """As names_of, of the two names of a row: where StringIds lacks one, the other stands for it."""
        names, others = self.names_of(one), self.names_of(other)
        if not self._missing:
            return names, others
        lost, other_lost = (among(ids, np.array(list(self._missing), np.int64)) for ids in (one, other))
        there, other_there = ~lost & (names > 0), ~other_lost & (others > 0)
        found = np.where(lost & other_there, others, names).astype(np.int32)
        return found, np.where(other_lost & there, names, others).astype(np.int32)

    def name_threads(self) -> None:
        """Fill thread names from ThreadNames; of several names for a thread the first counts."""
        if not {"nameId", "globalTid"} <= self._source.columns("ThreadNames") or not self.threads:
            return
        table = read_ints(self._source, "ThreadNames", {"nameId": NULL, "globalTid": NULL})
        rows = np.flatnonzero((table["nameId"] != NULL) & among(table["globalTid"], list(self._thread_index)))
        names = self.names_of(table["nameId"][rows]).tolist()
        for name, gid in zip(names, table["globalTid"][rows].tolist(), strict=True):
            thread = self.threads[self._thread_index[gid]]
            if not thread.name:
                self.threads[self._thread_index[gid]] = replace(thread, name=self.strings.values[name])
