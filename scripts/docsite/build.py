"""Builds the site, by default into ``build/docs/site``. ``scripts/docs`` runs it.

python -m flintmq.scripts.docsite.build [--source-url URL]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .markdown import Converter
from .pages import ROOT, Page, sections

FOLDER = ROOT / "build" / "docs"
ZENSICAL = ROOT / ".venv-docs" / "bin" / "zensical"
WARNINGS = ("warning", "error")


def write_pages(folder: Path, source_url: str = "") -> dict[str, list[Page]]:
    """Write the Markdown of all pages, and their images, into ``folder``; return the pages by section."""
    tree = sections()
    pages = [page for listed in tree.values() for page in listed]
    places = {page.source: page.place for page in pages if isinstance(page.source, str)}
    converter = Converter(ROOT, places, source_url)
    for page in pages:
        # A generated page writes its links as a file at its place would.
        source = page.source if isinstance(page.source, str) else page.place
        text = converter.converted(page.text(), source, page.place) if page.source == source else page.text()
        path = folder / page.place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for place, image in converter.images.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, folder / place)
    return tree


def _navigation(tree: dict[str, list[Page]]) -> str:
    """Return the pages as Zensical's ``nav``. JSON's strings are TOML's."""
    lines = ["nav = ["]
    for section, pages in tree.items():
        listed = ", ".join(f"{{ {json.dumps(page.title)} = {json.dumps(page.place)} }}" for page in pages)
        lines.append(f"    {{ {json.dumps(section)} = [{listed}] }},")
    return "\n".join([*lines, "]"])


def _llms(tree: dict[str, list[Page]]) -> str:
    """Return ``llms.txt``: the pages with their Markdown, for programs that read it."""
    parts = ["# FlintMQ", "> A durable message log for Python teams: one broker process, or a replica set."]
    for section, pages in tree.items():
        parts += [f"## {section}", "\n".join(f"- [{page.title}]({page.place})" for page in pages)]
    return "\n\n".join(parts) + "\n"


def build(folder: Path, source_url: str) -> int:
    """Build the site into ``site`` of a folder, which is emptied, and check it; return the exit code."""
    shutil.rmtree(folder, ignore_errors=True)
    tree = write_pages(folder / "pages", source_url)
    shutil.copy(Path(__file__).with_name("site.css"), folder / "pages")
    settings = Path(__file__).with_name("zensical.toml").read_text(encoding="utf-8")
    head, tables = settings.split("\n[project.theme]", 1)
    config = folder / "zensical.toml"
    config.write_text(f"{head}\n{_navigation(tree)}\n\n[project.theme]{tables}", encoding="utf-8")
    command = [ZENSICAL, "build", "--strict", "--config-file", config]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    output = done.stdout + done.stderr
    if done.returncode or any(word in output.lower() for word in WARNINGS):
        print(output, file=sys.stderr)
        return done.returncode or 1
    site = folder / "site"
    shutil.copytree(folder / "pages", site, dirs_exist_ok=True)  # the Markdown of each page, which llms.txt names
    (site / "llms.txt").write_text(_llms(tree), encoding="utf-8")
    found = list(faults(site))
    for fault in found:
        print(f"docs: {fault}", file=sys.stderr)
    if not found:
        print(f"docs: {sum(map(len, tree.values()))} pages in {site}; open it with python -m http.server -d {site}")
    return bool(found)


# ---- The checks of the finished HTML: every link leads to a page and an anchor that exist; no page needs another host.

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


# ---- The command line.


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Builds the documentation site.")
    parser.add_argument(
        "--source-url", default="", help="address of the repository's files, for links to code; without it no links"
    )
    parser.add_argument("--output", type=Path, default=FOLDER, help=f"folder for the site, emptied; default: {FOLDER}")
    options = parser.parse_args(arguments)
    return build(options.output, options.source_url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
