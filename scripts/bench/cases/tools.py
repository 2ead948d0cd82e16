"""The offline tools on a store of about 1 GiB whose files are in the page cache."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from flintmq.testing.started_broker import broker_environment

from ..bench import Bench
from ..broker import Broker
from ..load import QUEUES, TOPIC, fill
from ..machine import touch_memory
from ..measure import BenchFailed, Case, Measure, Samples
from ..raw import RawClient

MESSAGES = 4_000_000
SECONDS_MAX = 600
_REBUILT = re.compile(r"from ([\d,]+) records in ([\d.]+) s")


def samples(bench: Bench) -> Samples:
    """Yield one sample per run: the store is created once, and verified and rebuilt in each run."""
    count = bench.count(MESSAGES)
    with bench.store() as store:
        with Broker(store, "async") as broker:
            with RawClient(broker.address) as client:
                client.create_topic(TOPIC, QUEUES)
            fill(broker.address, count)
            broker.wait_until_caught_up()
        verify(store, count)  # loads the files into the page cache
        for _ in range(bench.runs):
            touch_memory(bench.touched_gib, bench.folder)
            figures = {"verify": verify(store, count), "rebuild": rebuild(store, count)}
            with bench.store() as folder:
                figures.update(back_up(store, folder, count))
            yield figures


def verify(store: Path, count: int) -> float:
    """Return the GB of log per second, checked together with queues and index."""
    summary = json.loads(_run("verify", store, "-o", "json").splitlines()[-1])
    if summary["records"] != count or summary["findings"]:
        raise BenchFailed(f"verify found {summary['records']:,} records of {count:,}, and {summary['findings']}")
    return float(summary["log_bytes"] / max(summary["seconds"], 1e-3) / 1e9)


def rebuild(store: Path, count: int) -> float:
    """Return messages per second until the result is on disk."""
    match = _REBUILT.search(output := _run("rebuild", store))
    if match is None or int(match[1].replace(",", "")) != count:
        raise BenchFailed(f"rebuild said {output!r}, {count:,} messages were stored")
    return count / max(float(match[2]), 0.01)


def back_up(store: Path, folder: Path, count: int) -> dict[str, float]:
    """Back the store up, back it up again without changes, and restore it; check that the copy equals the original."""
    began = time.perf_counter()
    _run("backup", store, folder / "backup")
    made = time.perf_counter()
    _run("backup", store, folder / "backup")
    again = time.perf_counter()
    _run("restore", folder / "backup", folder / "restored")
    restored = time.perf_counter()
    size = sum(path.stat().st_size for path in (folder / "backup" / "commitlog").iterdir())
    rebuild(folder / "restored", count)
    return {
        "backup": size / (made - began) / 1e9,
        "backup_again": again - made,
        "restore": size / (restored - again) / 1e9,
    }


def _run(*arguments: object) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("flintmq-broker"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=broker_environment(),
        check=False,
    )
    if done.returncode:
        raise BenchFailed(f"{arguments[0]} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


CASE = Case(
    "tools",
    "offline tools, 1 GiB of 100-byte messages",
    (
        Measure("verify", "verify, of the log", "GB/s", 1.0),
        Measure("rebuild", "rebuild queues and index", "msg/s", 1_500_000),
        Measure("backup", "backup, its process and all `fdatasync`s included", "GB/s"),
        Measure("backup_again", "another one on top of it, nothing new", "s"),
        Measure("restore", "restore, every byte checked", "GB/s"),
    ),
    samples,
)
