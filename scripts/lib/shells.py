"""Writes the client's blocking shells from the asyncio ones: python scripts/lib/shells.py

Where the clients differ, comment lines in a source replace a text: ``# sync: OLD``, which may take several lines and
in which any white space matches any other, and ``# => NEW``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SHELLS = {
    "client/aio/admin.py": "client/sync/admin.py",
    "client/aio/consumer.py": "client/sync/consumer.py",
    "client/aio/producer.py": "client/sync/producer.py",
    "client/aio/rpc.py": "client/sync/rpc.py",
    "client/groups/push/aio_members.py": "client/groups/push/members.py",
    "client/groups/transactions/aio_producer.py": "client/groups/transactions/producer.py",
}
ROOT = Path(__file__).resolve().parents[2]
_WORDS = {
    "async_method": "blocking_method",
    "async def": "def",
    "async with": "with",
    "async for": "for",
    "asynccontextmanager": "contextmanager",
    "aclose": "close",
    "aclosing": "closing",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "AsyncIterator": "Iterator",
    "ClientRuntime": "Guard",
}
_RULES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\bAsyncGenerator\[([^\[\]]+), None\]"), r"Generator[\1, None, None]"),
    (re.compile(r"\bAsyncGenerator\b"), "Generator"),
    (re.compile(rf"\b({'|'.join(_WORDS)})\b"), lambda found: _WORDS[found[0]]),
]
_DIFFERENCE = re.compile(r"^((?: *# sync: .+\n)+) *# => ?(.*)\n", re.MULTILINE)


def blocking(source: str) -> str:
    """Return the text of the blocking shell that is generated from the file ``source``."""
    text = (ROOT / source).read_text("utf-8")
    differences = _DIFFERENCE.findall(text)
    text = _DIFFERENCE.sub("", text)
    for old, new in differences:
        words = old.replace("# sync: ", "").split()
        pattern = r"\s+".join(map(re.escape, words))
        text, count = re.subn(pattern if new else rf"\s+{pattern}", new, text)
        if count != 1:
            raise ValueError(f"{source} has {count} times: {' '.join(words)}")
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    text = f"# Generated from {source}:\n# change that file, and run python scripts/lib/shells.py\n{text}"
    for command in (["check", "--select", "I,F401,UP028", "--fix", "--unsafe-fixes", "--exit-zero"], ["format"]):
        run = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", SHELLS[source], "-"]
        text = subprocess.run(run, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for asyncio_shell, written in SHELLS.items():
        (ROOT / written).write_text(blocking(asyncio_shell), "utf-8")
