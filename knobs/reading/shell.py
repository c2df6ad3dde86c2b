"""Scripts, by words that are never run: flags, `key=value`, variables, Dockerfiles, .env files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from perfdoc.knobs.reading.entry import Entry, Form
from perfdoc.knobs.reading.shell_flags import (
    FLAG,
    PATH,
    SCRIPT,
    WHOLE,
    flags_that_take,
    is_value,
    named,
    values_of,
)
from perfdoc.knobs.reading.shell_variables import ASSIGNED, asked_of_slurm, constants_of, expanded
from perfdoc.knobs.reading.shell_words import Word, commands_of, split_words
from perfdoc.knobs.values import OPAQUE, Raw

_DECLARING = frozenset({"export", "ENV", "ARG", "declare", "local", "readonly", "env", "setenv"})


def shell_entries(text: str, first_line: int = 1) -> Iterator[Entry]:
    """Every flag, override and variable of a script.

    A variable that the script sets once to a plain text is put where it is used; one that it sets twice, or
    that comes from elsewhere, is a value that cannot be told.
    """
    commands = [_apart(words) for words in commands_of(split_words(text, first_line))]
    variables = constants_of(commands, asked_of_slurm(text))
    unused = _unused(commands)
    apart = _whole_commands(commands)
    for number, words in enumerate(commands, start=1):
        filled = [expanded(word, variables) for word in words]
        holder = unused.get(id(words), "")
        block = f"line {words[0].line}" if number in apart else ""
        for entry in _of_command(filled, number):
            yield replace(entry, unused=holder, block=block) if holder or block else entry


_MUCH = 6


def _whole_commands(commands: Sequence[Sequence[Word]]) -> set[int]:
    """Numbers of commands that each start a program with settings of their own, where there are several: one
    has nothing to do with another."""
    found = {
        number
        for number, words in enumerate(commands, start=1)
        if _runs(words)
        and sum(bool(FLAG.match(w.text or "") or PATH.fullmatch(w.text or "")) for w in words) >= _MUCH
    }
    return found if len(found) > 1 else set()


def _unused(commands: Sequence[Sequence[Word]]) -> dict[int, str]:
    """Commands that only fill an array or a variable with flags which no command takes, and its name.

    A file that runs nothing, or that hands its variables on, is taken from elsewhere: all of it counts.
    """
    texts = [word.text or "" for words in commands for word in words]
    handed_on = any(text in _HANDED_ON or "${!" in text for text in texts)
    if (
        handed_on
        or any(_hands_on(words) for words in commands)
        or not any(SCRIPT.fullmatch(text) for text in texts)
    ):
        return {}
    taken: set[str] = set()
    for text in texts:
        assigned = ASSIGNED.fullmatch(text)
        taken.update(_NAME.findall(assigned[3] if assigned else text))  # `export ARGS`, `printenv ARGS`
    found: dict[int, str] = {}
    for words in commands:
        match = ASSIGNED.fullmatch(words[0].text or "")
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
    while texts and (texts[0] in _BEFORE_A_COMMAND or ASSIGNED.fullmatch(texts[0])):
        texts.pop(0)
    command, rest = (texts[0], texts[1:]) if texts else ("", [])
    if command == "set":
        return any(_EXPORTS_ALL.fullmatch(text) for text in rest)
    sourced = command in (".", "source") and bool(rest)
    return sourced and not _OF_THE_MACHINE.fullmatch(rest[0])


def takes_more(text: str) -> bool:
    """Whether a script's commands take words from elsewhere, among which may be flags: its own arguments, or
    a variable that it does not set. Also a fragment, which only fills variables for whoever sources it."""
    called = set(re.findall(r"^[ \t]*(\w{1,80})[ \t]+[^\s(]", text, re.M))
    text = _FUNCTION.sub(lambda f: f[0].replace("$@", "") if f[2] and f[1] in called else f[0], text)
    commands = [_spread(words) for words in commands_of(split_words(text))]
    if not any(FLAG.match(words[0].text or "") or _runs(words) for words in commands):
        return True
    own = {
        match[1]
        for words in commands
        for word in words
        if (match := ASSIGNED.fullmatch(word.text or "")) and not re.search(rf"\$\{{{match[1]}\b", match[3])
    }
    return any(
        ((match := WHOLE.fullmatch(word.text or "")) and (match[1] or match[2]) not in own)
        or (number and _SUBSTITUTED.fullmatch(word.text or ""))
        for words in commands
        for number, word in enumerate(_not_values(words))
    )


_FUNCTION = re.compile(r"(?ms)^[ \t]*(?:function[ \t]+)?(\w{1,80})[ \t]*\(\)\s*\{.*?(?:(^[ \t]*\})|\Z)")
"""To its end, or to the text's, so that none is looked for twice."""


def _spread(words: Sequence[Word]) -> list[Word]:
    """A command's words, and those in quotes as of `bash -c "…"`, one by one."""
    parts = [(word, (word.text or "").split()) for word in words]
    return [Word(part, word.line) for word, texts in parts for part in texts if part]


_SUBSTITUTED = re.compile(r"`[^`]*`|\$\([^()]*\)")
"""What another command prints."""


_OTHER_SCRIPT = re.compile(r"(?!/etc/)[\w./${}~-]*\.(?:sh|bash|slurm|sbatch)")
_RUNNERS = frozenset({"bash", "sh", "source", ".", "sbatch", "exec"})


def leads_on(text: str) -> Iterator[tuple[int, str]]:
    """(line, what is run) of the commands of a script whose words are elsewhere: another script, the script's
    own arguments, a variable that it does not set."""
    commands = [_apart(words) for words in commands_of(split_words(text))]
    known = constants_of(commands)
    for words in commands:
        texts = [expanded(word, known).text or "" for word in words]
        while texts and (texts[0] in _BEFORE_A_COMMAND or ASSIGNED.fullmatch(texts[0])):
            texts.pop(0)
        first, second = (*texts, "", "")[:2]
        if first in _RUNNERS and (_OTHER_SCRIPT.fullmatch(second) or WHOLE.fullmatch(second)):
            yield words[0].line, f"{first} {second}"
        elif _OTHER_SCRIPT.fullmatch(first) or WHOLE.fullmatch(first):
            yield words[0].line, first


def starts_program(text: str) -> bool:
    """Whether a text is a command line that starts a program with flags or settings."""
    words = [Word(part, 1) for part in text.split()]
    return _runs(words) and any(FLAG.match(w.text or "") or PATH.fullmatch(w.text or "") for w in words)


def _runs(words: Sequence[Word]) -> bool:
    """Whether a command starts a program."""
    return any(SCRIPT.fullmatch(word.text or "") or word.text == "-m" for word in words)


def _not_values(words: Sequence[Word]) -> Iterator[Word]:
    """Words of a command with flags, or of one that starts a script, that are no flag's value."""
    if not any(FLAG.match(w.text or "") or SCRIPT.fullmatch(w.text or "") for w in words):
        return
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        yield word
        takes_one = FLAG.fullmatch(word.text or "") and named(word.text or "") not in flags_that_take(
            "switch"
        )
        if takes_one and position < len(words) and not (words[position].text or "").endswith(("@]}", "*]}")):
            position += 1


def word_entries(words: Sequence[tuple[str, int]], command: int = 1) -> Iterator[Entry]:
    """The same for a command line that is a list already."""
    return _of_command([Word(text, line) for text, line in words], command)


def _apart(words: Sequence[Word]) -> list[Word]:
    """`"--flag value"` in an array, in quotes, is two words to the program in the end."""
    return [
        Word(part, word.line, part) if quoted else word
        for word in words
        for quoted in [(word.text or "").startswith("--") and " " in (word.text or "")]
        for part in ((word.text or "").split() if quoted else [""])
    ]


def _of_command(words: Sequence[Word], command: int) -> Iterator[Entry]:
    position = 0
    seen_program = False

    def made(form: Form, name: str, raw: Raw, **more: Any) -> Entry:
        return Entry(form=form, name=name, raw=_plain(raw), line=word.line, command=command, **more)

    while position < len(words):
        word = words[position]
        text, position = word.text or "", position + 1
        script = position > 1 and (
            _GIVES_SCRIPT.fullmatch(words[position - 2].text or "") is not None or words[0].text in _REMOTE
        )
        flag, equals, inline = text.partition("=")
        assigned = ASSIGNED.fullmatch(text)
        path = PATH.fullmatch(text)
        if FLAG.fullmatch(flag):
            raw: Raw = inline
            extra: list[str] = []
            if not equals:
                values, extra = values_of(flag, words, position)
                position += len(values) + len(extra)
                raw = True if not values else values[0] if len(values) == 1 else tuple(values)
            first = raw[0] if isinstance(raw, tuple) else raw  # behind it stands an image
            if flag == "--env" and isinstance(first, str):
                yield from _of_command([Word(first, word.line)], command)
                continue
            yield made("flag", flag, raw, extra=tuple(extra))
        elif dotted := _DOTTED.fullmatch(text):
            position, raw = _after_dotted(dotted, words, position)
            yield made("path", dotted[1].replace("-", "_"), raw)
        elif script and re.search(r"\s", text):
            yield from _of_script(word, command)
        elif path is not None:
            yield made("path", path[1], path[2])
        elif assigned is not None and _HOLDS_WORDS.search(assigned.group(3)):  # ARGS="--flag 1 --other 2"
            yield from _of_command(list(_inside(word)), command)
        elif assigned is not None and not assigned.group(2):
            if assigned[1].isupper():
                yield made("env", assigned[1], assigned[3])
            else:
                yield made("path", assigned[1], assigned[3], bare=not seen_program and len(words) == 1)
        elif text in _DECLARING and position < len(words) and "=" not in (words[position].text or "="):
            name = words[position].text or ""  # ENV NAME value, setenv NAME value
            if name.isupper() and position + 1 < len(words):
                yield made("env", name, words[position + 1].text or "")
                position += 2
        elif text not in _DECLARING:
            seen_program = True


_HOLDS_WORDS = re.compile(r"(^|\s)(--\w|\+{0,2}[A-Za-z_]\w*(\.[\w-]+)+=)")
"""In a text: flags, or settings by their paths."""
_DOTTED = re.compile(r"--([A-Za-z_][\w-]*(?:\.[\w-]+)+)(?:=(.*))?", re.DOTALL)
"""A flag by its path, as torchtitan has it: `--training.steps 10`."""
_GIVES_SCRIPT = re.compile(r"-[a-z]{0,3}c")
_REMOTE = frozenset({"ssh", "pdsh", "clush", "pssh", "dsh"})
"""Programs that run a command, given in quotes, on other machines."""
_MAX_INNER = 3


def _after_dotted(dotted: re.Match[str], words: Sequence[Word], position: int) -> tuple[int, Raw]:
    """(where the words go on, the flag's value): a switch has none."""
    if dotted[2] is not None:
        return position, dotted[2]
    if position < len(words) and is_value(words[position]):
        return position + 1, words[position].text or ""
    return position, "true"


def _of_script(word: Word, command: int) -> Iterator[Entry]:
    """What the script in `bash -c "…"` sets."""
    if word.written.count("-c ") > _MAX_INNER:
        return
    for words in commands_of(split_words(word.text or "", word.line)):
        yield from _of_command([_apart([one])[0] for one in words], command)


def _inside(word: Word) -> Iterator[Word]:
    """The words in a quoted text, each on its own line."""
    written = (word.written or word.text or "").partition("=")[2]
    for offset, segment in enumerate(written.split("\n")):
        for text in segment.split():
            if plain := re.sub(r"[\"'\\]", "", text):
                yield Word(plain, word.line + offset)


def _plain(raw: Raw) -> Raw:
    texts = (raw,) if isinstance(raw, str) else raw if isinstance(raw, tuple) else ()
    return OPAQUE if any("$" in t or "`" in t for t in texts) else raw
