"""Runs all property tests in rounds, each with another random seed, until the time is over.

    python scripts/lib/fuzz.py [MINUTES] [FILE…]

For each test that fails it prints the seed and the example to add to the test, so that the test command tries it each
time. Exit code 0: no failure; 1: a test failed; 2: the tests could not be run.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_MINUTES = 10.0
STOP_S = 60.0
"""Time for an interrupted round to stop its brokers."""
VARIABLE = "FLINTMQ_FUZZ"
"""Environment variable that makes ``tests/conftest.py`` try new examples."""
EXIT_FOUND, EXIT_CANNOT_RUN = 1, 2
PYTEST_PASSED, PYTEST_FAILED = 0, 1
CUT = -1
"""Used in place of pytest's exit code if the time is over."""

_MARGIN = re.compile(r"^(?:E {3}|[ +|-]*\| ?)", re.MULTILINE)
_EXAMPLE = re.compile(r"^(?:Falsifying example|Failing test case): \w+\(\n(.*?)^\)$", re.MULTILINE | re.DOTALL)
_SELF = re.compile(r"^ *self=.*\n", re.MULTILINE)
_BLOB = re.compile(r"@reproduce_failure\([^\n]*\)")


@dataclass(frozen=True, slots=True)
class Failure:
    """Test that failed: ``file`` in the checkout, ``name`` with class and parameters, and pytest's ``text``."""

    file: str
    name: str
    seed: int
    text: str

    @property
    def node(self) -> str:
        return f"{self.file}::{self.name}"

    def report(self) -> str:
        """Describe the failure, how to repeat it, and the example to add to the test."""
        again = f"{VARIABLE}=1 .venv/bin/python -m pytest --hypothesis-seed={self.seed} '{self.node}'"
        lines = [f"found  {self.node}", f"seed   {self.seed}", f"again  {again}"]
        example, blob = example_in(self.text), _BLOB.search(self.text)
        if example:
            lines += ["add    above the test, below `@given`:", example]
        if blob is not None:
            place = "or, until you write the example down" if example else "above the test, until you write an example"
            lines += [f"add    {place}: {blob[0]}"]
        if not example and blob is None:
            lines += ["", self.text]
        return "\n".join(lines)


def example_in(text: str) -> str:
    """Return the falsifying example as the decorator ``@example``.

    Returns an empty string for a state machine, which has none, and for values drawn inside the test.
    """
    found = _EXAMPLE.search(_MARGIN.sub("", text))
    if found is None or "=data(...)" in found[1]:
        return ""
    return f"@example(\n{_SELF.sub('', found[1])})"


def files_with_properties(paths: Sequence[Path]) -> list[Path]:
    """Return the test files that use Hypothesis; only these are loaded."""
    files = [each for path in paths for each in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])]
    return [path for path in files if "hypothesis" in path.read_text(encoding="utf-8")]


class Rounds:
    """Rounds over ``files`` until ``deadline`` (``time.monotonic``)."""

    def __init__(self, files: Sequence[Path], deadline: float) -> None:
        self._files = files
        self._deadline = deadline
        self.count = 0
        self.found: list[Failure] = []

    def run(self) -> int:
        """Run rounds and print each failure after its round; return the exit code. A failed test is not run again."""
        while time.monotonic() < self._deadline:
            seed = random.SystemRandom().randrange(2**32)
            with tempfile.TemporaryDirectory(prefix="flintmq-fuzz-") as folder:
                code, output = self._round(seed, Path(folder) / "report.xml")
                found = read_report(Path(folder) / "report.xml", seed)
            if code not in (PYTEST_PASSED, PYTEST_FAILED, CUT) or (code == PYTEST_FAILED and not found):
                print(output, file=sys.stderr)
                return EXIT_CANNOT_RUN
            self.count += 1
            known = {each.node for each in self.found}
            for each in found:
                if each.node not in known:
                    self.found.append(each)
                    print(f"{each.report()}\n", flush=True)
        return EXIT_FOUND if self.found else 0

    def _round(self, seed: int, report: Path) -> tuple[int, str]:
        """Run one round; return pytest's exit code or ``CUT``, and its output."""
        command = [
            *(sys.executable, "-m", "pytest", "-m", "hypothesis", "-c", str(ROOT / "pyproject.toml")),
            *"-q --no-header --tb=short --show-capture=no -p no:cacheprovider -o junit_family=xunit1".split(),
            f"--hypothesis-seed={seed}",
            f"--junitxml={report}",
            *(f"--deselect={each.node}" for each in self.found),
            *map(str, self._files),
        ]
        environment = {**os.environ, VARIABLE: "1"}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                output, _ = process.communicate(timeout=max(self._deadline - time.monotonic(), 0))
                return process.returncode, output
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                output, _ = process.communicate(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
        return CUT, output


def read_report(path: Path, seed: int) -> list[Failure]:
    """Return the failures in pytest's report; an interrupted round has no report."""
    if not path.is_file():
        return []
    found = []
    for case in ElementTree.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        failure = case.find("failure")
        if failure is None or "KeyboardInterrupt" in failure.get("message", ""):
            continue
        file = case.get("file", "")
        module = file.removesuffix(".py").replace("/", ".")
        classes = case.get("classname", "").removeprefix(module).strip(".").split(".")
        name = "::".join([*filter(None, classes), case.get("name", "")])
        found.append(Failure(file, name, seed, failure.text or ""))
    return found


def main(arguments: Sequence[str]) -> int:
    minutes, paths = DEFAULT_MINUTES, list(arguments)
    try:
        if paths and not Path(paths[0]).exists():
            minutes = float(paths.pop(0))
        files = files_with_properties([Path(path).resolve() for path in paths] or [ROOT / "tests"])
    except (ValueError, OSError) as error:
        print(f"fuzz: {error}; ./scripts/fuzz [MINUTES] [FILE…]", file=sys.stderr)
        return EXIT_CANNOT_RUN
    if not files:
        print(f"fuzz: no property test in {', '.join(paths)}", file=sys.stderr)
        return EXIT_CANNOT_RUN
    rounds = Rounds(files, time.monotonic() + 60 * minutes)
    code = rounds.run()
    if code != EXIT_CANNOT_RUN:
        print(f"{rounds.count} rounds over {len(files)} files, {len(rounds.found)} tests failed")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
