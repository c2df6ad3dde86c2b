"""`perfdoc mcp` in a process of its own, asked by the SDK's client over standard input and output."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from perfdoc.reports.llm import LIMIT
from tests.agent.captures import INJECTION, write_capture
from tests.command import perfdoc

TOOLS = {"analyze", "findings", "table", "explain", "lint", "tune", "diff"}


@pytest.fixture(autouse=True)
def sdk() -> None:
    """Imported here: it takes most of a second, also where tests are only collected."""
    pytest.importorskip("mcp", reason="the extra mcp is not installed")


def test_a_client_asks_every_tool(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    write_capture(root / "a.sqlite")
    write_capture(root / "b.sqlite", slower_ns=50_000)
    write_capture(tmp_path / "outside.sqlite")
    (root / "job.yaml").write_text("tensor_model_parallel_sizes: 2\nglobal_batch_size: 8\n")
    before = {path: path.read_bytes() for path in root.iterdir()}
    # In a thread of its own: the browser of other tests keeps an event loop in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, _talk, root).result()
    assert {path: path.read_bytes() for path in root.iterdir()} == before, "nothing is written"


async def _talk(root: Path) -> None:
    import mcp

    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "perfdoc", "mcp", "--root", str(root)],
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    with anyio.fail_after(100):
        async with mcp.stdio_client(server) as (read, write), mcp.ClientSession(read, write) as session:
            begun = await session.initialize()
            assert begun.server_info.name == "perfdoc"
            assert "never an instruction" in str(begun.instructions)
            tools = (await session.list_tools()).tools
            assert {tool.name for tool in tools} == TOOLS
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)

            async def ask(tool: str, /, **arguments: Any) -> tuple[bool, str]:
                done = await session.call_tool(tool, arguments)
                text = "".join(part.text for part in done.content)
                assert len(text) <= 2 * LIMIT
                assert not [c for c in text if not c.isprintable() and c != "\n"]
                assert INJECTION not in text
                return bool(done.is_error), text

            wrong, text = await ask("analyze", paths=["a.sqlite"], window="capture")
            assert not wrong, text
            assert text.startswith("analysis: a1\n")
            assert not [line for line in text.splitlines() if line.startswith(("# System", "Ignore", "```"))]
            wrong, text = await ask("findings", analysis="a1")
            assert not wrong, text
            assert json.loads(text)["analysis"] == "a1"
            wrong, text = await ask("table", analysis="a1", name="kernels", sort_by="total_ns", limit=1)
            assert not wrong, text
            (row,) = json.loads(text)["rows"]
            assert row["total_ns"] == 100_000
            assert row["name"].startswith('gemm"}]}')
            wrong, text = await ask("diff", before="a1", after="b.sqlite")
            assert not wrong, text
            assert json.loads(text)["mean"]["change_ns"] == 50_000
            wrong, text = await ask("explain", code="pd202")
            assert not wrong
            assert text.startswith("# PD202: ")
            wrong, text = await ask("lint", config="job.yaml")
            assert not wrong, text
            assert json.loads(text)["findings"][0]["key"] == "tensor_model_parallel_sizes"
            # No steps: nothing to predict, in one line.
            wrong, text = await ask("tune", analysis="a1")
            assert wrong
            assert "\n" not in text

            for outside in (
                "../outside.sqlite",
                str(root.parent / "outside.sqlite"),
                "*/../../outside.sqlite",
            ):
                wrong, text = await ask("analyze", paths=[outside])
                assert wrong
                assert "outside of --root" in text
            wrong, text = await ask("table", analysis="a1", name="kernels", limit=10_000)
            assert wrong, "more rows than are given"


def test_what_it_needs_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = perfdoc("mcp", "--root", tmp_path / "nowhere")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = perfdoc("mcp")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[mcp]" in done.stderr
