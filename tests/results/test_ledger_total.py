"""The whole of a ledger is the sum of its leaves, each counted once."""

from dataclasses import fields

from perfdoc.results.ranks import ExposedComm, Idle, Ledger


def test_every_leaf_counts_once() -> None:
    comm = ExposedComm(**{f.name: 10**i for i, f in enumerate(fields(ExposedComm))})
    idle = Idle(**{f.name: 10**i for i, f in enumerate(fields(Idle))})
    assert comm.total == 1_111_111
    assert idle.total == 111_111
    found = Ledger(compute=2_000_000, exposed_comm=comm, exposed_memcpy=30_000_000, idle=idle)
    assert found.total == 33_222_222 == sum(found.by_leaf.values())
