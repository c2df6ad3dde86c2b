"""Logs of five trainers: the times that were planted, the figures beside them, and what ran."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from perfdoc.traces import TraceError
from perfdoc.traces.training_logs.lines import TrainingLog
from perfdoc.traces.training_logs.read import read_training_log
from tests.traces.planted_logs import LOGS, hugging_face, megatron, torchtitan

TIMES = [9.0, 3.0, *(1.25 + 0.25 * (i % 3) for i in range(28))]
"""Of 30 steps, in seconds; the bar shows them with two decimals and NeMo with four digits."""


def read(tmp_path: Path, text: str | bytes) -> TrainingLog:
    (path := tmp_path / "a.log").write_bytes(text.encode() if isinstance(text, str) else text)
    return read_training_log(path)


def seconds(log: TrainingLog) -> list[float]:
    return [s.duration_ns / 1e9 for s in log.steps]


@pytest.mark.parametrize("trainer", LOGS)
def test_times_are_those_that_were_planted(tmp_path: Path, trainer: str) -> None:
    log = read(tmp_path, LOGS[trainer](TIMES))
    assert (log.dialect, log.mixed, log.restarts, log.missing_lines) == (trainer, "", 0, 0)
    first = 1 if trainer == "torchtitan" else 0  # its first line is of the start as well
    assert seconds(log) == pytest.approx(TIMES[first:], rel=1e-3)
    assert log.announced_steps == 30 - (trainer == "nemo")
    assert log.began is not None
    assert f"{log.began:%Y-%m-%d}" == "2026-02-24"


@pytest.mark.parametrize("trainer", LOGS)
def test_what_ran_is_what_was_planted(tmp_path: Path, trainer: str) -> None:
    said = read(tmp_path, LOGS[trainer](TIMES)).said
    same = {"config.seq_length": 4096, "config.global_batch_size": 128, "config.precision": "bf16"}
    assert {key: said.get(key) for key in same} == same
    if trainer == "hugging-face":
        assert said["config.data_parallel_size"] == 16
        assert (said["config.num_layers"], said["config.hidden_size"]) == (32, 4096)
        assert said["config.model"] == "LlamaConfig"
        return
    assert (said["layout.world_size"], said["config.tensor_model_parallel_size"]) == (16, 2)
    if trainer == "torchtitan":
        assert said["config.parameters"] == 8_032_000_000
        assert said["hardware.gpu"] == "NVIDIA H100 80GB HBM3"
    else:
        assert (said["config.num_layers"], said["config.hidden_size"]) == (32, 4096)


def test_figures_beside_the_time(tmp_path: Path) -> None:
    log = read(tmp_path, torchtitan(TIMES))
    step = log.steps[5]
    assert (step.tokens_per_s_per_gpu, step.tflops_per_gpu, step.mfu_frac) == (10_050, 314.71, 0.3182)
    assert log.peak_memory_bytes == round(66.91 * 2**30)
    log = read(tmp_path, megatron(TIMES))
    assert log.peak_memory_bytes == 20_480 * 2**20
    assert log.steps[2].tflops_per_gpu == 320.0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("fp8 ............ hybrid\n  fp8_recipe ....... mxfp8", "bf16 + fp8 hybrid (mxfp8)"),
        ("fp4 ............ nvfp4", "bf16 + fp4 nvfp4"),
    ],
)
def test_precision_of_gemms(tmp_path: Path, flags: str, words: str) -> None:
    text = megatron(TIMES)
    lines = [x for x in text.splitlines() if " fp8" not in x]
    lines.insert(3, f"  {flags}")
    assert read(tmp_path, "\n".join(lines)).said["config.precision"] == words


@pytest.mark.parametrize("mark", ["", "[rank{}]:", "[default{}]:", "{}: "])
def test_ranks_that_print_the_same_step_are_one(tmp_path: Path, mark: str) -> None:
    lines = torchtitan(TIMES, ranks=8).splitlines()
    marked = [mark.format(i % 8) + line for i, line in enumerate(lines)]
    # Two that wrote at once stand in either order.
    at = next(i for i, line in enumerate(marked) if "step:  9 " in line)
    marked[at + 7], marked[at + 8] = marked[at + 8], marked[at + 7]
    log = read(tmp_path, "\n".join(marked))
    assert (log.restarts, log.mixed, len(log.steps)) == (0, "", 29)
    assert seconds(log) == pytest.approx(TIMES[1:], abs=0.009)


@pytest.mark.parametrize("mark", ["[rank{}]:", "{}: "])
def test_ranks_of_megatron_differ_a_little(tmp_path: Path, mark: str) -> None:
    """Printed by two ranks, of which the second says half a millisecond more."""
    twice = []
    for one, two in zip(
        megatron(TIMES).splitlines(), megatron([t + 0.0005 for t in TIMES]).splitlines(), strict=True
    ):
        twice += [mark.format(0) + one, mark.format(1) + two]
    log = read(tmp_path, "\n".join(twice))
    assert (log.restarts, log.mixed) == (0, "")
    assert seconds(log) == TIMES


@pytest.mark.parametrize("trainer", LOGS)
def test_two_jobs_in_one_file_are_told(tmp_path: Path, trainer: str) -> None:
    one = LOGS[trainer]
    assert "jobs" in read(tmp_path, one(TIMES) + one(TIMES, seq=8192)).mixed


def test_a_titan_that_starts_again_counts_its_start_to_no_step(tmp_path: Path) -> None:
    lines = torchtitan(TIMES).splitlines()
    head, steps = lines[:5], lines[5:]
    again = torchtitan(TIMES).replace("2026-02-24 19:", "2026-02-24 20:").splitlines()[5:]
    log = read(tmp_path, "\n".join([*head, *steps[:20], *again[14:]]))  # back from 20 to 15
    assert (log.restarts, log.mixed) == (1, "")
    assert seconds(log) == pytest.approx(TIMES[1:])


def test_a_clock_that_goes_back_is_no_time(tmp_path: Path) -> None:
    lines = torchtitan(TIMES).splitlines()
    lines[20] = lines[20].replace("2026-02-24 19:", "2026-02-24 18:")
    assert read(tmp_path, "\n".join(lines)).unreadable_steps == (16,)


def test_a_bar_without_an_announced_end(tmp_path: Path) -> None:
    """transformers tells the length only where its logs are on: else it is the bar above the losses."""
    text = hugging_face(TIMES)
    text = "\n".join(x for x in text.split("\n") if "[INFO|" not in x)
    log = read(tmp_path, text)
    assert seconds(log) == pytest.approx(TIMES, rel=0.006)
    assert log.smoothed


def test_the_bar_of_tqdm_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real bar on a clock of our own: it shows a moving mean in which a step has weight 0.3."""
    tqdm = pytest.importorskip("tqdm.std")
    now = [1000.0]
    monkeypatch.setattr(tqdm, "time", lambda: now[0])
    out = io.StringIO()
    bar = tqdm.tqdm(total=len(TIMES), file=out, ncols=80)
    shown, weighted, weights = [], 0.0, 0.0
    for i, t in enumerate(TIMES, 1):
        now[0] += t
        bar.update(1)
        weighted, weights = 0.3 * t + 0.7 * weighted, 0.3 + 0.7 * weights
        shown.append(weighted / weights)
        if i % 10 == 0:
            bar.write("{'loss': 1.0, 'epoch': 0.1}", file=out)
    bar.close()
    log = read(tmp_path, out.getvalue() + "\n{'train_runtime': 1.0}\n")
    assert (log.dialect, log.announced_steps, log.restarts) == ("hugging-face", len(TIMES), 0)
    assert seconds(log) == pytest.approx(shown, abs=0.006)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 100_000,
        b"iteration 1/2 | elapsed time per iteration (ms): 0.0 |\n",  # no step takes no time
        b"iteration 1/2 | elapsed time per iteration (ms): nan |\n",
        b"iteration 1/2 | elapsed time per iteration (ms): 99999999999 |\n",  # three years
        b"elapsed time per iteration (ms): 5.0 |\n",
        b"train_step_timing in s: 5.0\n",
        b"iteration " * 100_000,
    ],
)
def test_what_is_no_step_is_none(tmp_path: Path, content: bytes) -> None:
    (log := tmp_path / "a.log").write_bytes(content)
    with pytest.raises(TraceError, match="holds no step times"):
        read_training_log(log)


@pytest.mark.parametrize("figure", ["0.0", "1e9", "1000000.0"])
def test_an_impossible_rate_is_unknown(tmp_path: Path, figure: str) -> None:
    """320 TFLOP/s in 1.25 s."""
    log = read(tmp_path, megatron(TIMES).replace("320.0", figure))
    rates = {step.duration_ns: step.tflops_per_gpu for step in log.steps}
    assert (rates[1_250_000_000], rates[3_000_000_000]) == (None, 133.3)
