"""The command line inside the test process: all of it, without the two seconds that a start takes.

A test that is about processes (signals, workers, standard streams that fail, a terminal, an interpreter
without packages) starts one: `in_a_process`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from unittest import mock

import typer.main

from perfdoc.run.stop import STOPS

_MAIN = "perfdoc.__main__"
_BUILT = functools.cache(typer.main.get_command)
"""The parser of all commands, which is a fifth of what a short analysis takes: made once."""


def perfdoc(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `python -m perfdoc ARGUMENTS` writes and ends with on a machine of one core: it starts no workers.

    `env` is the whole environment. The streams are files under descriptors 0 to 2, where the command and the
    programs that it starts look for them; what the command changes of the process is put back.
    """
    words = [str(a) for a in arguments]
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        with _as_a_process(words, cwd, env), _descriptors(given, out, err):
            code = _run()
        return subprocess.CompletedProcess(words, code, _text(out), _text(err))


def in_a_process(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The real command in a real process."""
    return subprocess.run(
        [sys.executable, "-m", "perfdoc", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=120,
        check=False,
    )


def _run() -> int:
    try:
        importlib.import_module(_MAIN).main()
    except SystemExit as end:
        code = end.code
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    if isinstance(code, str):  # as the interpreter does
        os.write(2, f"{code}\n".encode())
        return 1
    return code or 0


@contextlib.contextmanager
def _as_a_process(words: list[str], cwd: Path | None, env: Mapping[str, str] | None) -> Iterator[None]:
    """What a process has of its own: arguments, environment, folder, signal handlers and garbage collection.

    It is `__main__` as well, which names the program in usage lines and is what its workers would import.
    """
    main = importlib.import_module(_MAIN)
    handlers = {number: signal.getsignal(number) for number in STOPS}
    threshold = gc.get_threshold()
    with (
        mock.patch.object(sys, "argv", [str(main.__file__), *words]),
        mock.patch.dict(os.environ, env or {}, clear=env is not None),
        mock.patch.object(typer.main, "get_command", _BUILT),
        mock.patch.object(gc, "freeze"),  # for the rest of the process, which is all tests
        contextlib.chdir(cwd or Path.cwd()),
    ):
        outer, sys.modules["__main__"] = sys.modules["__main__"], main
        for number in handlers:
            signal.signal(number, signal.SIG_DFL)
        try:
            yield
        finally:
            sys.modules["__main__"] = outer
            gc.set_threshold(*threshold)
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _descriptors(*files: IO[bytes]) -> Iterator[None]:
    """Files in the places of standard input, output and error."""
    old = sys.stdin, sys.stdout, sys.stderr
    for stream in old[1:]:
        stream.flush()
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (_stream(number) for number in range(3))
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = old
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _stream(number: int) -> Any:
    return open(number, "w" if number else "r", encoding="utf-8", closefd=False)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")
