"""One rank of a test: trains the given cases one after another in the same processes.

Started by `launch.py`. Imports nothing heavy at the top: saving a checkpoint starts a helper that imports it
again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def _groups() -> dict[str, list[int]]:
    """The ranks of this process's groups, as megatron-core made them."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    made = {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "cp": parallel_state.get_context_parallel_group(),
        "dp": parallel_state.get_data_parallel_group(),
        "pp": parallel_state.get_pipeline_model_parallel_group(),
        "dp_cp": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "ep": parallel_state.get_expert_model_parallel_group(),
        "etp": parallel_state.get_expert_tensor_parallel_group(),
        "edp": parallel_state.get_expert_data_parallel_group(),
    }
    return {name: dist.get_process_group_ranks(group) for name, group in made.items()}


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    from perfdoc.trainer import adapt

    adapt.prepare()
    from perfdoc.trainer import session
    from perfdoc.trainer.config import resolve
    from perfdoc.trainer.layout import plan
    from perfdoc.trainer.log import RunLog
    from perfdoc.trainer.loop import build, train

    session.start_processes(resolve("tiny").config)
    rank = session.rank()
    for case in job["cases"]:
        config = resolve("tiny", case["overrides"]).config
        layout = plan(config, session.world_size(), "cpu")
        session.start_layout(config, layout)
        run = train(build(config, layout), RunLog(None, 1))
        result = {
            "loss": [record.loss for record in run.records],
            "grad_norm": [record.gradient_norm for record in run.records],
            "steps": [record.step for record in run.records],
            "groups": _groups(),
        }
        target = Path(job["out"]) / f"{case['name']}.rank{rank}.json"
        target.write_text(json.dumps(result), encoding="utf-8")
        session.end_layout()
    session.end_processes()


if __name__ == "__main__":
    main()
