"""Jobs put before the frameworks' own parsers, by an interpreter that has them: JSON in, what each says out.

`python framework_judges.py < jobs.json`; a job is `{"dialect": …, "text": …, "lines": […]}`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any


def deepspeed(text: str, lines: list[str]) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig  # type: ignore[import-not-found]

    DeepSpeedConfig(json.loads(text))


_CALL = re.compile(r"TrainingArguments\((\w+)=(.*)\)")


def accelerate(text: str, lines: list[str]) -> None:
    """The file as `accelerate launch` takes it, and the plugin that the workers make of its variables."""
    import yaml
    from accelerate.commands import launch  # type: ignore[import-not-found]
    from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin

    tree: dict[str, Any] = yaml.safe_load(text)
    for call in filter(None, map(_CALL.fullmatch, lines)):
        trainers({call[1]: yaml.safe_load(call[2])})
    tree = {name: value for name, value in tree.items() if not name.startswith("TrainingArguments")}
    deepspeeds = {
        name: tree.pop(name) for name in [*tree] if name in ("zero_optimization", "bf16", "compile")
    }
    if deepspeeds:
        deepspeed(json.dumps({"train_micro_batch_size_per_gpu": 1, **deepspeeds}), [])
    base = {"compute_environment": "LOCAL_MACHINE", "num_processes": 8, "num_machines": 1, "machine_rank": 0}
    base |= {"mixed_precision": "bf16", "use_cpu": False}
    parser = launch.launch_command_parser()
    known = {action.dest for action in parser._actions}
    for section in ("fsdp_config", "parallelism_config", "dynamo_config", "fp8_config"):
        unknown = {name for name in tree.get(section, {}) if name not in known}
        unknown -= {name for name in unknown if name.startswith("fp8_") or section == "fp8_config"}
        if unknown:
            raise ValueError(f"{section}: unknown {sorted(unknown)}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump({**base, **tree}))
        arguments = parser.parse_args(["--config_file", str(file), "train.py"])
        arguments, *_ = launch._validate_launch_command(arguments)
    if arguments.use_fsdp:
        try:
            os.environ.update(launch.prepare_multi_gpu_env(arguments))
            FullyShardedDataParallelPlugin()
        except RuntimeError as error:
            if not re.search("no available devices|FP8 is not", str(error)):  # of a machine without GPUs
                raise
    TorchDynamoPlugin()


def trainers(values: dict[str, Any]) -> None:
    from transformers import TrainingArguments  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        TrainingArguments(output_dir=folder, use_cpu=True, **{**values, "bf16": False, "tf32": None})


def torchtitan(text: str, lines: list[str]) -> None:
    """Sections and fields of JobConfig, up to 0.2, whose file needs nothing but itself."""
    file = Path(str(distribution("torchtitan").locate_file("torchtitan/config/job_config.py")))
    spec = importlib.util.spec_from_file_location("job_config", file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["job_config"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for line in lines:
        path, _, _ = line.partition("=")
        place: Any = module.JobConfig()
        for part in path.split("."):
            place = getattr(place, part)


def verl(text: str, lines: list[str]) -> None:
    """Hydra takes a path that is in the tree, and a new one behind a plus."""
    import yaml

    engine = "megatron" if "strategy=megatron" in text else ""
    name = f"_generated_ppo_{f'{engine}_' if engine else ''}trainer.yaml"
    file = Path(str(distribution("verl").locate_file(f"verl/trainer/config/{name}")))
    tree = yaml.load(file.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for line in lines:
        path, _, _ = line.partition("=")
        place = tree
        for part in path.lstrip("+").split("."):
            if not isinstance(place, dict) or part not in place:
                if path.startswith("+"):
                    break
                raise ValueError(f"{path} is not in {name}")
            place = place[part]


JUDGES: dict[str, Callable[[str, list[str]], None]] = {
    "deepspeed": deepspeed,
    "accelerate": accelerate,
    "torchtitan": torchtitan,
    "verl": verl,
}


def verdict(job: dict[str, Any]) -> str:
    """Empty where the framework takes the job; "-" and why where it cannot judge here."""
    before = dict(os.environ)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            own = [line for line in job["lines"] if "=" in line and not line.partition("=")[0].isupper()]
            JUDGES[job["dialect"]](job["text"], own)
    except ImportError as error:
        return f"- {error}"
    except SystemExit as error:
        return f"refused: exit {error.code}"
    except Exception as error:  # noqa: BLE001 - its verdict, whatever it is
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps([verdict(job) for job in json.load(sys.stdin)]) + "\n")
