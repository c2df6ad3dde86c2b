"""A slow file system for runs of the trainer: every sample takes PERFDOC_DATA_DELAY_MS longer to read.

Python imports this by itself in every process that finds the folder on PYTHONPATH.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType

_MODULE = "megatron.core.datasets.gpt_dataset"


class _Slowed(importlib.abc.MetaPathFinder):
    """Wraps the data set's reading once its module is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            read = module.GPTDataset.__getitem__

            def slowly(dataset: object, index: int) -> object:
                time.sleep(float(os.environ.get("PERFDOC_DATA_DELAY_MS", "0")) / 1e3)
                return read(dataset, index)

            module.GPTDataset.__getitem__ = slowly

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Slowed())
