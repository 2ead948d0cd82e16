"""Runs cases one after the other, each bounded in time."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

from flintmq.protocol.errors import FlintError
from lib.local_broker import BrokerFailed

from .bench import Bench
from .measure import BenchFailed, Case, Result, Sample, Skipped


def run_cases(cases: Sequence[Case], bench: Bench, seconds_max: float) -> list[Result]:
    """The result of each case; one that fails, or takes longer than ``seconds_max``, does not keep the others."""
    return [run_case(case, bench, seconds_max) for case in cases]


def run_case(case: Case, bench: Bench, seconds_max: float) -> Result:
    """All runs of one case; its figures are said as they come."""
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
    except (BenchFailed, BrokerFailed, FlintError, OSError, TimeoutError) as failure:
        result.failure = str(failure) or type(failure).__name__
        say(f"  failed: {result.failure}")
    say(f"  ({time.monotonic() - began:.0f} s)")
    return result


def describe(case: Case, sample: Sample) -> str:
    """One run's figures in one line."""
    shown = [f"{measure.key} {measure.show(sample[measure.key])}" for measure in case.measures if measure.key in sample]
    return ", ".join(shown)


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise ``BenchFailed`` within the block once it took too long."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise BenchFailed(f"not done within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
