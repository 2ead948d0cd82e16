"""Transcripts of the command line: what was typed, and what ``flintmq`` printed, in files that people read.

A line of ``tests/transcripts/*.txt`` is

- ``# text``: a comment,
- ``% step arguments``: something that the command line cannot do; the test has a function for it,
- ``$ command``: a command line, with variables before it (``COLUMNS=80 flintmq status``) or input
  (``printf 'a\\nb\\n' | flintmq send orders``),
- everything else: what that command printed. ``! `` marks standard error, ``[2]`` an exit code other than 0, and a
  backslash a line that would otherwise be one of the above.

``pytest --update-transcripts`` writes what the commands print now; the difference is then reviewed as text.
"""

from __future__ import annotations

import codecs
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.cli_tools import Cli

FOLDER = Path(__file__).parent / "transcripts"
_TYPED = ("# ", "% ", "$ ")
_ESCAPED = ("# ", "% ", "$ ", "! ", "\\", "[")
_JSON_OUTPUT = re.compile(r"-o json\b")
_VARIABLE = re.compile(r"[A-Z_]+=")

Step = Callable[..., None]

_DURATION = r"\b\d[\d.,]* (?:µs|ms|s|min(?: \d+ s)?)(?![\w/])"
VARYING: list[tuple[str, str]] = [
    (r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "YYYY-MM-DDTHH:MM:SS.mmmZ"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\b", "YYYY-MM-DD HH:MM:SS.mmm"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b", "YYYY-MM-DD HH:MM:SS"),
    (r"127\.0\.0\.1:\d{4,5}\b", "127.0.0.1:PORT"),
    (r"(epoch\W+)\d{13}", r"\1EPOCH"),
    (r"((?:version|flintmq)\W+)\d+\.\d+\.\d+\b", r"\1VERSION"),
    (r'("\w+_seconds": )[\d.]+', r"\1SECONDS"),
    (r'("password": ")[^"]+', r"\1PASSWORD"),
    (r"(\t(?:open|parked|delivered)\t)[\d.]+", r"\1SECONDS"),
    (rf"{_DURATION}, [\d.,]+ ?[kM]?/s|{_DURATION}", "DURATION"),
]
"""Patterns of values that differ from run to run, and what a transcript has in their place."""
_WIDE = re.compile(rf"─(?s:.*)(?:{_DURATION}|127\.0\.0\.1:)")
_IDENTITY = re.compile(r"\b[0-9A-F]{32}\b")


class Transcript:
    """A file of command lines and their output, and a command line on which they run again."""

    def __init__(self, name: str, cli: Cli, steps: Mapping[str, Step]) -> None:
        self.path = FOLDER / f"{name}.txt"
        self._cli = cli
        self._steps = steps
        self._names: dict[str, str] = {}

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def run(self) -> str:
        """Run everything that was typed; return the transcript with what is printed now."""
        lines: list[str] = []
        for line in self.text.splitlines():
            if not line.startswith(_TYPED):
                continue
            if line.startswith("# ") and lines:
                lines.append("")
            lines.append(line)
            if line.startswith("% "):
                step, *words = shlex.split(line[2:])
                self._steps[step](*words)
            elif line.startswith("$ "):
                lines += self._printed(line[2:])
        return "\n".join(lines) + "\n"

    def _printed(self, typed: str) -> list[str]:
        stdin = None
        if typed.startswith("printf "):
            words = shlex.split(typed)
            at = words.index("|")
            stdin, typed = _printf(words[1]), shlex.join(words[at + 1 :])
        words = shlex.split(self._actual(typed))
        before = self._cli.variables
        while _VARIABLE.match(words[0]):
            name, _, value = words.pop(0).partition("=")
            self._cli.variables = self._cli.variables | {name: value}
        assert words.pop(0) == "flintmq", typed
        done = self._cli.run(*words, stdin=stdin)
        self._cli.variables = before
        printed = [("\\" if line.startswith(_ESCAPED) else "") + line for line in self._said(done.out)]
        printed += [f"! {line}".rstrip() for line in self._said(done.err)]
        return printed + ([f"[{done.code}]"] if done.code else [])

    def _said(self, text: str) -> list[str]:
        text = _IDENTITY.sub(self._shown_id, text.replace(str(self._cli.folder), "~"))
        # Durations and ports have no fixed width: a table that has one is shown without the width of its columns.
        tables = [_without_widths(table) if _WIDE.search(table) else table for table in text.split("\n\n")]
        text = "\n\n".join(tables)
        for pattern, shown in VARYING:
            text = re.sub(pattern, shown, text)
        return [line.rstrip() for line in text.splitlines()]

    def _shown_id(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"<id {len(self._names) + 1}>".ljust(32, "."))

    def _actual(self, typed: str) -> str:
        """Return a line with the ids of this run in place of ``<id N>``."""
        actual = {shown.rstrip("."): name for name, shown in self._names.items()}
        return re.sub(r"<id \d+>", lambda found: actual[found[0]], typed)


def documented_rows() -> Iterator[tuple[str, Any]]:
    """Yield the words of each command line whose output is JSON, and each row that it prints."""
    for path in FOLDER.glob("*.txt"):
        typed = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(_TYPED):
                typed = line if line.startswith("$ ") and _JSON_OUTPUT.search(line) else ""
            elif typed and line.startswith("{"):
                unknown = re.sub(r": (EPOCH|SECONDS)\b", ": 0", line)
                yield typed[typed.rindex("flintmq ") :], json.loads(unknown)


def _printf(text: str) -> bytes:
    decoded, _ = codecs.escape_decode(text.encode())
    return bytes(decoded)


def _without_widths(table: str) -> str:
    return re.sub("─+", "──", re.sub(" {2,}", "  ", table))
