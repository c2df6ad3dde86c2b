"""A manifest with every part filled in."""

from __future__ import annotations

from perfdoc.profiling import manifest as m
from perfdoc.profiling.distributed.groups import ProcessGroup


def a_manifest() -> m.Manifest:
    return m.Manifest(
        perfdoc_version="0.1.0",
        created_utc="2026-11-21T01:22:11Z",
        command=("perfdoc", "run", "tiny", "seed=7"),
        device="cpu",
        dtype="fp32",
        config={
            "tensor_model_parallel_size": m.ConfigValue(value=2, origin="command line"),
            "lr": m.ConfigValue(value=3e-4, origin="file tiny.toml"),
        },
        layout=m.Layout(
            world_size=4,
            data=2,
            tensor=2,
            sequence_parallel=True,
            micro_batches=4,
            groups=(
                ProcessGroup(
                    description="TENSOR_MODEL_PARALLEL_GROUP", name="3", ranks=(0, 1), backend="gloo"
                ),
                ProcessGroup(
                    description="TENSOR_MODEL_PARALLEL_GROUP", name="3", ranks=(2, 3), backend="gloo"
                ),
            ),
        ),
        model=m.ModelShape(
            name="tiny",
            layers=4,
            hidden_size=128,
            ffn_hidden_size=512,
            attention_heads=4,
            query_groups=2,
            kv_channels=32,
            vocabulary=256,
            sequence_length=128,
            gated_mlp=True,
        ),
        batch=m.Batch(global_sequences=8, micro_sequences=1, tokens_per_step=1024),
        flops=m.Flops(per_step=None, convention="", reason="not counted in this test"),
        hardware=m.Hardware(
            nodes=1,
            cpu="a CPU",
            cpu_count=2,
            memory_bytes=1 << 34,
            gpus=(m.Gpu(rank=0, name="a GPU", sm_count=132, memory_bytes=1 << 37, compute_capability="9.0"),),
        ),
        versions={"python": "3.11.7"},
        environment={"OMP_NUM_THREADS": "1"},
        profile=m.Profile(profiler="torch", reason="asked for", first_step=5, steps=3, ranks=(0,)),
    )
