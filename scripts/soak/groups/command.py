"""Command line of ``scripts/soak/run groups``."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..soak import Failed
from .soak import Plan, soak


def main(arguments: Sequence[str]) -> int:
    """Run the soak; return 0 if every guarantee holds, else 1."""
    parser = argparse.ArgumentParser(
        prog="./scripts/soak/run groups",
        description="Two consumer groups, one of them orderly, with six members in all, each a process that joins, "
        "leaves and is killed at random; listeners that fail now and then; producers with sharding keys; and a broker "
        "that is stopped and killed in turn. At the end each group must have handled every acknowledged message, the "
        "orderly one in the order of each sharding key. Exits with 0 or 1.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long to produce (default: 10)")
    parser.add_argument("--producers", type=int, default=3)
    parser.add_argument("--keys", type=int, default=8, help="sharding keys of each producer (default: 8)")
    parser.add_argument("--rate", type=float, default=80.0, help="messages per second of each producer (default: 80)")
    parser.add_argument("--calm", action="store_true", help="kill no process; then no message may be handled twice")
    parser.add_argument(
        "--restart-every", type=float, default=30.0, metavar="S", help="interval of broker restarts (default: 30)"
    )
    parser.add_argument(
        "--change-every",
        type=float,
        default=2.0,
        metavar="S",
        help="interval at which a member joins or leaves (default: 2)",
    )
    parser.add_argument(
        "--failing", type=float, default=0.01, metavar="SHARE", help="share of messages that fail (default: 0.01)"
    )
    parser.add_argument(
        "--slow-ms", type=float, default=4.0, metavar="MS", help="maximum time of a listener (default: 4)"
    )
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="repeats the run with this seed")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep store, ledgers and logs in DIR, which must be empty"
    )
    options = vars(parser.parse_args(arguments))
    keep: Path | None = options.pop("keep")
    plan = Plan(**options)
    print(f"seed {plan.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flintmq-soak-") as folder:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
        try:
            soak(plan, keep or Path(folder))
        except Failed as failure:
            print(f"FAILED (seed {plan.seed}): {failure}", file=sys.stderr)
            return 1
    return 0
