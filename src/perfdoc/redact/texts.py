"""Texts, names and payloads without what is private: what is known stays, everything else gets a number.

Of the names that people give, known words stay, and numbers that stand alone or behind such a word. A
kernel's name stays as the compiler wrote it; what no such name has, a path above all, is replaced. A word
keeps its number wherever it occurs, so equal names stay equal and different ones different; which number it
gets says when it was met first, and nothing of the word.
"""

from __future__ import annotations

import re
import string
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import msgspec

from perfdoc.analyzers.kernels.part_names import CAMEL
from perfdoc.profiling.distributed.collective_name import MAX_TEXT, format_collective, parse_collective
from perfdoc.profiling.marks import format_group_mark, parse_group_mark, parse_rank_mark
from perfdoc.profiling.vocabulary import prefix_of
from perfdoc.traces.nsys.meta import WARNINGS
from perfdoc.traces.nsys.payload import COMMUNICATOR, FIELDS, HEADER, MAX_PAYLOAD_BYTES, read_schemas, unhex
from perfdoc.traces.nsys.source import SqliteSource


@cache
def known_words() -> frozenset[str]:
    """The words of known_words.txt, in lower case."""
    lines = Path(__file__).with_name("known_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for line in lines if not line.startswith("#") for word in line.split())


MAX_NAME = 4096
"""A longer name of a range is replaced as a whole."""
_MAX_DIGITS = 9
_MAX_OWN_DIGITS = 20
"""In perfdoc's own names: bytes, and numbers of operations."""
_LETTERS = frozenset("cfklovqx")
"""Single letters that stay, alone between other characters: q_proj, ln_f. Others may be a host's."""
_FORM = re.compile(
    r"(?:bf|fp|f|int|uint|float|bfloat|tf)(?:4|6|8|16|32|64)|e[2-8]m[0-9](?:fn|fnu|fnuz)?|[1-3]d"
    r"|p2p|a2a|[hd]2[hd]|1f1b|c10d?"
)
"""fp8, e4m3, 2d, p2p, a2a, h2d: letters with numbers that mean something. In lower case."""
_WORD = re.compile(r"[A-Za-z]+(?:[0-9]{1,4}[A-Za-z]*){0,2}")
"""Letters with a number or two among them: Conv2d, MaxPool2DBackward0. Keys and digests have more."""
_PARTS = re.compile(r"(?P<dimension>[1-3][dD](?![a-z]))|(?P<letters>[A-Za-z]+)|(?P<digits>[0-9]+)")

_HEX = "[0-9A-Fa-f]"
_ADDRESS = (
    rf"{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}"
    rf"|{_HEX}{{2}}(?::{_HEX}{{2}}){{5,19}}|{_HEX}{{2}}(?:-{_HEX}{{2}}){{5,19}}"
    rf"|(?=[A-Fa-f:]{{0,40}}[0-9])(?:(?:{_HEX}{{1,4}}::?){{3,7}}{_HEX}{{1,4}}|f[de]{_HEX}{{2}}(?::{_HEX}{{0,4}}){{1,7}})"
    rf"|(?<![0-9])[23]{_HEX}{{3}}:(?:{_HEX}{{1,4}}:){{0,6}}:{_HEX}{{0,4}}"
    r"|(?<![0-9])[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}(?![0-9])"
    r"|(?<![0-9])[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}-[0-9]{1,3}(?![0-9])"
)
"""Of devices and machines: a UUID, a MAC or InfiniBand address, IPv6, IPv4, and the 10-0-0-7 of clouds, also
where letters touch it. Each part of one is short enough to stay."""
_IN_RANGE = re.compile(_ADDRESS + r"|(?<![0-9])[0-9]{1,3}_[0-9]{1,3}_[0-9]{1,3}_[0-9]{1,3}(?![0-9])")
_PIECE = re.compile(r"(?P<odd>[^\x20-\x7e\w]+|[^\w\s]{5,})|[^\W_]+")
"""Characters of no name, and letters and digits between others."""

_CALL = re.compile(
    r"(?:cuda|cu|cublas|cublasLt|cudnn|cusolver|cusparse|cufft|hip|hsa|nccl|mtia|mu|ur|ze|xpu)"
    r"[A-Z][A-Za-z0-9]{1,60}(?:_v[0-9]{1,9}|_ptsz|_ptds|_spt){0,4}"
)
"""A call of CUDA or of another vendor's driver."""
_SLASH = re.compile(r"(?<!operator)/|\\")
_OF_PATHS = string.ascii_letters + string.digits + "_.:~+-"
_NOT_CODE = re.compile(r"[^\x20-\x7e]|[\";]")
_IN_CODE = re.compile(rf"{_ADDRESS}|[\w.+-]{{1,64}}@[\w-]{{1,64}}(?:\.[\w-]{{1,64}}){{1,8}}")
"""Of an address or of a mailbox; neither is in the name of a function."""


def _is_known(word: str) -> bool:
    return len(word) > 1 and word.lower() in known_words()


class Names:
    """Replaces words of one capture."""

    def __init__(self, keep: re.Pattern[str] | None = None) -> None:
        """keep: names that it finds stay as they are."""
        self._keep = keep
        self._numbers: dict[str, int] = {}
        self._done: dict[str, str] = {}

    @property
    def replaced(self) -> int:
        """Different words that were replaced."""
        return len(self._numbers)

    def of_range(self, text: str) -> str:
        """A name that people wrote."""
        if text not in self._done:
            kept = self._keep is not None and self._keep.search(text[:MAX_NAME])
            # CUDA's libraries name their ranges after their calls.
            stays = kept or _CALL.fullmatch(text)
            self._done[text] = text if stays else self._own(text) or self._cleaned(text, _MAX_DIGITS)
        return self._done[text]

    def of_call(self, text: str) -> str:
        """The name of a call of CUDA's or of the C library."""
        return text if _CALL.fullmatch(text) else self.of_range(text)

    def of_kernel(self, text: str) -> str:
        """The name of a kernel, as the compiler wrote it. Of one that no compiler writes, and of a path and
        all behind it, known words alone."""
        if _NOT_CODE.search(text):
            return self._cleaned(text, _MAX_DIGITS)
        slash = _SLASH.search(text)
        code = text if slash is None else text[: slash.start()].rstrip(_OF_PATHS)
        return _IN_CODE.sub(lambda m: self.number(m[0]), code) + self._cleaned(text[len(code) :], _MAX_DIGITS)

    def _own(self, text: str) -> str | None:
        """One of perfdoc's own names, read and written anew; None for any other."""
        if prefix_of(text) is None:
            return None
        if parse_rank_mark(text) is not None:
            return text
        if (group := parse_group_mark(text)) is not None:
            description, name = self._group(group.description), self._group(group.name)
            return format_group_mark(description, group.ranks, group.communicator, name=name)
        if (collective := parse_collective(text)) is not None:
            description, name = self._group(collective.group), self._group(collective.group_name)
            return format_collective(replace(collective, group=description, group_name=name))
        return self._cleaned(text, _MAX_OWN_DIGITS)

    def _group(self, text: str) -> str:
        """A description or a name of a process group, as short as a name carries it."""
        cleaned = self.of_range(text)
        return cleaned if len(cleaned) <= MAX_TEXT else self.number(text)

    def _cleaned(self, text: str, digits: int) -> str:
        if len(text) > MAX_NAME:
            return self.number(text)
        cleaned, at = [], 0
        for address in _IN_RANGE.finditer(text):
            cleaned += [self._words(text[at : address.start()], digits), self.number(address[0])]
            at = address.end()
        return "".join(cleaned) + self._words(text[at:], digits)

    def _words(self, text: str, digits: int) -> str:
        return _PIECE.sub(lambda m: self.number(m[0]) if m["odd"] else self._run(m[0], digits), text)

    def _run(self, run: str, digits: int) -> str:
        """Letters and digits between other characters."""
        if run.isascii() and run.isdecimal():
            return run if len(run) <= digits else self.number(run)
        low = run.lower()
        if low in known_words() or low in _LETTERS or _FORM.fullmatch(low):
            return run
        if not run.isascii() or not _WORD.fullmatch(run):
            return self.number(run)
        return self._pieces(run)

    def _pieces(self, run: str) -> str:
        """Words that were written together, as CamelCase has it. Digits stay behind a word that stays."""
        if not any(_is_known(word) for part in _PARTS.finditer(run) for word in CAMEL.split(part[0])):
            return self.number(run)
        cleaned: list[str] = []
        unknown = ""
        for part in _PARTS.finditer(run):
            if part["letters"] is None:
                if unknown:
                    unknown += part[0]
                else:
                    cleaned.append(part[0])
                continue
            for word in CAMEL.split(part[0]):
                if unknown:
                    cleaned.append(self.number(unknown))
                unknown = "" if _is_known(word) else word
                if not unknown:
                    cleaned.append(word)
        return "".join([*cleaned, self.number(unknown)] if unknown else cleaned)

    def number(self, word: str) -> str:
        """What stands for a word or a whole text.

        It begins as the word does, so that words of a CamelCase name stay apart; the number is in letters, so
        that digits after it are not taken for more of it.
        """
        number = self._numbers.setdefault(word, len(self._numbers) + 1)
        letters = ""
        while number:
            number, rest = divmod(number - 1, 26)
            letters = chr(ord("a") + rest) + letters
        return f"{'Anon' if word[:1].isupper() else 'anon'}{letters}"


NCCL_FIELDS = (COMMUNICATOR, *FIELDS.values(), "Root")
"""Fields of NCCL's payloads that hold whole numbers."""
EXPORT_FACTS = frozenset(
    {
        *("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"),
        *("EXPORT_SCHEMA_VERSION_MAJOR", "EXPORT_SCHEMA_VERSION_MINOR", "EXPORT_SCHEMA_VERSION_MICRO"),
    }
)
_VERSION = re.compile(
    r"20[0-9]{2}(?:\.[0-9]{1,6}){0,3}(?:-[0-9]{1,15}v[0-9]{1,3})?|[0-9]{1,3}(?:\.[0-9]{1,4}){0,2}"
)
_MAX_GPU_NAME = 100
_PRODUCT = "NVIDIA Nsight Systems"
_VENDORS_WORDS = (
    "nvidia tesla quadro geforce rtx gtx titan amd instinct radeon intel arc iris xe r tm pro super ti max q "
    "ada generation laptop mobile gpu graphics data center workstation server edition blackwell hopper grace "
    "drive jetson orin thor pcie sxm sxm2 sxm3 sxm4 sxm5 sxm6 nvl oam hbm2 hbm2e hbm3 hbm3e gddr6 xp v mig "
    "with simulated microsoft basic render display adapter driver cpu"
)
_GPU_WORDS = frozenset(_VENDORS_WORDS.split())
_GPU_TOKEN = re.compile(
    r"(?:gb|gh|mi|pg|gtx|rtx|[abghklmptv])?[0-9]{2,4}(?:[agmstx]|xt|ti|gb|gib)?|l?[0-9]{1,2}g?|t4|l4"
)
"""A model (H100, MI300X, 4090, T4), and sizes in GB."""

Row = Mapping[str, str]


def payload_json(names: Names, text: str, row: Row) -> str | None:
    """NCCL's numbers of a payload; nothing of any other."""
    if len(text) > MAX_PAYLOAD_BYTES:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    kept = {
        field: value
        for field in NCCL_FIELDS
        if isinstance(value := found.get(field), int) and not isinstance(value, bool) and 0 <= value < 2**64
    }
    return msgspec.json.encode(kept).decode() if kept else None


def gpu_name(names: Names, text: str, row: Row) -> str | None:
    """A product's name, word by word: what no vendor writes gets a number."""
    if len(text) > _MAX_GPU_NAME or _IN_RANGE.search(text) is not None:
        return names.number(text)
    return re.sub(r"\S+", lambda m: m[0] if _is_of_gpus(m[0]) else names.number(m[0]), text)


def _is_of_gpus(word: str) -> bool:
    parts = [part for part in re.split(r"[()./-]", word.lower()) if part]
    return word.isascii() and all(part in _GPU_WORDS or _GPU_TOKEN.fullmatch(part) for part in parts)


def export_value(names: Names, text: str, row: Row) -> str | None:
    """Its value."""
    if row.get("name") == "EXPORT_PRODUCT_NAME":
        return _PRODUCT if "Nsight" in text else None
    return text if row.get("name") in EXPORT_FACTS and _VERSION.fullmatch(text) else None


CLEANERS: Mapping[tuple[str, str], Callable[[Names, str, Row], str | None]] = MappingProxyType(
    {
        ("NVTX_EVENTS", "text"): lambda names, text, _: names.of_range(text),
        ("NVTX_EVENTS", "jsonText"): payload_json,
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): lambda _, text, row: text if text in NCCL_FIELDS else None,
        ("TARGET_INFO_GPU", "name"): gpu_name,
        ("TARGET_INFO_GPU", "uuid"): lambda names, text, _: names.number(text),
        ("TARGET_INFO_CUDA_DEVICE", "uuid"): lambda names, text, _: names.number(text),
        # What perfdoc looks for in nsys's own messages; the rest of them names paths and commands.
        ("DIAGNOSTIC_EVENT", "text"): lambda _, text, row: next(
            (known for known, _, _ in WARNINGS if known in text), None
        ),
        **{
            (t, "name"): lambda _, text, row: text if text in EXPORT_FACTS else None
            for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")
        },
        **{(t, "value"): export_value for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")},
    }
)
"""By table and column."""


Fields = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""(offset, bytes) of known fields by (domain, schema)."""


def known_fields(source: SqliteSource) -> Fields:
    """Where NCCL's numbers lie in the payloads of one export."""
    return {
        key: [(offset, struct.calcsize(layout)) for name, offset, layout in entries if name in NCCL_FIELDS]
        for key, entries in read_schemas(source).items()
    }


def clean_blob(value: object, fields: Fields) -> bytes | None:
    """A payload with nothing but its known numbers; None where none of them is known."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        return None
    raw = unhex(raw)
    if len(raw) < HEADER.size:
        return None
    domain, _, schema, _, size, _ = HEADER.unpack_from(raw)
    known = fields.get((domain, schema))
    if not known:
        return None
    body = raw[HEADER.size : HEADER.size + min(size, MAX_PAYLOAD_BYTES)]
    clean = bytearray(len(body))
    for offset, count in known:
        begin = max(offset, 0)
        clean[begin : begin + count] = body[begin : begin + count]
    return HEADER.pack(domain, 0, schema, 0, len(body), HEADER.size + len(body)) + bytes(clean[: len(body)])
