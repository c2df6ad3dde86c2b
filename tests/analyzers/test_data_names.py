"""Names of ranges in which training waits for a batch, and names that only look like them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from perfdoc.analyzers.device.range_names import find_known_ranges
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder

LOADERS = """
perfdoc.data
enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
DataLoader
dataloader
DataLoad
data_loading
Data Loading
data_fetch
data_wait
data io
input_wait
batch_wait
batch-generator
get_batch
get_micro_batch
get_training_batch
next_batch
## next_batch ##
fetch_data
fetch_next_batch
load_batch
Load Data
Loading Data
read_samples
wait for data
waiting_for_batch
[_TrainingEpochLoop].train_dataloader_next
[_EvaluationLoop].val_next
fetch_next_train_batch
_next_data
_MultiProcessingDataLoaderIter._next_data
_try_get_data
next(train_loader)
next(data_iter)
DALIGenericIterator.__next__
[DALI] share_outputs
IteratorGetNext
get_batch_samples
iter_torch_batches
"""
OTHERS = """
batch 5
Batch 0
train_batch
process_batch
forward_batch
data_to_gpu
copy data
data transfer
## copy_batch_to_gpu ##
## wait_for_batch ##
## wait_sparse_data_dist ##
data_ptr
data parallel
get_data_parallel_group
get_batch_size
get batch size
BatchNorm
load_batch_norm
load_state_dict
loadmodel
load engine
database
metadata
download_data
dispatch_data
sampler
resample
nextafter
val_next_token
DALI kernel
[DALI][GPU op] ResizeGpu
optimizer.step
step 3
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    builder = TimelineBuilder()
    process = builder.process()
    main = process.thread()
    process.device().kernel("gemm", 50, 60, launch=(main, 40, 45))
    for i, name in enumerate((LOADERS + OTHERS).strip().splitlines()):
        main.range(name, 100 * i, 100 * i + 10)
    trace = trace_of(builder, tmp_path_factory.mktemp("names"))
    return set(trace.names(trace.ranges.name[find_known_ranges(trace).data]))


@pytest.mark.parametrize("name", LOADERS.strip().splitlines())
def test_a_loader(found: set[str], name: str) -> None:
    assert name in found


@pytest.mark.parametrize("name", OTHERS.strip().splitlines())
def test_no_loader(found: set[str], name: str) -> None:
    assert name not in found


def test_long_names_cost_little(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    main = process.thread()
    process.device().kernel("gemm", 50, 60, launch=(main, 40, 45))
    for word in ("DALI ", "DALI", "next ", "next(data", "get next ", "data", "## ", "dataloader_next"):
        main.range(word * (100_000 // len(word)), 0, 10)
    main.range("next(" + "data" * 25_000, 0, 10)
    trace = trace_of(builder, tmp_path)
    begin = time.process_time()
    find_known_ranges(trace)
    assert time.process_time() - begin < 2
