"""The archive: what it costs the sender, and what its readers get: scans, keys, and old messages through the broker."""

from __future__ import annotations

import importlib.util
import math
import random
import time
from pathlib import Path

import numpy as np

from flintmq.client import Admin
from flintmq.protocol.storage.archive.keys import BLOCK_BYTES, BLOCK_ENTRIES, ENTRY, encode_run
from flintmq.protocol.storage.archive.manifest import ArchiveManifest, KeyRun
from flintmq.protocol.storage.archive.objects import Objects
from flintmq.protocol.storage.archive.reader import ArchiveReader

from ..bench import Bench
from ..broker import Broker
from ..load import BODY_BYTES, TOPIC, fill
from ..measure import BenchFailed, Case, Measure, Sample, Samples, Skipped, p50_and_p99
from ..raw import RawClient
from .reads import pull, read_all

MESSAGES = 600_000
CATCH_UP_S = 300.0
SEARCHES = 200
FILES = "store.commitlog_file_bytes=67108864"
DELETES = "retention.delete_when=" + ";".join(f"{hour:02d}" for hour in range(24))


def _samples(bench: Bench) -> Samples:
    for library in ("obstore", "zstandard", "pyarrow", "numba"):
        if importlib.util.find_spec(library) is None:
            raise Skipped(f"{library} of the extras `archive` and `arrow` is not installed")
    for run in range(bench.runs):
        with bench.store() as archive:
            yield _bulks(bench, archive) | _generated(bench.count(SEARCHES), run)


def _bulks(bench: Bench, archive: Path) -> Sample:
    """Send with an archive and without one, then read what was archived in every way."""
    count = bench.count(MESSAGES)
    with bench.broker("async", "--set", FILES) as broker:
        plain_s = _timed_fill(broker, count)
    options = [f"archive.url={archive}", "retention.until_archived=true", DELETES, FILES, "archive.interval_ms=1000"]
    with bench.broker("async", *(word for option in options for word in ("--set", option))) as broker:
        archived_s = _timed_fill(broker, count)
        broker.wait_until_caught_up()
        with RawClient(broker.address) as client:
            end = client.runtime_info()["write_offset"]
            lengths = {queue: length for queue, length in client.queue_lengths(TOPIC).items() if length}
        began = time.perf_counter()
        with ArchiveReader(Objects(archive)) as reader:
            while not any(reader.objects.list("manifest")) or reader.refresh().end < end:
                if time.perf_counter() - began > CATCH_UP_S:
                    raise BenchFailed(f"the archive did not catch up within {CATCH_UP_S:.0f} s")
                time.sleep(0.05)
        behind_s = time.perf_counter() - began
        sample = {"bulk": plain_s / archived_s, "behind": behind_s / archived_s}
        direct, store = _scanned(archive, count), _scanned(broker.store, count)
        sample |= {"direct": end / direct / 1e9, "direct_ratio": store / direct}
        _have_retention_delete(broker)
        began = time.perf_counter()
        if pull(broker, lengths, read_all) != (count, count * BODY_BYTES):
            raise BenchFailed("pulls from the archive returned other messages than were sent")
        return sample | {"cold": end / (time.perf_counter() - began) / 1e9}


def _timed_fill(broker: Broker, count: int) -> float:
    began = time.perf_counter()
    fill(broker.address, count, BODY_BYTES)
    return time.perf_counter() - began


def _scanned(path: Path, count: int) -> float:
    """Return the seconds that a scan of all messages takes, without those that Numba takes to load."""
    from flintmq.client.arrow import read_store

    stream = read_store(path, TOPIC, columns=("queue_offset", "body"))
    next(iter(stream))
    began = time.perf_counter()
    if (rows := sum(batch.num_rows for batch in stream)) != count:
        raise BenchFailed(f"a scan of {path} returned {rows:,} rows; sent were {count:,}")
    return time.perf_counter() - began


def _have_retention_delete(broker: Broker) -> None:
    """Have the broker delete every file of the log that it may; all of them are archived."""
    with Admin(broker.address) as admin:
        begin = admin.status()["min_physical_offset"]
        admin.change_settings({"retention.file_reserved_hours": 0})
        deadline = time.monotonic() + CATCH_UP_S
        if admin.status()["write_offset"] < 2 * 67108864:
            return  # with --quick there is one file, which stays
        while admin.status()["min_physical_offset"] == begin:
            if time.monotonic() > deadline:
                raise BenchFailed("retention deleted nothing")
            time.sleep(0.05)


# ---- a key among those of 10 TB of messages of 1 KB, in blocks that are generated when they are read

GET_S = 0.020
LEVELS = ((15, 65_536), (15, 16 * 65_536), (15, 256 * 65_536), (15, 4_096 * 65_536), (2, 65_536 * 65_536))
"""Runs of each level, and the keys of each, when 160,000 fragments have been merged by sixteens."""
DAY_RUNS = 4


class _Generated(Objects):
    """Objects whose runs of keys are generated: sorted hashes that stray from an even spread as random ones do, by up
    to twice their standard deviation. A read takes ``GET_S``."""

    def __init__(self, manifest: ArchiveManifest) -> None:
        self.url = "generated"
        self.gets = 0
        self._keys = {run.name: run.keys for run in manifest.runs}

    def range(self, name: str, begin: int, end: int) -> bytes:
        """Return whole blocks of a run."""
        self.gets += 1
        time.sleep(GET_S)
        keys = self._keys[name]
        first, stop = begin // BLOCK_BYTES * BLOCK_ENTRIES, min(-(-end // BLOCK_BYTES) * BLOCK_ENTRIES, keys)
        number = np.arange(first, stop, dtype=np.float64)
        phase = 2 * math.pi * (number / keys + hash(name) % 1000 / 1000)
        place = (number + 0.5 + math.sqrt(keys) * np.sin(phase)) / (keys + 1)
        entries = np.empty(stop - first, ENTRY)
        entries["hash"] = (np.clip(place, 0.0, 1.0 - 2**-53) * 2.0**64).astype(np.uint64)
        entries["physical_offset"] = number.astype(np.int64)
        return encode_run(entries)


def _generated(searches: int, seed: int) -> Sample:
    """Search keys that are not there in all runs, and in those of a day."""
    runs, at = [], 0
    for level, (count, keys) in enumerate(reversed(LEVELS)):
        for number in range(count):
            runs.append(KeyRun(f"keys/{level}/{number}.run", level, at, at + 1, keys, at, at + 1))
            at += 1
    manifest = ArchiveManifest(1, "", 0, "", 0, 0, runs=runs)
    objects = _Generated(manifest)
    choose = random.Random(seed)
    with ArchiveReader(objects) as reader:
        reader.use(manifest)
        taken, gets, day_gets = [], [], []
        for _ in range(searches):
            key = f"{choose.getrandbits(64):x}"
            objects.gets, began = 0, time.perf_counter()
            reader.positions_of_key("orders", key, None, None)
            taken.append(time.perf_counter() - began)
            gets.append(objects.gets)
            objects.gets = 0
            reader.positions_of_key("orders", key, at - DAY_RUNS + 1, None)
            day_gets.append(objects.gets)
    return {
        "key": p50_and_p99(taken, "ms")["p99"],
        "gets": sum(gets) / len(gets),
        "day_gets": sum(day_gets) / len(day_gets),
    }


CASE = Case(
    "archive",
    "the archive in a folder: 600,000 messages; a key in 10 TB at 20 ms a request",
    (
        Measure("bulk", "bulk sends with archiving, against without", "×", 0.95),
        Measure("behind", "time to catch up after the bulk, against the bulk's", "times", 1.0),
        Measure("direct", "scan of the archive without a broker", "GB/s", 0.4),
        Measure("direct_ratio", "the same, against the store's files", "×", 0.7),
        Measure("cold", "pulls of old messages through the broker, one consumer", "GB/s", 0.15),
        Measure("key", "a key among those of 10 TB, p99", "ms", 150),
        Measure("gets", "requests for it", "times", 64),
        Measure("day_gets", "requests for it within a day", "times", 4),
    ),
    _samples,
)
