"""A run on a machine whose own name nobody resolves, as in a sandbox without network."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.running import SMALL, Running, needs_training

pytestmark = pytest.mark.slow

ALONE = ("unshare", "--net", "--uts", "--map-root-user", "sh", "-c")
INSIDE = 'hostname nowhere.invalid && { ip link set lo up || ifconfig lo up; } && exec "$@"'


def test_ranks_find_each_other_without_the_machines_name(tmp_path: Path) -> None:
    needs_training()
    if shutil.which("unshare") is None or subprocess.run([*ALONE, INSIDE, "-", "true"]).returncode:
        pytest.skip("no network namespace may be made here")
    short = (*SMALL, "train_iters=3", "data_parallel_size=1", "--profiler", "none")
    run = Running.start(tmp_path, *short, before=(*ALONE, INSIDE, "-"))
    assert run.end(timeout_s=200).code == 0
    assert len((tmp_path / "out" / "steps" / "rank0.jsonl").read_text().splitlines()) == 3
