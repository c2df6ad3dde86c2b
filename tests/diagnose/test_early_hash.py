from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.diagnose.early_hash import begin_hash


def test_it_is_the_hash_of_the_one_file_that_was_named(tmp_path: Path) -> None:
    file = tmp_path / "rank0.sqlite"
    file.write_bytes(b"x" * 100_000)
    hashing = begin_hash([str(file)])
    assert hashing is not None
    found = hashing.of(file)
    assert found is not None
    assert found.result(60) == hashlib.sha256(b"x" * 100_000).hexdigest()
    assert hashing.of(tmp_path / "other.sqlite") is None


def test_nothing_is_begun_that_is_no_single_capture(tmp_path: Path) -> None:
    file, folder, pipe = tmp_path / "a.sqlite", tmp_path / "b.sqlite", tmp_path / "c.sqlite"
    file.write_bytes(b"")
    folder.mkdir()
    os.mkfifo(pipe)
    report = tmp_path / "a.nsys-rep"  # an export beside it may be what is read
    report.write_bytes(b"")
    for words in (
        [],
        [str(file), str(file)],
        [str(folder)],
        [str(pipe)],
        [str(report)],
        ["gone.sqlite"],
        ["\0.gz"],
    ):
        assert begin_hash(words) is None, words


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads what nobody may read")
def test_a_hash_that_failed_is_left_to_whoever_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    file.write_bytes(b"")
    file.chmod(0)
    hashing = begin_hash([str(file)])
    assert hashing is not None
    hashing.sha256.exception(60)
    assert hashing.of(file) is None


def test_it_imports_the_standard_library_alone() -> None:
    module = "perfdoc.diagnose.early_hash"
    line = f"import sys; old = set(sys.modules); import {module}; print(*(set(sys.modules) - old))"
    done = subprocess.run([sys.executable, "-c", line], check=True, capture_output=True, text=True)
    roots = {name.split(".")[0] for name in done.stdout.split()}
    assert roots - set(sys.stdlib_module_names) == {"perfdoc"}
