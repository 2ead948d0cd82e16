"""Command line of ``scripts/bench/run``, and the runner of the cases: one after another, each with a time limit."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from flintmq.protocol.errors import FlintError

from .bench import Bench
from .cases import ALL, SPARK
from .machine import describe, idle_share
from .measure import BenchFailed, Case, Measure, Result, Sample, Skipped


def run_cases(cases: Sequence[Case], bench: Bench, seconds_max: float) -> list[Result]:
    """Run the cases and return their results. A case that fails or exceeds ``seconds_max`` does not stop the others."""
    return [run_case(case, bench, seconds_max) for case in cases]


def run_case(case: Case, bench: Bench, seconds_max: float) -> Result:
    """Run one case and print its figures after each run."""
    result = Result(case)
    say(f"{case.name}: {case.title}")
    began = time.monotonic()
    try:
        with time_limit(max(seconds_max, case.seconds_max)), closing(case.samples(bench)) as samples:
            for sample in samples:
                result.samples.append(sample)
                say(f"  {in_one_line(case, sample)}")
    except Skipped as reason:
        result.skipped = str(reason)
        say(f"  skipped: {result.skipped}")
    except (BenchFailed, FlintError, OSError, TimeoutError) as failure:
        result.failure = str(failure) or type(failure).__name__
        say(f"  failed: {result.failure}")
    say(f"  ({time.monotonic() - began:.0f} s)")
    return result


def in_one_line(case: Case, sample: Sample) -> str:
    shown = [f"{measure.key} {measure.show(sample[measure.key])}" for measure in case.measures if measure.key in sample]
    return ", ".join(shown)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``BenchFailed`` inside the block when it takes too long."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise BenchFailed(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- Figures as JSON, and as the table of the README.


def as_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    """Return all results: ``facts`` about the machine and the method, then each case with every figure."""
    return {**facts, "cases": [_case_json(result) for result in results]}


def _case_json(result: Result) -> dict[str, Any]:
    measures = [_measure_json(result, measure) for measure in result.case.measures if result.figures(measure)]
    return {
        "name": result.case.name,
        "title": result.case.title,
        "failure": result.failure,
        "skipped": result.skipped,
        "measures": measures,
    }


def _measure_json(result: Result, measure: Measure) -> dict[str, Any]:
    median = result.median(measure)
    return {
        "name": measure.key,
        "title": measure.title,
        "unit": measure.unit,
        "median": median,
        "best": result.best(measure),
        "runs": result.figures(measure),
        "target": measure.target,
        "reached": measure.reached(median),
    }


def as_markdown(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return a table with one row per measure, followed by the machine and the method."""
    lines = [f"| measured | reach | median of {facts['runs']} | best |", "|---|---|---|---|"]
    for result in results:
        lines.append(f"| **{result.case.title}** | | | |")
        shown = [measure for measure in result.case.measures if measure.in_table and result.figures(measure)]
        lines.extend(_row(result, measure) for measure in shown)
        if result.skipped:
            lines.append(f"| *skipped: {result.skipped.splitlines()[0]}* | | | |")
        if result.failure:
            lines.append(f"| *failed: {result.failure.splitlines()[0]}* | | | |")
    for result in results:
        if result.case.tables is not None and result.samples:
            lines += result.case.tables(result)
    lines += ["", f"{'; '.join([facts['machine'], facts['way'], *facts['notes']])}."]
    return "\n".join(lines)


def _row(result: Result, measure: Measure) -> str:
    median = result.median(measure)
    missed = " (missed)" if measure.reached(median) is False else ""
    cells = [measure.title, measure.show_target(), measure.show(median) + missed, measure.show(result.best(measure))]
    return f"| {' | '.join(cells)} |"


# ---- The command line.

RUNS = 5
TOUCHED_GIB = 1.5
CASE_SECONDS_MAX = 1200.0
IDLE_SHARE_MIN = 0.95


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./scripts/bench/run",
        description="Measures FlintMQ: one real broker process with RocketMQ's file sizes, and clients that share the "
        "machine's cores with it. The table goes to standard output, progress to standard error.",
        epilog="cases: " + ", ".join(case.name for case in ALL),
    )
    names = [case.name for case in ALL]
    parser.add_argument(
        "group", nargs="?", choices=["spark"], help="only the cases that need Spark, which is installed (490 MB)"
    )
    parser.add_argument("--case", action="append", choices=names, metavar="NAME", help="only this case; repeatable")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"runs of each case (default: {RUNS})")
    parser.add_argument(
        "--quick", action="store_true", help="few messages: checks that every case works; the figures are meaningless"
    )
    parser.add_argument(
        "--full", action="store_true", help="case growth: also 100 M messages (35 GB of disk, several minutes a run)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="case growth: write a plot to FILE, as SVG")
    parser.add_argument("--seconds", type=float, metavar="S", help="case tail: duration for each broker (default: 600)")
    parser.add_argument("--alone", action="store_true", help="do not measure Kafka for comparison")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="folder for temporary stores (default: the system's temporary folder)"
    )
    parser.add_argument(
        "--touch-gib",
        type=float,
        metavar="N",
        help="GiB of memory to touch before each run, so that the host of a virtual machine provides them before the "
        f"measurement (default: {TOUCHED_GIB:g}, with --quick 0)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure of every run to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table to FILE")
    parser.add_argument(
        "--seconds-max", type=float, default=CASE_SECONDS_MAX, metavar="S", help="give up a case that takes longer"
    )
    parsed = parser.parse_args()
    if parsed.runs < 1:
        parser.error("--runs must be 1 or more")
    return parsed


def facts(options: argparse.Namespace, folder: Path, touched_gib: float) -> dict[str, Any]:
    """Return the conditions of the measurement."""
    way = f"one broker process, RocketMQ's file sizes; memory touched before each broker's work: {touched_gib:g} GiB"
    idle = idle_share()
    if idle < IDLE_SHARE_MIN:
        way += f"; other processes used {1 - idle:.0%} of the processors at the start"
    if options.quick:
        way += "; QUICK: these figures are meaningless"
    return {
        "machine": describe(folder),
        "way": way,
        "runs": options.runs,
        "quick": options.quick,
        "touched_gib": touched_gib,
        "idle_share_at_start": idle,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    options = arguments()
    # SIGTERM raises SystemExit, so that the context managers stop brokers and remove stores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder: Path = options.dir or Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in (SPARK if options.group else ALL) if not options.case or case.name in options.case]
    touched_gib = options.touch_gib if options.touch_gib is not None else 0.0 if options.quick else TOUCHED_GIB
    known = facts(options, folder, touched_gib)
    say(f"{known['machine']}; {known['way']}")
    bench = Bench(
        options.runs,
        folder,
        quick=options.quick,
        alone=options.alone,
        full=options.full,
        touched_gib=touched_gib,
        seconds=options.seconds,
        say=say,
    )
    try:
        results = run_cases(cases, bench, options.seconds_max)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    known["notes"] = bench.notes
    table = as_markdown(results, known)
    print(table)
    if options.markdown:
        options.markdown.write_text(table + "\n")
    for result in results:
        if options.plot and result.case.plot is not None and result.samples:
            result.case.plot(result, options.plot)
    if options.json:
        options.json.write_text(json.dumps(as_json(results, known), indent=2, ensure_ascii=False) + "\n")
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
