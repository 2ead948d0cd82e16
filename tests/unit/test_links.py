"""Every relative link of every Markdown file leads to a file of the repository, and every anchor to a heading."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]

LINK = re.compile(
    r"""\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)"""  # [text](target "title") and ![text](target)
    r"""|^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)"""  # [name]: target
    r"""|<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"\s]+)""",  # HTML
    re.MULTILINE,
)
HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$", re.MULTILINE)
HTML_ANCHOR = re.compile(r"""<a\b[^>]*?\b(?:id|name)="([^"]+)""")
FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?^ {0,3}\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL)
FILE_LINK = re.compile(r"\[`([\w./-]+\.(?:py|md|toml|yml))`\]\(([^)#\s]+)[^)]*\)")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)")


def tracked_markdown() -> list[str]:
    """Return the paths of the Markdown files that Git tracks or would track; without Git, of all that are there."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
        return sorted(name for name in listed if name and (ROOT / name).exists())
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(path.as_posix() for path in found if not any(part.startswith(".") for part in path.parts))


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading.

    GitHub takes the text without its markup in lower case, removes everything but letters, digits, ``_``, ``-`` and
    spaces, and replaces each space with a hyphen.
    """
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^>]+>", "", text)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a Markdown file; a heading that repeats gets ``-1``, ``-2`` … appended."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    found: set[str] = set(HTML_ANCHOR.findall(text))
    for heading in HEADING.findall(text):
        anchor = base = anchor_of(heading)
        repeated = 0
        while anchor in found:
            repeated += 1
            anchor = f"{base}-{repeated}"
        found.add(anchor)
    return frozenset(found)


def links(text: str) -> list[str]:
    """Return the targets of a Markdown text's links, except those in code."""
    prose = CODE.sub("", FENCED.sub("", text))
    return [next(filter(None, groups)) for groups in LINK.findall(prose)]


def why_broken(source: Path, target: str) -> str | None:
    """Return why a link of ``source`` leads nowhere, or None if it leads somewhere or to another site."""
    if re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
        return None
    name, _, fragment = unquote(target).partition("#")
    path = (source.parent / name).resolve() if name else source
    if not path.is_relative_to(ROOT) or not path.exists():
        return "there is no such file in the repository"
    if fragment and path.suffix == ".md" and fragment not in anchors(path):
        return f"{path.relative_to(ROOT)} has no heading with this anchor"
    return None


@pytest.mark.parametrize("name", tracked_markdown())
def test_every_relative_link_leads_to_a_file_and_heading(name: str) -> None:
    source = ROOT / name
    broken = {
        target: reason
        for target in links(source.read_text(encoding="utf-8"))
        if (reason := why_broken(source, target)) is not None
    }
    assert not broken


@pytest.mark.parametrize("name", tracked_markdown())
def test_a_link_whose_text_is_a_file_name_leads_to_that_file(name: str) -> None:
    found = FILE_LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [(text, target) for text, target in found if Path(text).name != Path(target).name] == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Retention of a topic", "retention-of-a-topic"),
        ("`GET_BROKER_RUNTIME_INFO`", "get_broker_runtime_info"),
        ("What's new: 1.0 & later", "whats-new-10--later"),
        ("See [the store](store/README.md)", "see-the-store"),
    ],
)
def test_anchors_follow_the_rules_of_github(heading: str, anchor: str) -> None:
    assert anchor_of(heading) == anchor


def test_a_heading_that_repeats_gets_a_number(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\n## Two\n\n```sh\n# no heading\n```\n\n## Two\n", encoding="utf-8")
    assert anchors(page) == {"one", "two", "two-1"}


def test_links_are_found_in_every_notation_except_in_code(tmp_path: Path) -> None:
    text = (
        '[a](one.md) ![b](two.svg "title") `[c](no.md)`\n\n[d]: three.md\n\n<img src="four.svg">\n\n'
        "```text\n[e](no.md)\n```\n"
    )
    assert links(text) == ["one.md", "two.svg", "three.md", "four.svg"]


@pytest.mark.parametrize("target", ["missing.md", "#missing", "../../outside.md"])
def test_a_link_that_leads_nowhere_is_found(target: str) -> None:
    assert why_broken(ROOT / "README.md", target) is not None
