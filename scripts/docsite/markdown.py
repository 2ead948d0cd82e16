"""GitHub's Markdown as the site's: links between pages, links to files, lists and tables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

FENCE = re.compile(r"^( *)(`{3,}|~{3,})")
FENCED = re.compile(r"(^ *(?:```|~~~)[^\n]*\n.*?^ *(?:```|~~~)[ \t]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMG = re.compile(r"""(<img src=")([^"]+)\"""")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
IMAGES = {".png", ".svg"}


class Converter:
    """Converts the text of one page.

    ``places``: the place in the site of each file of the repository that is a page; ``source_url``: the address of the
    repository's files, for links to files that are not pages. Without it these links become plain text. ``images``
    collects the files that the pages show, by their place.
    """

    def __init__(self, root: Path, places: Mapping[str, str], source_url: str = "") -> None:
        self._root = root
        self._places = places
        self._source_url = source_url
        self.images: dict[str, Path] = {}

    def converted(self, text: str, source: str, place: str) -> str:
        """Return the Markdown of a page. ``source``: its file in the repository; ``place``: its file in the site."""
        lines: list[str] = []
        fence = ""
        for line in self._linked(text, source, place).split("\n"):
            if fence:
                lines.append(_in_list(line, lines))
                fence = "" if line.strip().startswith(fence) else fence
                continue
            if mark := FENCE.match(line):
                fence = mark[2]
            if _begins_list(line) and lines and re.match(r"\S", lines[-1]) and not _begins_list(lines[-1]):
                lines.append("")
            lines.append(_table_row(line) if line.startswith("|") else _in_list(line, lines))
        return "\n".join(lines)

    def _linked(self, text: str, source: str, place: str) -> str:
        """Return the text with the links of the site, paragraph by paragraph, because a link may take two lines."""
        parts = FENCED.split(text)  # prose and fenced blocks in turn
        parts[::2] = [
            "\n\n".join(self._with_links(paragraph, source, place) for paragraph in prose.split("\n\n"))
            for prose in parts[::2]
        ]
        return "".join(parts)

    def _with_links(self, paragraph: str, source: str, place: str) -> str:
        kept: list[str] = []

        def keep(found: re.Match[str]) -> str:
            kept.append(found[0])
            return f"\0{len(kept) - 1}\0"

        # A link may have code as its text, but code may not have links.
        shielded = CODE.sub(keep, paragraph)
        linked = LINK.sub(lambda found: self._link(found, source, place), shielded)
        linked = IMG.sub(lambda found: f'{found[1]}{self._address(found[2], source, place)}"', linked)
        return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], linked)

    def _link(self, found: re.Match[str], source: str, place: str) -> str:
        mark, label, target = found.groups()
        label = LINK.sub(lambda inner: self._link(inner, source, place), label)
        address = self._address(target, source, place)
        return label if address is None else f"{mark}[{label}]({address})"

    def _address(self, target: str, source: str, place: str) -> str | None:
        """Return the address of a link or an image in the site; None: the site does not have it."""
        if re.match(r"[a-z][a-z0-9+.-]*:|#", target):
            return target
        name, _, fragment = unquote(target).partition("#")
        path = os.path.normpath(PurePosixPath(source).parent / name)
        if path in self._places:
            where = self._places[path]
        elif PurePosixPath(path).suffix in IMAGES:
            where = f"images/{PurePosixPath(path).name}"
            self.images[where] = self._root / path
        else:
            return f"{self._source_url.rstrip('/')}/{path}" if self._source_url else None
        return os.path.relpath(where, PurePosixPath(place).parent) + ("#" + fragment if fragment else "")


def _begins_list(line: str) -> bool:
    return re.match(r"([-*]|\d+\.) ", line) is not None


def _in_list(line: str, before: list[str]) -> str:
    """Return a line that continues a numbered item with the four spaces that Python-Markdown wants."""
    if not re.match(r" {2,3}\S", line):
        deeper = re.match(r" {3}( {2,}\S)", line)
        return f"    {line[3:]}" if deeper and _continues_number(before) else line
    return f"    {line.lstrip()}" if _continues_number(before) else line


def _continues_number(before: list[str]) -> bool:
    for line in reversed(before):
        if line and not line.startswith(" "):
            return re.match(r"\d+\. ", line) is not None
    return False


def _table_row(line: str) -> str:
    """Return a row whose code has plain ``|``: Python-Markdown does not divide code into cells."""
    return CODE.sub(lambda found: found[0].replace(r"\|", "|"), line)
