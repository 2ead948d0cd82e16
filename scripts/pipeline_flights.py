"""The flights pipeline with a broker of its own. Started by `scripts/pipeline`; ends with 0 if all is verified."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from pathlib import Path

from flintmq.client import FlintError
from lib.flights_pipeline import run_pipeline, seconds_since  # scripts/lib: a script's folder is on its path
from lib.local_broker import BrokerFailed, LocalBroker
from lib.reporting import console, report, show_failure


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/pipeline", description="FlintMQ and Spark on real input.")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, help="keep the results in DIR, which must be empty (default: temporary)"
    )
    return parser.parse_args()


def main() -> int:
    output: Path | None = arguments().output
    # Ended from outside, Spark and the broker are stopped and temporary folders removed all the same.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flintmq-pipeline-")))
            started = time.perf_counter()
            broker = stack.enter_context(LocalBroker(folder / "store"))
            report("started", f"a broker on {broker.address}", seconds_since(started))
            results = output.absolute() if output is not None else folder / "parquet"
            run_pipeline(broker.address, results, folder / "spark.log")
    except (BrokerFailed, FlintError) as failure:
        show_failure("pipeline", failure)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if output is not None:
        console.print(f"The results stay, as Parquet: spark.read.parquet({str(results)!r})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
