"""Checks of the finished HTML: every link leads to a page and an anchor that exist, and no page needs another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "srcset"}
"""Attributes whose address a browser loads by itself; also that of ``link``, if it is not a reference."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}


class _Addresses(HTMLParser):
    """Collects the anchors of a page, its links, and the addresses that a browser loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the id of an element."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in NOT_LOADED:
            self.loaded.append(values.get("href", ""))
        elif tag in LOADED and (address := values.get(LOADED[tag])):
            self.loaded.append(address)


@cache
def _page(path: Path) -> _Addresses:
    found = _Addresses()
    found.feed(path.read_text(encoding="utf-8"))
    return found


def faults(site: Path) -> Iterator[str]:
    """Yield a line for each broken link and each address of another host that a page loads."""
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site)
        page = _page(path)
        for address in page.loaded:
            if re.match(r"(https?:)?//", address):
                yield f"{name}: loads {address}"
            elif fault := _fault(site, path, address):
                yield f"{name}: {fault}"
        for address in page.links:
            if fault := _fault(site, path, address):
                yield f"{name}: {fault}"


def _fault(site: Path, source: Path, address: str) -> str | None:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return None
    if source.name == "404.html":  # its links begin at the root of the site
        path = site / unquote(parts.path).lstrip("/")
    else:
        path = (source.parent / unquote(parts.path)).resolve() if parts.path else source
    path = path / "index.html" if path.is_dir() else path
    if not path.is_file() or not path.is_relative_to(site):
        return f"{address} leads to no page"
    if parts.fragment and path.suffix == ".html" and unquote(parts.fragment) not in _page(path).anchors:
        return f"{address} leads to no heading"
    return None
