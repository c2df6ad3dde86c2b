"""What each check says, and what stops a command."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest

from perfdoc.doctor import checks
from perfdoc.doctor.checks import (
    Check,
    Requirement,
    free_space,
    package,
    perf_event_level,
    shared_memory,
    works,
)
from perfdoc.profiling.installation import install_command, install_package

MIB = 1 << 20


def test_a_missing_and_an_old_package_stop_what_needs_them() -> None:
    gone = package(Requirement(name="no-such-package-of-perfdoc", range=">=2", extra="train"))
    assert (gone.state, gone.found) == ("fail", "not installed (needs >=2)")
    assert gone.remedy == install_command("train")
    assert works([gone], "analyze")
    assert not works([gone], "run")
    old = package(Requirement(name="numpy", range=">=99", extra=""))
    assert old.state == "fail"
    assert old.remedy == install_package("numpy>=99")
    assert not works([old], "analyze")
    fine = package(Requirement(name="numpy", range=">=1.26", extra=""))
    assert (fine.state, fine.remedy) == ("ok", "")


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (perf_event_level(2), "ok"),
        (perf_event_level(-1), "ok"),
        (perf_event_level(3), "warn"),
        (shared_memory(64 * MIB), "warn"),
        (shared_memory(1024 * MIB), "ok"),
        (free_space(100 * MIB), "warn"),
        (free_space(5000 * MIB), "ok"),
    ],
)
def test_levels(check: Check, state: str) -> None:
    assert check.state == state
    assert bool(check.remedy) is (state == "warn")
    assert works([check], "run")


def test_only_what_fails_stops_a_command() -> None:
    failed = Check(name="x", state="fail", found="", needed_by=("run",))
    assert not works([failed], "run")
    assert works([replace(failed, state="warn")], "run")


def test_one_check_that_breaks_hides_no_other() -> None:
    def broken() -> list[Check]:
        raise RuntimeError("planted")

    found = checks.all_checks((broken, *checks.LOOKS[:1]))
    assert [(c.name, c.state) for c in found] == [("broken", "warn"), ("python", "ok")]
    assert found[0].found == "cannot be looked at: RuntimeError: planted"


@pytest.mark.parametrize(
    ("versions", "state", "said"),
    [
        ({}, "ok", install_command("dask")),
        ({"distributed": "2026.8.0"}, "ok", "not installed"),
        ({"distributed": "2024.1.0", "cryptography": "45"}, "warn", "distributed 2024.1.0 (needs >=2025.1)"),
        ({"distributed": "2026.8.0", "cryptography": "45"}, "ok", "2026.8.0"),
    ],
)
def test_dask(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], state: str, said: str) -> None:
    wanted = [
        Requirement(name="cryptography", range=">=42", extra="dask"),
        Requirement(name="distributed", range=">=2025.1", extra="dask"),
    ]
    monkeypatch.setattr(checks, "requirements", lambda: wanted)
    monkeypatch.setattr(checks, "installed", versions.get)
    (found,) = checks._dask()
    assert (found.state, said in found.found) == (state, True)


@pytest.mark.parametrize(
    ("version", "driver", "state", "said"),
    [
        (None, None, "ok", "used on CUDA alone"),
        (None, "580.65", "warn", "not installed"),
        ("2.11.0", "580.65", "ok", "2.11.0"),
        ("2.20.2", "580.65", "warn", "megatron-core wants"),
    ],
)
def test_transformer_engine(
    monkeypatch: pytest.MonkeyPatch, version: str | None, driver: str | None, state: str, said: str
) -> None:
    wanted = Requirement(name="transformer-engine", range=">=2.9,<2.12", extra="te")
    monkeypatch.setattr(checks, "requirements", lambda: [wanted])
    monkeypatch.setattr(checks, "installed", lambda name: version)
    monkeypatch.setattr(checks, "nvidia_driver", lambda: driver)
    (found,) = checks._transformer_engine()
    assert found.state == state
    assert said in found.found
    assert bool(found.remedy) is (state == "warn")
    assert works([found], "run")


@pytest.mark.parametrize(("wait_s", "state"), [(0.0, "ok"), (None, "warn"), (60.0, "warn")])
def test_a_host_name_that_nobody_resolves(
    monkeypatch: pytest.MonkeyPatch, wait_s: float | None, state: str
) -> None:
    """At once, never, or later than one would wait."""
    answers = threading.Event()

    def resolve(name: str, port: None) -> list[str]:
        if wait_s is None:
            raise socket.gaierror(-2, "Name or service not known")
        answers.wait(wait_s)
        return ["127.0.0.1"]

    monkeypatch.setattr(checks.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(checks, "_RESOLVES_S", 0.1 if wait_s else 60.0)
    (found,) = checks._host_name()
    answers.set()
    assert (found.state, bool(found.remedy)) == (state, state == "warn")
    assert works([found], "run")
