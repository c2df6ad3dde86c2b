"""Where figures of a training go: TensorBoard, Weights & Biases, MLflow, a file for Prometheus.

A sink is a function around the service's own package. One that fails says so once and is left alone.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from perfdoc.profiling import background
from perfdoc.profiling.errors import one_line
from perfdoc.profiling.own.exposition import exposition
from perfdoc.profiling.whole_file import whole_file

SERVICES = ("tensorboard", "wandb", "mlflow", "prometheus")
VARIABLE = "PERFDOC_LOG"
"""Services with commas between; empty: none of them."""
PREFIX = "perfdoc/"
"""Of figures, among those of the training."""
_WRITE_EVERY_S = 5.0
"""A file that is scraped: more often is for nobody."""
_LEAST_S = 5.0
"""What a server has at the end, whatever was waited for before."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What goes to the sinks at a step."""

    step: int
    figures: Mapping[str, float] = field(default_factory=dict)
    """By the names of metrics.yaml."""
    text: str = ""
    kind: str = "verdict"
    """What the text is."""
    page: Path | None = None
    """A report."""
    last: bool = False
    """Nothing follows."""
    until_s: float = 0.0
    """When, on the monotonic clock, the end of the training waits no longer."""

    def named(self) -> dict[str, float]:
        """The figures as they are called among those of the training."""
        return {PREFIX + name: value for name, value in self.figures.items()}


Sink = Callable[[Said], object]


def chosen(log: Sequence[str] | None) -> Sequence[str] | None:
    """Services: those given, else of PERFDOC_LOG, else None. Raises ValueError for another one."""
    asked = os.environ.get(VARIABLE)
    words = log if log is not None or asked is None else [w.strip() for w in asked.split(",") if w.strip()]
    for word in words or ():
        name, _, place = word.partition("=")
        if name not in SERVICES or bool(place) != (name == "prometheus"):
            raise ValueError(f"{word}: figures go to tensorboard, wandb, mlflow, prometheus=PATH")
    return words


def opened(services: Sequence[str] | None, run: Path) -> list[Sink]:
    """Sinks by name, for a run directory. None: TensorBoard, where it is installed."""
    if services is None:
        has = [importlib.util.find_spec(name) is not None for name in ("torch", "tensorboard")]
        services = ["tensorboard"] if all(has) else []
    makers = {"tensorboard": _event_files, "wandb": _own_wandb, "mlflow": _own_mlflow, "prometheus": _scraped}
    asked = [word.partition("=") for word in services]
    return [sink for name, _, place in asked for sink in guarded(name, makers[name], run, place)]


def harmless(name: str, failed: set[str]) -> Callable[..., Any]:
    """What calls a function with its arguments, until one fails: that is told, and nothing more is called.
    failed: names of those that did."""

    def safe(function: Callable[..., Any], *given: object) -> Any:
        try:
            return None if name in failed else function(*given)
        except Exception as error:  # noqa: BLE001 - whatever a service says, training goes on
            failed.add(name)
            sys.stderr.write(f"perfdoc: {name}: {one_line(error)}; nothing more is shown there\n")

    return safe


def guarded(name: str, make: Callable[..., Sink | None], *arguments: object) -> list[Sink]:
    """The sink that is made of some arguments, silent from its first failure on; none where it is None."""
    safe = harmless(name, set())
    sink = safe(make, *arguments)
    return [] if sink is None else [partial(safe, sink)]


def begun() -> list[Sink]:
    """What this process logs to already: its run of W&B, its run of MLflow."""
    services = {name: sys.modules[name] for name in ("wandb", "mlflow") if name in sys.modules}
    return [sink for name, service in services.items() for sink in guarded(name, of_service, service)]


def of_service(service: Any, run_id: str | None = None) -> Sink | None:
    """A sink of what a training loop logs through: TensorBoard's writer, wandb or its run, mlflow or its
    client with a run. None where it is none of them, or has no run."""
    if hasattr(service, "add_scalar"):
        return _tensorboard(service)
    if hasattr(service, "log_batch") and run_id is not None:
        return _mlflow(service, run_id)
    if hasattr(service, "active_run"):
        active = service.active_run()
        return None if active is None else _mlflow(service.MlflowClient(), active.info.run_id)
    run = service.run if hasattr(service, "init") and hasattr(service, "run") else service
    return _wandb(run) if hasattr(run, "log_artifact") else None


def _tensorboard(writer: Any, *, own: bool = False) -> Sink:
    def send(said: Said) -> None:
        for name, value in said.named().items():
            writer.add_scalar(name, value, said.step)
        if said.text:
            writer.add_text(PREFIX + said.kind, f"```\n{said.text}\n```", said.step)
        if said.last and own:
            writer.close()

    return send


def _event_files(run: Path, _: str) -> Sink:
    writers: Any = importlib.import_module("torch.utils.tensorboard")
    folder = str(run / "tensorboard")
    return _tensorboard(writers.SummaryWriter(folder, max_queue=1_000, flush_secs=10), own=True)


def _wandb(run: Any, *, own: bool = False) -> Sink:
    """own: a call is a point of its own; the owner of another run counts its points."""
    run.define_metric(f"{PREFIX}step", hidden=True)
    run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
    package: Any = importlib.import_module("wandb")

    def send(said: Said) -> None:
        if said.figures:
            run.log({**said.named(), f"{PREFIX}step": said.step}, commit=own)
        if said.text:
            run.summary[PREFIX + said.kind] = said.text
        if said.page is not None:
            artifact = package.Artifact(f"perfdoc-{run.id}", type="report")
            artifact.add_file(str(said.page))
            run.log_artifact(artifact)
        if said.last and own:
            run.finish()

    return send


def _own_wandb(run: Path, _: str) -> Sink:
    """The run of this process, else one of its own: the same for one run directory."""
    package: Any = importlib.import_module("wandb")
    if package.run is not None:
        return _wandb(package.run)
    made = package.init(id=_identity(run), resume="allow", dir=str(run), name=run.resolve().name)
    return _wandb(made, own=True)


def _mlflow(client: Any, run_id: str, *, own: bool = False) -> Sink:
    entities: Any = importlib.import_module("mlflow.entities")
    waiting = deque[Any](maxlen=1_000)  # what a server takes at once; where it is slow, the oldest give way
    calls = deque[Callable[[], object]](maxlen=100)
    sending: list[Future[Any]] = []  # one at most: the training does not wait for the server

    def work(batch: list[Any], then: list[Callable[[], object]]) -> None:
        if batch:
            client.log_batch(run_id, batch)
        for call in then:
            call()

    def send(said: Said) -> None:
        began_s, now_ms = time.monotonic(), time.time_ns() // 10**6
        until_s = max(said.until_s, began_s + _LEAST_S) if said.last else began_s
        waiting.extend(entities.Metric(n, value, now_ms, said.step) for n, value in said.named().items())
        if said.text:
            calls.append(partial(client.log_text, run_id, said.text, f"{PREFIX}{said.kind}.txt"))
        if said.page is not None:
            calls.append(partial(client.log_artifact, run_id, str(said.page), "perfdoc"))
        if said.last and own:
            calls.append(partial(client.set_terminated, run_id))
        while sending or waiting or calls:
            if not sending:
                sending.append(background.begun(partial(work, [*waiting], [*calls]), "mlflow"))
                waiting.clear()
                calls.clear()
            if not wait(sending, until_s - time.monotonic()).done:
                if said.last:
                    raise TimeoutError(f"no answer in {until_s - began_s:.2g} s")
                return
            sending.pop().result()

    return send


def _own_mlflow(run: Path, _: str) -> Sink:
    """The run of this process, else one of its own: the same for one run directory."""
    package: Any = importlib.import_module("mlflow")
    if (active := of_service(package)) is not None:
        return active
    client, experiment = package.MlflowClient(), package.set_experiment("perfdoc").experiment_id
    tags = {"perfdoc_run": _identity(run)}
    known = client.search_runs([experiment], f"tags.perfdoc_run = '{_identity(run)}'")
    made = known or [client.create_run(experiment, tags=tags, run_name=run.resolve().name)]
    return _mlflow(client, made[0].info.run_id, own=True)


def _identity(run: Path) -> str:
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]


def _scraped(run: Path, place: str) -> Sink:
    """A file that is scraped: whole or not at all, and what was written once stays until it is new."""
    known: dict[str, float] = {}
    written_s = float("-inf")

    def send(said: Said) -> None:
        nonlocal written_s
        known.update(said.figures)
        if "step_seconds" in said.figures:
            known.update(step=said.step, step_timestamp_seconds=time.time())
        if known and (said.last or time.monotonic() - written_s >= _WRITE_EVERY_S):
            written_s = time.monotonic()
            with whole_file(Path(place), replace=True) as part:
                part.write_text(exposition(known, run.resolve().name), encoding="utf-8")

    return send
