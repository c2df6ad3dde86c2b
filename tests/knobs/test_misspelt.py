"""Names with a slip of the pen, and names that lack a word, of every dialect: told by lint."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from perfdoc.knobs.flags import megatron_flags
from perfdoc.knobs.knob import Dialect, Knob
from perfdoc.knobs.lint.text import lint
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.naming.meaning import names_of

FILES: dict[Dialect, tuple[str, str]] = {
    "megatron_core": ("c.py", "from megatron.core import x\nTransformerConfig(num_layers=2)\n"),
    "megatron_bridge": ("c.yaml", "model.tensor_model_parallel_size: 2\nddp.overlap_grad_reduce: true\n"),
    "megatron_lm": ("c.sh", "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 "),
    "nemo": ("c.yaml", "trainer.strategy.tensor_model_parallel_size: 2\ntrainer.strategy.use_sharp: true\n"),
    "verl": (
        "c.yaml",
        "actor_rollout_ref.actor.strategy: megatron\n"
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size: 2\n",
    ),
    "torchtitan": (
        "c.yaml",
        "parallelism.tensor_parallel_degree: 2\nparallelism.data_parallel_shard_degree: 1\n",
    ),
    "deepspeed": ("c.yaml", "zero_optimization.stage: 2\nzero_optimization.contiguous_gradients: true\n"),
    "accelerate": ("c.yaml", "distributed_type: FSDP\nfsdp_config.fsdp_version: 2\n"),
    "env": ("c.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=1\nexport NCCL_DEBUG=WARN\n"),
}
SLIPS, WORDS = 15, 6
"""Of each dialect."""


def slipped(rng: random.Random, leaf: str) -> str:
    """A letter left out, doubled, changed or swapped with the next; not the first, nor a library's name."""
    first = leaf.index("_") + 2 if leaf.isupper() and "_" in leaf else 3 if leaf.startswith("--") else 1
    while True:
        at, letter = rng.randrange(first, len(leaf)), rng.choice("aeioustrn")
        if leaf[at] in "_-" or leaf[at : at + 2] in (leaf[at] * 2, f"{leaf[at]}_", f"{leaf[at]}-"):
            continue
        new = letter.upper() if leaf.isupper() else letter
        return (
            leaf[:at] + rng.choice(["", leaf[at] * 2, new, leaf[at + 1 : at + 2] + leaf[at]]) + leaf[at + 1 :]
        )


def shortened(rng: random.Random, leaf: str) -> str:
    """A name of three words or more without one that is not the first; else as it is."""
    between = "-" if leaf.startswith("--") else "_"
    words = leaf.removeprefix("--").split(between)
    if len(words) > 2:
        words.pop(rng.randrange(1, len(words)))
    return ("--" if leaf.startswith("--") else "") + between.join(words)


def file_with(dialect: Dialect, name: str, knob: Knob) -> tuple[str, str]:
    file, text = FILES[dialect]
    value = knob.choices[0] if knob.choices else True if knob.type == "bool" else max(int(knob.min or 1), 1)
    if dialect == "megatron_core":
        owner, _, field = name.rpartition(".")
        return f"{text}{owner}({field}={value!r})\n", file
    if dialect == "megatron_lm":
        return f"{text}{name} {'' if value is True else value}\n", file
    return (
        f"{text}export {name}={value}\n" if dialect == "env" else f"{text}{name}: {json.dumps(value)}\n",
        file,
    )


def wrong_names(dialect: Dialect, rng: random.Random, made: object) -> Iterator[tuple[str, str, bool]]:
    """(the name, what was written, whether lint tells the place) of each name that is no other's."""
    known = names_of(dialect).by_path
    names = [(s.name, k) for k in catalogue().values() for s in k.spelled(dialect) if k.kind == "knob"]
    rng.shuffle(names)
    for name, knob in names:
        head, dot, leaf = name.rpartition(".") if dialect not in ("megatron_lm", "env") else ("", "", name)
        new = made(rng, leaf)  # type: ignore[operator]
        written = f"{head}{dot}{new}"
        if new == leaf or written in known or written in megatron_flags() or len(leaf.strip("-")) < 5:
            continue
        text, file = file_with(dialect, written, knob)
        told = [
            f for f in lint(text, file).findings if new in f.key and f.code in ("PL101", "PL102", "PL103")
        ]
        yield name, written, any(f.severity != "note" for f in told)


@pytest.mark.parametrize("made", [slipped, shortened])
def test_of_a_hundred_wrong_names_98_are_told(made: object) -> None:
    rng = random.Random(20261127)
    tried = []
    for dialect in FILES:
        rows = wrong_names(dialect, rng, made)
        tried += [row for row, _ in zip(rows, range(SLIPS if made is slipped else WORDS), strict=False)]
    missed = [(name, written) for name, written, told in tried if not told]
    assert len(tried) > (120 if made is slipped else 50)
    assert len(missed) <= 0.02 * len(tried), missed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "export NCCL_PXN_DISABLE=1\n"),
        ("x.sh", "export NCCL_NVB_DISABLE=1\n"),
        ("x.py", "TransformerConfig(num_layers=8, hidden_size=4096, fp8='hybrid', fp8_param=True)\n"),
    ],
)
def test_real_names_that_look_like_others(name: str, text: str) -> None:
    assert [f.code for f in lint(text, name).findings if f.code == "PL101"] == []
