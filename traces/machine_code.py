"""Machine code from LLVM's text, by llvmlite, in some milliseconds: numba takes half a second to start."""

from __future__ import annotations

import re
from threading import Lock
from typing import Any

_UNTYPED = 16
"""From this version of LLVM on a pointer has no type."""
_ONE_AT_A_TIME = Lock()
"""Of two engines made at once one would be freed with the code that another thread runs."""
_engines: dict[str, Any] = {}


def machine_code(text: str, *names: str) -> list[int]:
    """Addresses of functions of this text; made once, and there until the end. Pointers are written `ptr`, as
    LLVM has them now."""
    with _ONE_AT_A_TIME:
        if text not in _engines:
            _engines[text] = _made(text)
        return [_engines[text].get_function_address(name) for name in names]


def is_made(text: str) -> bool:
    """Whether its functions are there already."""
    return text in _engines


def _made(text: str) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    typed = llvm.llvm_version_info[0] < _UNTYPED
    module = llvm.parse_assembly(re.sub(r"\bptr\b", "i64*", text) if typed else text)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
