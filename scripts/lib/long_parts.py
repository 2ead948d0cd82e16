"""Runs what is worth running but slow, in parts.

    python scripts/lib/long_parts.py [--budget MINUTES] [--list] [PART…]

A part is a file with long tests, another Python, a soak, new seeds of the properties, or RocketMQ's own suite. Named
parts run, whatever the budget; a budget then takes others as long as they fit, in an order that the hash of the commit
rotates, and prints those that it left out. Without both, all run. Exit code 1: a part failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from lib import other_pythons  # noqa: E402

OLDEST = "python-oldest"
"""Another name of the first part of a Python."""
PYTHON_MINUTES = 7.0
LONG = re.compile(r"\bmark\.long\(seconds=(\d+)\)")
"""The marker of a long test, or of the tests of a file, with the seconds that they take on two quiet cores."""
KILLS = (
    *(f"tests/integration/test_{name}.py" for name in ("kill9", "transactions_kill9", "delay_kill9", "follow_master")),
    *(f"tests/fault/test_{name}.py" for name in ("delay_interrupted", "prepared_interrupted", "etcd_cluster")),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Something to run: a command, or for another Python its path, with the minutes that it takes.

    ``programs``: those without which it is left out.
    """

    name: str
    minutes: float
    command: Sequence[str] = ()
    python: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    programs: Sequence[str] = ()

    def run(self) -> int:
        """Run it with its output shown; return the exit code."""
        if self.python:
            code: int = other_pythons.test(self.name.removeprefix("python-"), self.python)
            return code
        return subprocess.run(self.command, cwd=ROOT, env={**os.environ, **self.variables}).returncode


def pytest_part(name: str, minutes: float, *arguments: str, **variables: str) -> Part:
    command = [sys.executable, "-m", "pytest", *arguments]
    return Part(name, minutes, command, variables=variables)


def parts() -> list[Part]:
    soak = "./scripts/soak/run"
    found = [
        Part("fuzz", 6, ["./scripts/fuzz", "5"]),
        Part("soak", 4, [soak, "--seconds", "120", "--restarts", "3"]),
        Part("soak-groups", 5, [soak, "groups", "--minutes", "3"]),
        Part("soak-replication", 7, [soak, "replication", "--seeds", "4000"]),
        Part("soak-rounds", 8, [soak, "--rounds", "200"]),
        Part("rocketmq-suite", 8, ["./scripts/rocketmq-suite"], programs=("java", "javac", "mvn")),
        pytest_part("kills", 12, *KILLS, "-k", "kill or interrupted", "--timeout=1800", FLINTMQ_KILL_ROUNDS="30"),
    ]
    pythons = other_pythons.other_pythons()
    found += [Part(f"python-{release}", PYTHON_MINUTES, python=python) for release, python in pythons.items()]
    return [*found, *files_with_long_tests()]


def files_with_long_tests() -> Iterator[Part]:
    """Yield a part for each test file in which a test or all have the marker."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if seconds := [int(number) for number in LONG.findall(path.read_text(encoding="utf-8"))]:
            name = f"{path.parent.name}/{path.stem.removeprefix('test_')}"
            yield pytest_part(name, sum(seconds) / 60, "-m", "long", str(path.relative_to(ROOT)))


def rotated(found: Sequence[Part], commit: str) -> list[Part]:
    """Return the parts from the one that the commit's hash (hexadecimal) begins with."""
    first = int(commit or "0", 16) % len(found)
    return [*found[first:], *found[:first]]


def commit() -> str:
    """Return the hash of the commit; empty outside a repository."""
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run the parts that the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="./scripts/test-long", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="run these first, whatever the budget")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="then others while they fit")
    parser.add_argument("--list", action="store_true", help="print the parts and their minutes")
    options = parser.parse_args(arguments)
    found = parts()
    oldest = next((part.name for part in found if part.python), OLDEST)
    names = [oldest if name == OLDEST else name for name in options.parts]
    if unknown := [name for name in names if name not in [*(part.name for part in found), OLDEST]]:
        parser.error(f"there is no part {unknown[0]!r}: --list prints all")
    named = [part for part in found if part.name in names]
    others = [part for part in rotated(found, commit()) if part not in named]
    if options.list:
        for part in [*named, *others]:
            print(f"{part.minutes:5.1f} minutes  {part.name}")
        return 0
    if options.budget is None:
        chosen, ends = named or others, float("inf")
    else:
        chosen, ends = [*named, *others], 0.0
    outcomes, failed = [], False
    for part in chosen:
        if missing := [program for program in part.programs if shutil.which(program) is None]:
            outcomes.append(f"left out, needs {' and '.join(missing)}: {part.name}")
            continue
        begun = time.monotonic()
        if part not in named:
            ends = ends or begun + options.budget * 60
            if begun + part.minutes * 60 > ends:
                outcomes.append(f"left out, {part.minutes:.1f} minutes: {part.name}")
                continue
        print(f"\ntest-long: {part.name}, about {part.minutes:.1f} minutes", flush=True)
        code = part.run()
        failed |= code != 0
        outcome = f"FAILED (exit {code})" if code else "passed"
        outcomes.append(f"{outcome} in {time.monotonic() - begun:.0f} s: {part.name}")
    print("", *(f"test-long: {outcome}" for outcome in outcomes), sep="\n", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
