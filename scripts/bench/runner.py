"""Runner of the cases: one after another, each with a time limit."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from flintmq.protocol.errors import FlintError

from .bench import Bench
from .measure import BenchFailed, Case, Result, Sample, Skipped


def run_cases(cases: Sequence[Case], bench: Bench, seconds_max: float) -> list[Result]:
    """Run the cases and return their results. A case that fails or exceeds ``seconds_max`` does not stop the others."""
    return [run_case(case, bench, seconds_max) for case in cases]


def run_case(case: Case, bench: Bench, seconds_max: float) -> Result:
    """Run one case and print its figures after each run."""
    result = Result(case)
    say(f"{case.name}: {case.title}")
    began = time.monotonic()
    try:
        with time_limit(seconds_max), closing(case.samples(bench)) as samples:
            for sample in samples:
                result.samples.append(sample)
                say(f"  {describe(case, sample)}")
    except Skipped as reason:
        result.skipped = str(reason)
        say(f"  skipped: {result.skipped}")
    except (BenchFailed, FlintError, OSError, TimeoutError) as failure:
        result.failure = str(failure) or type(failure).__name__
        say(f"  failed: {result.failure}")
    say(f"  ({time.monotonic() - began:.0f} s)")
    return result


def describe(case: Case, sample: Sample) -> str:
    """Return the figures of one run in one line."""
    shown = [f"{measure.key} {measure.show(sample[measure.key])}" for measure in case.measures if measure.key in sample]
    return ", ".join(shown)


def say(text: str) -> None:
    """Print progress on standard error."""
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
