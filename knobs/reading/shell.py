"""Scripts, by words that are never run: flags, `key=value`, variables, Dockerfiles, .env files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from perfdoc.knobs.knob import Knob, Spelling
from perfdoc.knobs.load import catalogue
from perfdoc.knobs.reading.arithmetic import SUM, computed
from perfdoc.knobs.reading.entry import Entry
from perfdoc.knobs.values import OPAQUE, Raw

_PIECE = re.compile(
    r"""(?P<continued>\\\r?\n)|(?P<newline>\r?\n)|(?P<space>[ \t\r\f\v]+)|(?P<comment>\#[^\n]*)
    |(?P<end>[;&|]+)|(?P<bracket>[()])
    |(?P<word>(?:\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^()\n]*\)
      |\$\(\((?:[^()\n]|\([^()\n]{0,80}\)){0,80}\)\)|\$\(\([^\n]{0,200}?\)\)|`[^`\n]*`|\$\{[^}\n]{0,200}\}
      |[^\s;&|()'"\\`]|['"\\`$])+)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Word:
    """A word, or the end of a command where `text` is None."""

    text: str | None
    line: int
    written: str = ""
    """With its quotes and newlines."""


def split_words(text: str, first_line: int = 1) -> Iterator[Word]:
    """Words and ends of commands. Newlines in brackets, as of a bash array, separate words only."""
    line, depth, position = first_line, 0, 0
    while position < len(text):
        match = _PIECE.match(text, position)
        if match is None:  # no alternative takes a stray byte: skip it
            position += 1
            continue
        position = match.end()
        kind, piece = match.lastgroup, match.group()
        if kind == "end" or (kind == "newline" and depth == 0):
            yield Word(None, line)
        elif kind == "bracket":
            depth = max(0, depth + (1 if piece == "(" else -1))
            if depth == 0:
                yield Word(None, line)
        elif kind == "word":
            yield Word(unquoted(piece), line, piece)
        line += piece.count("\n")
    yield Word(None, line)


def unquoted(piece: str) -> str:
    """A word without its quotes and backslashes."""
    return re.sub(r"""\\\r?\n|\\(.)|'([^']*)'|["'](?!$)|["']$""", _unquoted, piece, flags=re.DOTALL)


def _unquoted(match: re.Match[str]) -> str:
    return match.group(1) or match.group(2) or ""


_FLAG = re.compile(r"--[A-Za-z][\w-]*")
_NEGATIVE = re.compile(r"-\d")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PATH = re.compile(r"(?:\+{0,2})([A-Za-z_][\w-]*(?:[./@][\w-]+)+)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_WHOLE = re.compile(r"\$(\w+|[@*])|\$\{(\w+|[@*])(?:\[[@*]\])?(?::?[-+=?][^}]*)?\}")
_SCRIPT = re.compile(r"\./.*|.*\.py", re.DOTALL)
_MAX_EXPANDED = 4096
_DECLARING = frozenset({"export", "ENV", "ARG", "declare", "local", "readonly", "env", "setenv"})


def shell_entries(text: str, first_line: int = 1) -> Iterator[Entry]:
    """Every flag, override and variable of a script.

    A variable that the script sets once to a plain text is put where it is used; one that it sets twice, or
    that comes from elsewhere, is a value that cannot be told.
    """
    commands = [_apart(words) for words in _commands(split_words(text, first_line))]
    variables = _constants(commands)
    unused = _unused(commands)
    for number, words in enumerate(commands, start=1):
        expanded = [_expanded(word, variables) for word in words]
        holder = unused.get(id(words), "")
        for entry in _of_command(expanded, number):
            yield replace(entry, unused=holder) if holder else entry


def _unused(commands: Sequence[Sequence[Word]]) -> dict[int, str]:
    """Commands that only fill an array or a variable with flags which no command takes, and its name.

    A file that runs nothing, or that hands its variables on, is taken from elsewhere: all of it counts.
    """
    texts = [word.text or "" for words in commands for word in words]
    handed_on = any(text in _HANDED_ON or "${!" in text for text in texts)
    if (
        handed_on
        or any(_hands_on(words) for words in commands)
        or not any(_SCRIPT.fullmatch(text) for text in texts)
    ):
        return {}
    taken: set[str] = set()
    for text in texts:
        assigned = _ASSIGNED.fullmatch(text)
        taken.update(_NAME.findall(assigned[3] if assigned else text))  # `export ARGS`, `printenv ARGS`
    found: dict[int, str] = {}
    for words in commands:
        match = _ASSIGNED.fullmatch(words[0].text or "")
        held = " ".join([match[3], *(w.text or "" for w in words[1:])]) if match else ""
        if match and match[1] not in taken and held.lstrip().startswith("--"):
            found[id(words)] = match[1]
    return found


_NAME = re.compile(r"[A-Za-z_]\w*")
_HANDED_ON = frozenset({"eval", "declare", "envsubst"})
"""Words by which another program or script gets what this one sets."""
_BEFORE_A_COMMAND = frozenset(
    {"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "builtin", "command"}
)
_EXPORTS_ALL = re.compile(r"-[A-Za-z]*a[A-Za-z]*|allexport")
_OF_THE_MACHINE = re.compile(
    r"/etc/.*|.*/etc/profile\.d/.*|(?:.*/)?(?:\.\w*(?:rc|profile|aliases)|activate|conda\.sh)"
)
"""Files that set up a shell or an environment of Python, and know no variable of a script."""


def _hands_on(words: Sequence[Word]) -> bool:
    """Whether a command runs a file in the script's own shell, or hands all variables on from here."""
    texts = [word.text or "" for word in words]
    while texts and (texts[0] in _BEFORE_A_COMMAND or _ASSIGNED.fullmatch(texts[0])):
        texts.pop(0)
    command, rest = (texts[0], texts[1:]) if texts else ("", [])
    if command == "set":
        return any(_EXPORTS_ALL.fullmatch(text) for text in rest)
    sourced = command in (".", "source") and bool(rest)
    return sourced and not _OF_THE_MACHINE.fullmatch(rest[0])


def takes_more(text: str) -> bool:
    """Whether a script's commands take words from elsewhere, among which may be flags: its own arguments, or
    a variable that it does not set."""
    commands = [_apart(words) for words in _commands(split_words(text))]
    own = {
        match[1]
        for words in commands
        for word in words
        if (match := _ASSIGNED.fullmatch(word.text or "")) and not re.search(rf"\$\{{{match[1]}\b", match[3])
    }
    return any(
        (match := _WHOLE.fullmatch(word.text or "")) and (match[1] or match[2]) not in own
        for words in commands
        for word in _not_values(words)
    )


def _not_values(words: Sequence[Word]) -> Iterator[Word]:
    """Words of a command with flags, or of one that starts a script, that are no flag's value."""
    if not any(_FLAG.match(w.text or "") or _SCRIPT.fullmatch(w.text or "") for w in words):
        return
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        yield word
        takes_one = _FLAG.fullmatch(word.text or "") and _named(word.text or "") not in _flags("switch")
        if takes_one and position < len(words) and not (words[position].text or "").endswith(("@]}", "*]}")):
            position += 1


def word_entries(words: Sequence[tuple[str, int]], command: int = 1) -> Iterator[Entry]:
    """The same for a command line that is a list already."""
    return _of_command([Word(text, line) for text, line in words], command)


def _commands(words: Iterator[Word]) -> Iterator[list[Word]]:
    command: list[Word] = []
    for word in words:
        if word.text is None:
            if command:
                yield command
            command = []
        else:
            command.append(word)


def _apart(words: Sequence[Word]) -> list[Word]:
    """`"--flag value"` in an array, in quotes, is two words to the program in the end."""
    return [
        Word(part, word.line, part) if quoted else word
        for word in words
        for quoted in [(word.text or "").startswith("--") and " " in (word.text or "")]
        for part in ((word.text or "").split() if quoted else [""])
    ]


def _constants(commands: Sequence[Sequence[Word]]) -> dict[str, str]:
    """Variables that are set exactly once, to one word without variables."""
    found: dict[str, str | None] = {}
    for words in commands:
        for word in words:
            match = _ASSIGNED.fullmatch(word.text or "")
            if match is None:
                continue
            name, adds, value = match.groups()
            value = computed(value, found)
            plain = not adds and "$" not in value and "`" not in value and len(value) <= _MAX_EXPANDED
            found[name] = value if plain and name not in found else None
        if words[0].text in ("for", "read", "while", "select"):
            found.update((w.text, None) for w in words[1:2] if w.text)
    one = {name: value for name, value in found.items() if value is not None}
    return {name: value for name, value in one.items() if not re.search(r"\s|^-", value)}


def _expanded(word: Word, variables: dict[str, str]) -> Word:
    """A word with known variables in it."""
    text = word.text or ""
    if "$" not in text or len(text) > _MAX_EXPANDED:
        return word
    text = SUM.sub(lambda m: computed(m.group(), variables), text)
    filled = _VARIABLE.sub(lambda m: variables.get(m.group(1) or m.group(2), m.group()), text)
    written = _VARIABLE.sub(lambda m: variables.get(m.group(1) or m.group(2), m.group()), word.written)
    return Word(filled[: 4 * _MAX_EXPANDED], word.line, written[: 4 * _MAX_EXPANDED])


def _of_command(words: Sequence[Word], command: int) -> Iterator[Entry]:
    position = 0
    seen_program = False
    while position < len(words):
        word = words[position]
        text, position = word.text or "", position + 1
        flag, equals, inline = text.partition("=")
        assigned = _ASSIGNED.fullmatch(text)
        path = _PATH.fullmatch(text)
        if _FLAG.fullmatch(flag):
            raw: Raw = inline
            if not equals:
                values = _values_of(flag, words, position)
                position += len(values)
                raw = True if not values else values[0] if len(values) == 1 else tuple(values)
            if flag in ("--env",) and isinstance(raw, str):
                yield from _of_command([Word(raw, word.line)], command)
                continue
            yield Entry(form="flag", name=flag, raw=_plain(raw), line=word.line, command=command)
        elif path is not None:
            yield Entry(
                form="path", name=path.group(1), raw=_plain(path.group(2)), line=word.line, command=command
            )
        elif assigned is not None and not assigned.group(2):
            name, value = assigned.group(1), assigned.group(3)
            if re.search(r"(^|\s)--\w", value):  # ARGS="--flag 1 --other 2"
                yield from _of_command(list(_inside(word)), command)
            elif name.isupper():
                yield Entry(form="env", name=name, raw=_plain(value), line=word.line, command=command)
            else:
                bare = not seen_program and len(words) == 1
                yield Entry(
                    form="path", name=name, raw=_plain(value), line=word.line, command=command, bare=bare
                )
        elif text in _DECLARING and position < len(words) and "=" not in (words[position].text or "="):
            name = words[position].text or ""  # ENV NAME value, setenv NAME value
            if name.isupper() and position + 1 < len(words):
                value = words[position + 1].text or ""
                yield Entry(form="env", name=name, raw=_plain(value), line=word.line, command=command)
                position += 2
        elif text not in _DECLARING:
            seen_program = True


def _inside(word: Word) -> Iterator[Word]:
    """The words in a quoted text, each on its own line."""
    written = (word.written or word.text or "").partition("=")[2]
    for offset, segment in enumerate(written.split("\n")):
        for text in re.sub(r"[\"'\\]", " ", segment).split():
            yield Word(text, word.line + offset)


def _values_of(flag: str, words: Sequence[Word], first: int) -> list[str]:
    """The words that are a flag's values: in `--nproc-per-node 8 train.py` one, for the script is none."""
    most = 1 if _named(flag) in _flags("scalar") | _flags("switch") else len(words)
    may_name_a_file = _named(flag) not in _flags("list") | _flags("switch")
    values: list[str] = []
    for word in words[first : first + most]:
        script = _SCRIPT.fullmatch(word.text or "") and (values or not may_name_a_file)
        if script or not _is_value(word):
            break
        values.append(word.text or "")
    return values


@cache
def _flags(takes: Literal["switch", "scalar", "list"]) -> frozenset[str]:
    """The flags of the catalogue that take no value or one, exactly one, or any number."""
    return frozenset(
        _named(spelling.name)
        for knob in catalogue().values()
        for spelling in knob.spellings
        if spelling.name.startswith("--") and takes == _takes(knob, spelling)
    )


def _takes(knob: Knob, spelling: Spelling) -> str:
    if knob.type == "bool" or spelling.means is not None:
        return "switch"
    if knob.type in ("list", "int_list", "str_or_list"):
        return "list"
    return "scalar" if knob.type in ("int", "float", "str", "dtype") else "anything"


def _named(flag: str) -> str:
    return flag.replace("_", "-")


def _is_value(word: Word) -> bool:
    text = word.text or ""
    if text.startswith("-") and not _NEGATIVE.match(text):
        return False
    return _PATH.fullmatch(text) is None


def _plain(raw: Raw) -> Raw:
    texts = (raw,) if isinstance(raw, str) else raw if isinstance(raw, tuple) else ()
    return OPAQUE if any("$" in t or "`" in t for t in texts) else raw
