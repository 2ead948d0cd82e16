"""Mutants: comparisons and branches that are changed one at a time, drawn by a seed, to see whether a test fails.

    python scripts/lib/mutants.py [--seed N] [--places N] [--part NAME]… [--results FILE] [--seconds N]

Each mutant is made in a temporary copy of the clone, where the tests of its part run: unit, property and simulation
tests first, then those with brokers and faults. The outcome is `caught`, `survived`, or `undecided` (the time was
over); the tests of a part must pass without a mutant first. Outcomes are appended to a file, and a place that is in it
with the same text is not tried again, so that an interrupted run can be continued. Exit code 0: all were caught;
1: some were not; 2: the tests fail without a mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CAUGHT, SURVIVED, UNDECIDED = "caught", "survived", "undecided"
PYTEST_PASSED, PYTEST_FAILED, PYTEST_INTERRUPTED = 0, 1, 2
"""pytest also ends with 2 if a test file cannot be imported."""

NEGATED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
}
"""What replaces a comparison: its opposite, or the neighbour whose end differs."""


@dataclass(frozen=True, slots=True)
class Part:
    """Files whose places are drawn, and the tests that can notice a change in them; both as patterns."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


def _tests(names: str) -> tuple[str, ...]:
    return tuple(f"tests/{name}.py" for name in names.split())


PARTS = {
    "recovery": Part(
        ("broker/store/recovery/*.py",),
        _tests(
            """
            unit/test_store_* unit/test_tools_* property/test_log_copy fault/test_torn_tail fault/test_log_*
            fault/test_*_damage fault/test_lying_records fault/test_forged_records fault/test_wrong_log_files
            fault/test_extreme_offsets fault/test_strange_places fault/test_rebuild fault/test_quarantine
            fault/test_containment* fault/test_interrupted* fault/test_power_cut
            """
        ),
    ),
    "dispatch": Part(
        ("broker/store/dispatch.py", "broker/store/queues.py", "broker/kernels/dispatch.py"),
        _tests(
            """
            unit/test_kernel_* unit/test_dispatch_owner unit/test_store_*
            property/test_kernel_dispatch_property property/test_kernel_index_property
            property/test_browse_pages fault/test_derived_damage fault/test_lying_records fault/test_rebuild
            fault/test_disk_full fault/test_interrupted*
            """
        ),
    ),
    "delivery": Part(
        (
            "broker/delivery/pop/*.py",
            "broker/delivery/redelivery.py",
            "broker/delivery/staged.py",
            "broker/delivery/transactions/*.py",
        ),
        _tests(
            """
            unit/test_pop_* unit/test_prepared* unit/test_transaction* unit/test_retry_* unit/test_group_*
            property/test_pop_machine integration/test_work_queue fault/test_prepared_*
            fault/test_transactions_* fault/test_settled_* fault/test_waiting_* fault/test_interrupted
            """
        ),
    ),
    "replication": Part(
        ("broker/replication/core/*.py", "broker/replication/member/*.py"),
        _tests(
            """
            unit/test_followed_primary unit/test_replica_* unit/test_registry_*
            property/test_registry_property simulation/test_* integration/test_replica_set*
            fault/test_replica_*
            """
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """One changed place: ``text`` from ``start`` on (a position in the file's characters) becomes ``replacement``."""

    part: str
    file: str
    line: int
    start: int
    text: str
    replacement: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {_short(self.text)} -> {_short(self.replacement)}"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else f"{words[:57]}..."


class _Finder(ast.NodeVisitor):
    """Collects the places of one file."""

    def __init__(self, part: str, file: str, source: str) -> None:
        self._part, self._file, self._source = part, file, source
        self._lines = source.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))
        self.places: list[Place] = []

    def visit_Assert(self, node: ast.Assert) -> None:
        """Leave out assertions: a changed one is no change of what the program does."""

    def visit_Compare(self, node: ast.Compare) -> None:
        left: ast.expr = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            self._between(left, right, NEGATED[type(operator)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, word)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        if not isinstance(test, ast.Constant):
            start, end = self._span(test)
            self._add(start, end, f"(not ({self._source[start:end]}))")

    def _between(self, left: ast.expr, right: ast.expr, replacement: str) -> None:
        """Replace the operator between two operands; parentheses of the operands stand around it."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._source[start:end]
        bare = between.strip("() \n\t\\")
        at = start + between.index(bare)
        if "#" not in bare:
            self._add(at, at + len(bare), replacement)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, byte: int) -> int:
        return self._begins[line - 1] + len(self._lines[line - 1].encode()[:byte].decode())

    def _add(self, start: int, end: int, replacement: str) -> None:
        line = self._source.count("\n", 0, start) + 1
        self.places.append(Place(self._part, self._file, line, start, self._source[start:end], replacement))


def places_of(name: str, root: Path) -> list[Place]:
    """Return all places of a part, in the order of its files."""
    found: list[Place] = []
    for path in files_of(PARTS[name].sources, root):
        source = path.read_text(encoding="utf-8")
        finder = _Finder(name, path.relative_to(root).as_posix(), source)
        finder.visit(ast.parse(source))
        found += sorted(finder.places, key=lambda place: (place.start, place.text))
    return found


def files_of(patterns: Sequence[str], root: Path) -> list[Path]:
    """Return the files that the patterns name, each once, in the patterns' order."""
    return list(dict.fromkeys(path for pattern in patterns for path in sorted(root.glob(pattern))))


def drawn(seed: int, places: int, part: str, root: Path) -> list[Place]:
    """Return ``places`` places of a part, which depend on the seed and the sources alone."""
    everything = places_of(part, root)
    return random.Random(f"{seed} {part}").sample(everything, min(places, len(everything)))


def applied(place: Place, source: str) -> str:
    """Return the source with the change. Raises ``SyntaxError`` if it cannot be compiled."""
    end = place.start + len(place.text)
    assert source[place.start : end] == place.text
    changed = source[: place.start] + place.replacement + source[end:]
    compile(changed, place.file, "exec")
    return changed


def copy_clone(target: Path) -> None:
    """Copy the files of the clone that git knows, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink() or (ROOT / name).is_file():
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    # Some tests start the commands of the environment.
    (target / ".venv").symlink_to(ROOT / ".venv")


def run_tests(clone: Path, part: str, seconds: float) -> tuple[str, str]:
    """Run the tests of a part in a copy of the clone. Return (the outcome, the test that failed)."""
    tests = [str(path.relative_to(clone)) for path in files_of(PARTS[part].tests, clone)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=no", "-p", "no:cacheprovider", *tests]
    with tempfile.TemporaryDirectory(prefix="flintmq-mutants-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(clone / ".pkg"), "TMPDIR": folder}
        if any("kernels" in source for source in PARTS[part].sources):
            # Compiled kernels of a mutant must not fill the cache of others.
            environment["FLINTMQ_KERNEL_CACHE"] = str(clone / ".kernels")
        # Not a pipe: brokers that outlive their test would keep it open.
        output = Path(folder) / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=clone, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return UNDECIDED, ""
        finally:
            _end_group(process)
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
    if process.returncode == PYTEST_PASSED:
        return SURVIVED, ""
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "failed:", "error:"))]
    return CAUGHT, (failed or lines or [""])[0][:160]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a run: a mutant may keep brokers from ending."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Results:
    """Outcomes in a file, one a line. A place counts as tried if its file has the same text around it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {line["key"]: (line["outcome"], line["test"]) for line in map(json.loads, lines)}

    def find(self, key: str) -> tuple[str, str] | None:
        """Return (the outcome, the test that failed) of a place, or None."""
        return self._known.get(key)

    def add(self, key: str, place: Place, outcome: str, test: str, seconds: float) -> None:
        self._known[key] = outcome, test
        entry = {"key": key, "outcome": outcome, "test": test, "seconds": round(seconds), **asdict(place)}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def key_of(place: Place, source: str) -> str:
    """Return what names a place as long as nothing near it changes."""
    end = place.start + len(place.text)
    return "|".join((place.file, source[max(0, place.start - 200) : end + 200], place.replacement))


def try_all(places: Sequence[Place], results: Results, seconds: float) -> Iterator[tuple[Place, str, str]]:
    """Try each place; yields (the place, its outcome, the test that failed). Raises ``SystemExit`` with code 2 if the
    tests of a part fail without a mutant."""
    with tempfile.TemporaryDirectory(prefix="flintmq-mutants-") as folder:
        clone = Path(folder)
        copy_clone(clone)
        sound: set[str] = set()
        for place in places:
            path = clone / place.file
            source = path.read_text(encoding="utf-8")
            key = key_of(place, source)
            if (known := results.find(key)) is not None:
                yield place, *known
                continue
            if place.part not in sound:
                _check_sound(clone, place.part)
                sound.add(place.part)
            began = time.monotonic()
            try:
                path.write_text(applied(place, source), encoding="utf-8")
                outcome, test = run_tests(clone, place.part, seconds)
            finally:
                path.write_text(source, encoding="utf-8")
            results.add(key, place, outcome, test, time.monotonic() - began)
            yield place, outcome, test


def _check_sound(clone: Path, part: str) -> None:
    began = time.monotonic()
    outcome, test = run_tests(clone, part, 3600)
    if outcome != SURVIVED:
        print(f"the tests of {part} fail without a mutant: {test or 'the time was over'}", file=sys.stderr)
        raise SystemExit(2)
    print(f"{part}: its tests pass without a mutant in {time.monotonic() - began:.0f} s", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Draw the places, try them, and print one line each and a summary."""
    parser = argparse.ArgumentParser(prog="./scripts/mutants", description="Change one place at a time; run its tests.")
    parser.add_argument("--seed", type=int, default=1, help="draw by this seed (default 1)")
    parser.add_argument("--places", type=int, default=10, help="places of each part (default 10)")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    parser.add_argument("--results", type=Path, help="file of the outcomes, which a further run continues")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of one mutant (default 600)")
    options = parser.parse_args(arguments)
    default = Path(tempfile.gettempdir()) / f"flintmq-mutants-{options.seed}.jsonl"
    results = Results(options.results or default)
    places = [each for part in options.part or PARTS for each in drawn(options.seed, options.places, part, ROOT)]
    outcomes: Counter[str] = Counter()
    for place, outcome, test in try_all(places, results, options.seconds):
        outcomes[outcome] += 1
        print(f"{outcome:<10} {place.part:<12} {place.name}{f'  ({test})' if test else ''}", flush=True)
    print(", ".join(f"{outcomes[outcome]} {outcome}" for outcome in (CAUGHT, SURVIVED, UNDECIDED)))
    return 0 if outcomes[CAUGHT] == len(places) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
