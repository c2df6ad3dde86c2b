"""Reading a page back: its elements, text and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr", "base"}
# End tags that HTML lets a page leave out, and what a start tag closes.
OPTIONAL = {"th", "td", "tr", "li", "p"}
CLOSES = {"td": {"td", "th"}, "th": {"td", "th"}, "tr": {"td", "th", "tr"}, "li": {"li"}}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    inside: list[str]
    """Ids of the elements around it."""
    text: str = ""
    children: list[Element] = field(default_factory=list)


class Page(HTMLParser):
    """All elements of a page in order; `problems` lists tags that do not match."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.problems: list[str] = []
        self.text = ""
        self._open: list[Element] = []
        self.feed(html)
        self.close()
        self.problems += [f"<{e.tag}> not closed" for e in self._open if e.tag not in OPTIONAL]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        while self._open and self._open[-1].tag in CLOSES.get(tag, ()):
            self._open.pop()
        names = [name for name, _ in attrs]
        if len(set(names)) != len(names):
            self.problems.append(f"<{tag}> repeats an attribute")
        made = Element(
            tag=tag,
            attributes={name: value or "" for name, value in attrs},
            inside=[e.attributes["id"] for e in self._open if "id" in e.attributes],
        )
        self.elements.append(made)
        if self._open:
            self._open[-1].children.append(made)
        if tag not in VOID:
            self._open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open[-1].tag != tag and self._open[-1].tag in OPTIONAL:
            self._open.pop()
        if not self._open or self._open[-1].tag != tag:
            self.problems.append(f"</{tag}> closes nothing")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1].tag in ("style", "script"):
            return
        self.text += data
        for element in self._open:
            element.text += data

    def by_id(self, name: str) -> Element:
        """The one element with an id."""
        (found,) = (e for e in self.elements if e.attributes.get("id") == name)
        return found

    def within(self, name: str, tag: str) -> list[Element]:
        """Elements of a tag inside the element with an id."""
        return [e for e in self.elements if e.tag == tag and name in e.inside]
