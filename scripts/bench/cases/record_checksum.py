"""Cost of a checksum over the whole record (``store.record_checksum``): brokers with and without it, in turn."""

from __future__ import annotations

from ..bench import Bench
from ..load import BODY_BYTES, TOPIC, FramePacker, columns, messages_a_frame
from ..measure import Case, Measure, Sample, Samples
from . import broker_alone, produce

SIZES = ((BODY_BYTES, 2_000_000), (1_000, 250_000))
"""(Body size in bytes, number of messages) of each measurement."""
SDK_MESSAGES = 1_000_000
WARM_UP_MESSAGES = 50_000
ON = ("--set", "store.record_checksum=true")


def samples(bench: Bench) -> Samples:
    """Yield one sample per run; in every other run the broker with checksums comes first."""
    warm_up_count, sdk_count = bench.count(WARM_UP_MESSAGES), bench.count(SDK_MESSAGES)
    for run in range(bench.runs):
        sample: Sample = {}
        for body_bytes, messages in SIZES:
            count = bench.count(messages)
            frames, warm_up = pack(count, body_bytes), pack(warm_up_count, body_bytes)
            seconds, cpu = {}, {}
            for on in _turns(run):
                with bench.broker("async", *(ON if on else ())) as broker:
                    seconds[on], cpu[on] = broker_alone.measure(broker, frames, warm_up)
                    broker.check_stored(TOPIC, count + warm_up_count)
            sample[f"rate_{body_bytes}"] = count / seconds[True]
            sample[f"ratio_{body_bytes}"] = seconds[False] / seconds[True]
            sample[f"cpu_{body_bytes}"] = (cpu[True] - cpu[False]) / count * 1e9
        calls, warm_up_calls = produce.bulk_calls(columns(sdk_count)), produce.bulk_calls(columns(warm_up_count))
        rates = {}
        for on in _turns(run):
            with bench.broker("async", *(ON if on else ())) as broker:
                rates[on], _ = produce.measure(broker, calls, warm_up_calls, sdk_count)
        sample["sdk"] = rates[True]
        sample["sdk_ratio"] = rates[True] / rates[False]
        yield sample


def _turns(run: int) -> tuple[bool, bool]:
    return (False, True) if run % 2 == 0 else (True, False)


def pack(count: int, body_bytes: int) -> list[bytes]:
    """Return frames with ``count`` messages in columns, as large as those of the SDK."""
    packer = FramePacker(f"checksum {count} {body_bytes}")
    return [packer.columns(chunk) for chunk in columns(count, body_bytes).chunks(messages_a_frame(body_bytes))]


def _measures(body_bytes: int) -> tuple[Measure, ...]:
    return (
        Measure(f"rate_{body_bytes}", f"broker alone, {body_bytes:,}-byte bodies, with checksums", "msg/s"),
        Measure(f"ratio_{body_bytes}", f"broker alone, {body_bytes:,}-byte bodies: rate with / without", "×"),
        Measure(f"cpu_{body_bytes}", f"{body_bytes:,}-byte bodies: broker CPU more a message", "ns"),
    )


CASE = Case(
    "record-checksum",
    "`store.record_checksum` on beside off, in turns",
    (
        *(measure for body_bytes, _ in SIZES for measure in _measures(body_bytes)),
        Measure("sdk", "`send_bulk`, with checksums", "msg/s"),
        Measure("sdk_ratio", "`send_bulk`: rate with / without", "×"),
    ),
    samples,
)
