"""A network namespace whose loopback has a limited rate: ranks of one machine over a slow network."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_NAMES = Path("/etc/netns")


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """The namespace."""

    name: str

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command, run in it."""
        return ["ip", "netns", "exec", self.name, *command]


@contextmanager
def limited_loopback(rate: str) -> Iterator[Loopback]:
    """Set up a loopback of so much in all (tc's words, such as `200mbit`); taken down afterwards.

    Raises subprocess.CalledProcessError or OSError where the kernel or the privileges do not allow it.
    """
    name = f"pdlo{os.getpid() % 100_000}"
    try:
        _run("ip", "netns", "add", name)
        # What `ip netns exec` puts over /etc: nobody answers questions for names there.
        folder = _NAMES / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        _run("ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up")
        limit = ["tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
        _run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", *limit)
        yield Loopback(name=name)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(_NAMES / name, ignore_errors=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
