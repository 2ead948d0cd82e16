"""Parser of a Dockerfile and its ``.dockerignore``, limited to the features that the repository uses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KNOWN = frozenset(
    {"COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)


class NotUnderstood(Exception):
    """Error: the Dockerfile uses a feature that this parser does not know."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name and the rest of the line, with continued lines joined."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Return the words of the text, without quotes."""
        return shlex.split(self.text)

    def exec_form(self) -> list[str]:
        """Return the command of an instruction in exec form (a JSON array), after CMD in a HEALTHCHECK."""
        text = self.text.partition("CMD ")[2] if self.name == "HEALTHCHECK" else self.text
        try:
            command = json.loads(text)
        except ValueError as error:
            raise NotUnderstood(f"{self.name} is not in exec form: {text}") from error
        return [str(word) for word in command]


def parse(text: str) -> list[Instruction]:
    """Return the instructions in order. Raises ``NotUnderstood``."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        if name not in KNOWN:
            raise NotUnderstood(f"the instruction {name} is not known: {line[:80]}")
        found.append(Instruction(name, rest.strip()))
    return found


def context_files(root: Path) -> Iterator[Path]:
    """Yield the files under ``root`` that ``.dockerignore`` allows into the build, relative to it."""
    rules = []
    for line in (root / ".dockerignore").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            rules.append((not line.startswith("!"), _pattern(line.strip().lstrip("!").strip("/"))))

    def ignored(path: Path) -> bool:
        verdict = False
        for excludes, pattern in rules:  # the last one that matches the path, or a folder above it, decides
            if any(pattern.fullmatch(str(each)) for each in (path, *path.parents)):
                verdict = excludes
        return verdict

    for top in sorted(root.iterdir()):
        if not ignored(top.relative_to(root)):
            files = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
            yield from (path.relative_to(root) for path in files if not ignored(path.relative_to(root)))


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a line of ``.dockerignore``: ``**/`` matches any folders, ``*`` anything within a name."""
    parts = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    pieces = re.split(r"(\*\*/|\*|\?|\[[^]]*\])", text)
    return re.compile(
        "".join(parts.get(piece) or (piece if piece.startswith("[") else re.escape(piece)) for piece in pieces)
    )
