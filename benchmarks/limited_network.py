"""Slow networks on one machine, where communication of CPU runs counts: namespaces of limited rate."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

_NAMES = Path("/etc/netns")


@dataclass(frozen=True, kw_only=True)
class Link:
    """A pair of namespaces, one for each rank."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    interfaces: tuple[str, str]

    def inside(self, rank: int, command: Sequence[str]) -> list[str]:
        """The command, run in a rank's namespace."""
        return ["ip", "netns", "exec", self.names[rank], *command]


def missing() -> str:
    """Why no such link can be made here; empty where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    try:
        with limited_link("1gbit"):
            return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()[:200]}"


@contextmanager
def limited_link(rate: str) -> Iterator[Link]:
    """Set up a link of so much each way (tc's words, such as `200mbit`); taken down afterwards.

    Raises subprocess.CalledProcessError where the kernel or the privileges do not allow it.
    """
    tag = f"pd{os.getpid() % 100_000}"
    link = Link(
        names=(f"{tag}a", f"{tag}b"),
        addresses=("10.199.77.1", "10.199.77.2"),
        interfaces=(f"{tag}va", f"{tag}vb"),
    )
    try:
        for name in link.names:
            _add(name, dict(zip(link.addresses, link.names, strict=True)))
        _run("ip", "link", "add", link.interfaces[0], "type", "veth", "peer", "name", link.interfaces[1])
        for name, address, interface in zip(link.names, link.addresses, link.interfaces, strict=True):
            _run("ip", "link", "set", interface, "netns", name)
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", interface, "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _limit(name, interface, rate)
        yield link
    finally:
        for name in link.names:  # the ends of the link go with them
            _remove(name)


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """A namespace whose loopback has a limited rate: ranks of one machine over a slow network."""

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
        _add(name, {})
        _run("ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up")
        _limit(name, "lo", rate)
        yield Loopback(name=name)
    finally:
        _remove(name)


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A namespace for each rank, and a link of its own for each two."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    """One of each rank, for a library that asks for a name."""

    def inside(self, rank: int, command: Sequence[str]) -> list[str]:
        """The command, run in a rank's namespace."""
        return ["ip", "netns", "exec", self.names[rank], *command]


@contextmanager
def mesh(ranks: int, limited: Mapping[tuple[int, int], str]) -> Iterator[Mesh]:
    """Set up links of any two ranks, those of `limited` (the lower rank first) with a rate each way.

    Raises subprocess.CalledProcessError or OSError where the kernel or the privileges do not allow it.
    """
    tag = f"pd{os.getpid() % 100_000}"
    names = tuple(f"{tag}m{r}" for r in range(ranks))
    addresses = tuple(f"10.199.78.{r + 1}" for r in range(ranks))
    try:
        for name in names:
            _add(name, dict(zip(addresses, names, strict=True)))
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for first, second in combinations(range(ranks), 2):
            ends = (f"{tag}v{first}{second}", f"{tag}v{second}{first}")
            _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for mine, interface, other in ((first, ends[0], second), (second, ends[1], first)):
                name = names[mine]
                _run("ip", "link", "set", interface, "netns", name)
                _run("ip", "-n", name, "addr", "add", f"{addresses[mine]}/32", "dev", interface)
                _run("ip", "-n", name, "link", "set", interface, "up")
                _run("ip", "-n", name, "route", "add", f"{addresses[other]}/32", "dev", interface)
                if (first, second) in limited:
                    _limit(name, interface, limited[first, second])
        interfaces = tuple(f"{tag}v{r}{1 if r == 0 else 0}" for r in range(ranks))
        yield Mesh(names=names, addresses=addresses, interfaces=interfaces)
    finally:
        for name in names:
            _remove(name)


def _add(name: str, hosts: Mapping[str, str]) -> None:
    """Make a namespace, and what `ip netns exec` puts over /etc: nobody answers questions for names there,
    and each would wait for seconds."""
    _run("ip", "netns", "add", name)
    folder = _NAMES / name
    folder.mkdir(parents=True, exist_ok=True)
    known = [("127.0.0.1", "localhost"), *hosts.items(), ("127.0.0.1", socket.gethostname())]
    (folder / "hosts").write_text("".join(f"{address} {host}\n" for address, host in known))
    (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")


def _limit(name: str, interface: str, rate: str) -> None:
    limit = ["tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
    _run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", *limit)


def _remove(name: str) -> None:
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    shutil.rmtree(_NAMES / name, ignore_errors=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
