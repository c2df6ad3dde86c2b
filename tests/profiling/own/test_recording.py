"""Rows of steps: what they hold, that who is late waits least, and that nothing of them is lost."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from perfdoc.profiling import ranges
from perfdoc.profiling.logs import Began, StepRecord, read_steps
from perfdoc.profiling.own.began import flops_of_a_token, own_facts, tokens_of
from perfdoc.profiling.own.phases import Parts, Phases
from perfdoc.profiling.own.recording import Recorder, record, resident_bytes, stop, with_parts
from perfdoc.profiling.run_directory import ENDED, RunDirectory
from perfdoc.profiling.step_log import KEPT, MAX_UNWRITTEN, MIN_STEPS, MOST_ROWS, StepLog, shortened
from perfdoc.profiling.vocabulary import BACKWARD, DATA, EVALUATION, FORWARD
from perfdoc.watch.follow import FollowedRun
from tests.profiling.own.tiny_model import TINY

MS = 1_000_000


def row(step: int, ms: float = 100.0, **more: object) -> StepRecord:
    return StepRecord(step=step, start_ns=step, duration_ns=round(ms * MS), **more)  # type: ignore[arg-type]


def test_parts_sum_to_the_step_and_a_wait_is_of_no_phase() -> None:
    phases = Phases()
    phases.listen()
    try:
        before = time.perf_counter_ns()
        phases.cut()
        began = time.perf_counter_ns()
        phases.step_begins()
        with ranges.range(DATA):
            time.sleep(0.01)
        with ranges.range(FORWARD):
            time.sleep(0.02)
            leave = phases.enter("wait")
            time.sleep(0.03)
            leave()
        with ranges.range(BACKWARD):
            time.sleep(0.04)
            phases.gradients_done()
            time.sleep(0.05)
        least = time.perf_counter_ns() - began
        parts = phases.cut().ns()
        took = time.perf_counter_ns() - before
        with ranges.range(EVALUATION):
            time.sleep(0.06)
        beside = phases.cut().ns()
    finally:
        ranges.time_phases({})
    for name, ms in (("data", 10), ("forward", 20), ("wait", 80), ("backward", 40)):
        assert ms * MS <= parts[name] < took - (150 - ms) * MS + MS
    assert least - MS < sum(parts.values()) <= took + MS
    assert beside["beside"] >= 60 * MS
    timed = with_parts(row(0), parts | {"beside": 7}, with_between=False)
    assert timed.duration_ns == sum(parts.values()) - parts["between"]
    assert (timed.data_ns, timed.wait_ns, timed.optimizer_ns) == (parts["data"], parts["wait"], 0)
    assert ranges.begin(DATA) is None


def test_what_nothing_tells_of_is_the_forward_until_a_backward() -> None:
    phases = Phases()
    phases.cut()
    phases.step_begins()
    time.sleep(0.02)
    leave = phases.enter("backward")
    time.sleep(0.01)
    leave()
    time.sleep(0.03)
    parts = phases.cut().ns()
    assert parts["forward"] >= 20 * MS
    assert parts["other"] >= 30 * MS


LATE = """
def work(number):
    # Rank 1 begins when rank 0 has done its own work, so that it is late however slow the machine is.
    arrived = f"{sys.argv[2]}-{number}"
    if rank == 0:
        open(arrived, "w").close()
        return
    while not os.path.exists(arrived):
        time.sleep(0.001)
    time.sleep(0.05)
"""
JOB = """
import os, sys, time, torch, torch.distributed as dist
from perfdoc.profiling import record, steps
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
record(sys.argv[1], facts={"lr": 0.1, "secret": object()})
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
    torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader([torch.ones(8, dtype=torch.long) for _ in range(24)], batch_size=2)
for number, batch in enumerate(steps(data)):
    work(number)
    model(batch.float()).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_who_is_late_waits_least(tmp_path: Path, needs_torch: None) -> None:
    # DistributedDataParallel's all-reduces are issued in C++; each step 1 works 50 ms longer than 0.
    run_of_two(LATE + JOB, tmp_path)
    early, late = (list(read_steps(tmp_path / "run" / "steps" / f"rank{rank}.jsonl")) for rank in (0, 1))
    assert [r.step for r in early] == [r.step for r in late] == list(range(12))
    began = late[0].began
    assert began is not None
    assert (began.world_size, began.device, began.role) == (2, "cpu", {"dp": 1})
    assert began.facts == {"OMP_NUM_THREADS": "1", "lr": 0.1}
    assert began.command == ()
    assert early[0].began is not None
    assert early[0].began.command[:2] == ("python", "-c")
    assert {r.began for r in early[1:]} == {None}
    assert {r.rank_tokens for r in early} == {16}
    waits = [(a.wait_ns or 0) - (b.wait_ns or 0) for a, b in zip(early[2:], late[2:], strict=True)]
    assert sorted(waits)[len(waits) // 2] > 20 * MS
    assert all((r.wait_ns or 0) <= r.duration_ns for r in early), "a wait that counts twice"
    own = sorted(r.duration_ns - (r.wait_ns or 0) for r in late[2:])[5]
    assert own >= 50 * MS
    assert all((r.forward_ns or 0) >= 50 * MS for r in late)


TENSOR_PARALLEL = """
import os, sys, time, torch, torch.distributed as dist
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from perfdoc.profiling import record, steps
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
record(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
style = {"0": ColwiseParallel(), "1": RowwiseParallel()}
parallelize_module(model, dist.init_device_mesh("cpu", (2,)), style)
for number, batch in enumerate(steps([torch.ones(2, 8)] * 8)):
    work(number)
    model(batch).sum().backward()
dist.destroy_process_group()
os._exit(0)  # torch's gloo threads let go of Python's objects: 1 run in 20 aborts where Python has ended
"""


def test_who_is_late_in_tensor_parallelism_waits_least(tmp_path: Path, needs_torch: None) -> None:
    # DTensor's collectives are functional ones: they end in `wait_tensor`, and not in Work.wait.
    run_of_two(LATE + TENSOR_PARALLEL, tmp_path)
    early, late = (list(read_steps(tmp_path / "run" / "steps" / f"rank{rank}.jsonl")) for rank in (0, 1))
    waits = [(a.wait_ns or 0) - (b.wait_ns or 0) for a, b in zip(early[2:], late[2:], strict=True)]
    assert sorted(waits)[len(waits) // 2] > 20 * MS
    assert all((r.wait_ns or 0) <= r.duration_ns for r in early), "a wait that counts twice"


SEES_EXITS = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python tells no exit codes before 3.12")


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("raise RuntimeError('Connection closed by peer')", 1),
        ("sys.exit(1)", 1),
        ("sys.exit('no checkpoint')", 1),
        ("sys.exit(0)", 0),
        ("sys.exit()", 0),
        pytest.param("raise SystemExit(1)", 1, marks=SEES_EXITS),
        pytest.param("(lambda: exit(3))()", 3, marks=SEES_EXITS),
        ("raise SystemExit(0)", 0),
        ("raise SystemExit", 0),
        ("pass", 0),
    ],
)
def test_a_training_that_fails_has_not_ended(tmp_path: Path, ends: str, code: int) -> None:
    """As rank 0 does where another was killed: its rows are there, and `watch` tells that no more come."""
    program = f"""
import sys
from perfdoc.profiling import record, steps
record({str(tmp_path)!r}, log=())
for number in steps(range(5)):
    if number == 4:
        {ends}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120)
    assert (done.returncode, (tmp_path / ENDED).exists()) == (code, code == 0)
    assert len(list(read_steps(tmp_path / "steps" / "rank0.jsonl"))) == 5


@pytest.mark.parametrize(
    ("during", "ended"),
    [
        ("with suppress(SystemExit): sys.exit(2)", True),
        ("with suppress(SystemExit): raise SystemExit(2)", True),
        ("late.start()", True),  # when no step follows
        ("os._exit(0)", False),
    ],
    ids=["caught", "raised and caught", "thread", "at once"],
)
def test_a_word_of_exit_that_ends_no_program_is_none(tmp_path: Path, during: str, ended: bool) -> None:
    program = f"""
import os, sys
from contextlib import suppress
from threading import Thread
from threading import Event
from perfdoc.profiling import record, steps
done = Event()
late = Thread(target=lambda: (done.wait(), sys.exit(2)))
record({str(tmp_path)!r}, log=())
for number in steps(range(5)):
    if number == 2:
        {during}
done.set()
if late.ident:
    late.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert (tmp_path / ENDED).exists() == ended


def run_of_two(program: str, folder: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(folder / "run"), str(folder / "store")],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]


def test_early_rows_become_means_and_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    began = Began(world_size=1, device="cpu")
    count = 3 * MOST_ROWS
    for step in range(count):
        log.write(
            row(
                step,
                100 + 100 * (step % 4),
                began=began if step in (0, 500) else None,
                data_ns=step,
                loss=1.0,
            )
        )
    log.close()
    rows = list(read_steps(path))
    assert sum(r.steps for r in rows) == count
    assert sum(r.began is not None for r in rows) == 2
    means = [r for r in rows if r.steps > 1]
    sizes = sorted(r.steps for r in means)
    assert sizes[len(sizes) // 2] >= MIN_STEPS
    assert len({r.step % sizes[-1] for r in means if r.steps == sizes[-1]}) == 1, "cut alike on all ranks"
    # Of steps 0 to 499, before the second process began, by hand: 250 ms and 249.5.
    early = [r for r in means if r.step < 500]
    assert sum(r.duration_ns * r.steps for r in early) == pytest.approx(500 * 250 * MS, rel=1e-6)
    assert sum((r.data_ns or 0) * r.steps for r in early) == pytest.approx(500 * 249.5, rel=0.01)
    assert [r.step for r in rows[-KEPT:]] == list(range(count - KEPT, count))
    assert path.stat().st_size < 1 << 20


def test_steps_that_a_restart_took_back_are_in_no_mean() -> None:
    before, after = [row(step, 100) for step in range(100)], [row(step, 50) for step in range(60, 1300)]
    rows = shortened([*before, *after])
    assert sum(r.steps for r in rows) == 1300
    assert sum(r.steps * r.duration_ns for r in rows) == pytest.approx(
        60 * 100 * MS + 1240 * 50 * MS, rel=1e-6
    )


def test_a_full_disk_loses_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    log.keep(row(0))
    with full(path):
        for step in (1, 2):
            log.keep(row(step))
    log.keep(row(3))
    log.close()
    told = capsys.readouterr().err
    assert told == f"perfdoc: {path}: cannot be written: File too large; steps are kept for later\n"
    # The row that was torn off is there once more, whole.
    assert [r.step for r in read_steps(path)] == [0, 1, 2, 3]


@contextlib.contextmanager
def full(path: Path, room: int = 10) -> Iterator[None]:
    """No file grows beyond what this one has, and some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_loss_that_is_no_number_is_one_in_a_mean(tmp_path: Path) -> None:
    """100 steps have room; of 50 more the last 30 have no loss that is a number."""
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    for step in range(100):
        log.keep(row(step, loss=1.0))
    with full(path, 0):
        for step in range(100, 150):
            log.keep(row(step, loss=math.nan if step >= 120 else 1.0))
        log.close()
    said = {(r.loss, r.not_finite) for r in read_steps(path) if r.step >= 130}
    assert said == {(None, ("loss",))}
    assert {r.loss for r in read_steps(path) if r.step < 112} == {1.0}


@pytest.mark.parametrize("room", [0, 10, 500])
def test_steps_of_a_disk_that_stays_full_are_kept_as_means(
    tmp_path: Path, room: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 300 steps half find room; 150 of 100 ms and 150 of 300 are 60 s."""
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    for step in range(150):
        log.keep(row(step, began=None if step else Began(world_size=1, device="cpu")))
    size = path.stat().st_size
    with full(path, room):
        for step in range(150, 300):
            log.keep(row(step, 300, data_ns=step))
        log.close()
        log.close()
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("steps are kept for later")
    assert "no room for steps 15" in last
    assert "to 299: all steps are now means of up to" in last
    rows = list(read_steps(path))
    assert sum(r.steps for r in rows) == 300
    assert (rows[0].began is not None, rows[-1].step) == (True, 299)
    assert sum(r.steps * r.duration_ns for r in rows) == pytest.approx(60e9, rel=1e-6)
    assert path.stat().st_size <= size + room
    followed = FollowedRun(RunDirectory.join(tmp_path / "run").path)
    path.rename(tmp_path / "run" / "steps" / "rank0.jsonl")
    assert followed.look().steps >= 70
    assert not any("gone" in note or "read" in note for note in followed.look().notes)


def test_what_has_no_room_at_all_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    with full(path, 5):
        for step in range(3, 50):
            log.keep(row(step))
        log.close()
    told = capsys.readouterr().err.splitlines()[1]
    assert told == f"perfdoc: {path}: cannot be written: File too large; steps 3 to 49 are lost"


def test_rows_of_a_full_disk_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    log = StepLog(path)
    count = 2 * MAX_UNWRITTEN
    with full(path, 0):
        for step in range(count):
            log.keep(row(step))
        assert len(log._unwritten) <= MAX_UNWRITTEN
    log.keep(row(count))
    log.close()
    assert sum(r.steps for r in read_steps(path)) == count + 1


def test_a_row_is_small() -> None:
    whole = msgspec.convert(
        {
            name: 123_456_789
            for name in StepRecord.__struct_fields__
            if name.endswith(("_ns", "_bytes", "tokens")) or name in ("step", "collections")
        },
        StepRecord,
    )
    assert len(json.dumps(msgspec.to_builtins(whole))) < 500


def test_facts_and_tokens_of_hostile_values() -> None:
    facts = own_facts({"a": 1, "b": [1], "c": "x" * 999, "d": None, "e": 2**80, "f" * 500: True})
    assert facts == {"a": 1, "c": "x" * 200, "d": None, "f" * 100: True}
    assert [tokens_of(batch) for batch in (None, [], {}, {"input_ids": 3}, "text", (1, 2))] == [(0, 0)] * 6


def test_what_a_loader_gives_is_counted(needs_torch: None) -> None:
    import torch

    tokens = torch.ones(2, 7, dtype=torch.long)
    assert [tokens_of(b) for b in (tokens, {"input_ids": tokens}, (tokens, tokens), tokens.float())] == [
        *((14, 7), (14, 7), (14, 7)),
        (0, 0),
    ]


MEGATRON = {
    "num_layers": 1,
    "hidden_size": 4,
    "num_attention_heads": 1,
    "ffn_hidden_size": 8,
    "padded_vocab_size": 16,
    "swiglu": True,
    "seq_length": 8,
}


@pytest.mark.parametrize(
    ("model", "length", "flops", "why"),
    [
        (TINY, 8, 1536, ""),
        (MEGATRON, 0, 1536, ""),
        (TINY, 0, None, "nothing says the length of a sequence"),
        ({**MEGATRON, "padded_vocab_size": None}, 8, None, "nothing says the vocabulary"),
        (
            {**TINY, "model_type": "resnet"},
            8,
            None,
            "the model's configuration has the model_type 'resnet', which is not",
        ),
        ({**TINY, "frozen": True}, 8, None, "some of the model's parameters are frozen"),
        (
            {**TINY, "hidden_size": 10**12, "num_attention_heads": 10**12},
            10**300,
            None,
            "the model's configuration holds",
        ),
        (
            {**TINY, "head_dim": 2.5},
            8,
            None,
            "the model's configuration has a head_dim that is no whole number",
        ),
        ({**MEGATRON, "seq_length": "abc"}, 0, None, "the model's configuration holds values that no model"),
        ({**MEGATRON, "hybrid_override_pattern": "M*"}, 8, None, "the model's configuration sets hybrid_"),
        ({**TINY, "architectures": ["LlamaForCausalLM"]}, 8, 1536, ""),
        ({**TINY, "architectures": ["LlamaForTokenClassification"]}, 8, None, "the class ['LlamaForTokenCl"),
        ({**TINY, "architectures": "LlamaModel"}, 8, None, "the class LlamaModel is no language model"),
        ({"text_config": TINY, "vision_config": {}}, 8, 1536, "its language part alone"),
        ({**TINY, "vision_config": {}}, 8, 1536, "its language part alone"),
        ({**TINY, "sliding_window": 4}, 8, 1536, "sliding windows counted as whole attention"),
        ({"micro_batch": 4}, 8, None, "nothing says the model"),
    ],
    ids=["hugging", "megatron", "length", "vocabulary", "unknown", "frozen", "hostile", *"abcdefghi", "none"],
)
def test_flops_of_a_token_by_what_says_the_model(
    model: dict[str, object], length: int, flops: float | None, why: str
) -> None:
    """By hand, as of `flops_per_token`: 6 x (4·8·3 + 4·(4+2·4) + 4·8 + 4·4 + 4·16)."""
    found, said = flops_of_a_token(model, length)
    assert found == flops
    assert said.startswith(why) if why else not said


def test_the_first_row_says_what_megatron_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a step: 6 sequences of 8 tokens; a token is 1,536 operations."""
    state = SimpleNamespace(get_args=lambda: SimpleNamespace(**MEGATRON))
    counts = SimpleNamespace(get_current_global_batch_size=lambda: 6)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", state)
    monkeypatch.setitem(sys.modules, "megatron.core.num_microbatches_calculator", counts)
    recorder = record(tmp_path, log=())
    for number in range(3):
        recorder.step_begins(number)
        recorder.step_ends()
    stop()
    rows = list(read_steps(tmp_path / "steps" / "rank0.jsonl"))
    assert rows[0].began is not None
    assert (rows[0].began.flops_per_token, rows[0].began.flops_unknown) == (1536, "")
    assert [r.tokens for r in rows[1:]] == [48, 48]


def test_on_cuda_nothing_waits_for_the_device(needs_torch: None) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: the parts of a step are then of the host's clock")
    torch.cuda.set_sync_debug_mode("error")
    try:
        phases = Phases(cuda=True)
        found = []
        for _ in range(20):
            phases.step_begins()
            with_forward = phases.enter("forward")
            torch.ones(1 << 20, device="cuda").mul_(2)
            with_forward()
            found.append(phases.cut())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert all(parts.is_known() and parts.ns()["forward"] > 0 for parts in found)


def test_a_step_that_the_device_does_not_end_in_time_has_the_time_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the steps which follow until it is written."""
    monkeypatch.setattr(Parts, "is_known", lambda self: False)
    run = RunDirectory.join(tmp_path / "run")
    recorder = Recorder(run, role={}, facts={})
    took = []
    for number in range(12):
        began = time.perf_counter_ns()
        recorder.step_begins(number)
        time.sleep(0.01)
        recorder.step_ends()
        took.append(time.perf_counter_ns() - began)
    recorder.close()
    rows = list(read_steps(run.steps_path(0)))
    assert len(rows) == 12
    assert all(10 * MS <= row.duration_ns <= most + MS for row, most in zip(rows, took, strict=True))


def test_mapped_files_are_not_memory_of_the_process(tmp_path: Path) -> None:
    """Of 64 MiB that are mapped from a file and read, and as many that are the process's own."""
    size = 64 << 20
    (tmp_path / "data").write_bytes(bytes(size))
    before = resident_bytes()
    if before is None:
        pytest.skip("the system does not say")
    with (
        (tmp_path / "data").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert sum(mapped[i] for i in range(0, size, 4096)) == 0
        read = resident_bytes()
    own = bytearray(b"x" * size)
    after = resident_bytes()
    assert read is not None
    assert after is not None
    assert read - before < size // 4
    assert after - before > len(own) // 2


def test_rows_of_means_do_not_grow_without_end() -> None:
    """3,000 of 16 steps each become 750 of 64, at most a thousand; no step is lost."""
    means = [
        StepRecord(step=16 * i + 15, start_ns=i, duration_ns=100 + i % 7, steps=16, loss=float(i))
        for i in range(3_000)
    ]
    rows = means + [StepRecord(step=48_000 + i, start_ns=i, duration_ns=100) for i in range(KEPT)]
    found = shortened(rows)
    joined = found[:-KEPT]
    assert found[-KEPT:] == rows[-KEPT:]
    assert len(joined) == 750
    assert [row.step for row in joined[:2]] == [63, 127]
    assert sum(row.steps for row in joined) == 48_000
    assert (joined[0].duration_ns, joined[0].loss) == (round(101.5), 1.5)
    assert shortened(found) == found
