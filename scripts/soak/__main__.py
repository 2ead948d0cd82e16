"""Command line of ``scripts/soak/run``."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import replication
from .groups import soak as groups
from .soak import Failed, Plan, soak


def groups_main(arguments: Sequence[str]) -> int:
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
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    plan = groups.Plan(**options)
    return judged(plan.seed, lambda folder: groups.Soak(plan, keep or folder).run())


def judged(seed: int, run: Callable[[Path], object]) -> int:
    """Run a soak in a temporary folder; print its failure, and return the exit code."""
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="flintmq-soak-") as folder:
        try:
            run(Path(folder))
        except Failed as failure:
            print(f"FAILED (seed {seed}): {failure}", file=sys.stderr)
            return 1
    return 0


def main() -> int:
    """Run the soak that the command line asks for; return its exit code."""
    if sys.argv[1:2] == ["groups"]:
        return groups_main(sys.argv[2:])
    if sys.argv[1:2] == ["replication"]:
        return replication.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="./scripts/soak/run",
        description="Asyncio producers and followers, each a process whose loop is blocked at random, and a broker "
        "that is stopped and killed in turn. At the end every follower must have seen every acknowledged message, "
        "every process must be alive, and no client's memory may have grown by more than 32 MiB. Exits with 0 or 1. "
        "`./scripts/soak/run groups` tests consumer groups, `./scripts/soak/run replication` simulates replica sets; "
        "each has a --help of its own.",
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to produce (default: 600)")
    parser.add_argument("--producers", type=int, default=8)
    parser.add_argument("--followers", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=5, help="how often the broker restarts (default: 5)")
    parser.add_argument(
        "--block-seconds-max", type=float, default=40.0, help="maximum time a loop is blocked (default: 40)"
    )
    parser.add_argument("--rate", type=int, default=100, help="messages per second of each producer (default: 100)")
    parser.add_argument("--flush", choices=("sync", "async"), default="sync")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="repeats the run with this seed")
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help="instead: this many rounds of faults (kills, power cuts, I/O errors), "
        "each checked; see tests/fault/harness/README.md",
    )
    parser.add_argument("--campaign", type=int, help="with --seed: repeat only this campaign of a run with --rounds")
    parser.add_argument(
        "--disks",
        action="store_true",
        help="with --rounds: use an ext4 that is shut down or fails to sync, and a "
        "tmpfs that fills up; needs root, a loop device and strace",
    )
    parser.add_argument(
        "--replica-rounds",
        type=int,
        default=0,
        help="instead: this many rounds of faults (of processes, disks, networks and the registry) of a replica set "
        "with a network namespace for each broker and each member of etcd; needs root and a loop device",
    )
    options = parser.parse_args()
    if options.replica_rounds or options.rounds or options.campaign is not None:
        from tests.fault.harness.mounts import NotHere

        print(f"seed {options.seed}", flush=True)
        try:
            if options.replica_rounds:
                from . import replica_rounds  # needs more packages than the other rounds

                return replica_rounds.run(options.replica_rounds, options.seed)
            from . import rounds

            return rounds.run(options.rounds, options.seed, options.campaign, disks=options.disks)
        except NotHere as refusal:
            print(f"this machine cannot run it: {refusal}", file=sys.stderr)
            return 1
    del options.rounds, options.campaign, options.disks, options.replica_rounds
    plan = Plan(**vars(options))
    return judged(plan.seed, lambda folder: soak(plan, folder))


if __name__ == "__main__":
    sys.exit(main())
