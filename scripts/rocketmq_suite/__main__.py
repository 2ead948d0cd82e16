"""Runs the tests that RocketMQ's authors wrote for its clients against a FlintMQ broker.

Started by ``scripts/rocketmq-suite``. Prints a table; exits with 0 if no case failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.integration.rocketmq_proxy import proxy
from tests.remoting_tools import RemotingSocket

from ..lib.step_report import show_failure
from .admin_tool import SUITE as ADMIN_COMMANDS
from .admin_tool import AdminTool
from .apache_tests import ENCRYPTED, ApacheTests
from .apache_tests import SUITE as APACHE_TESTS
from .brokers import CLUSTER, Target, encrypted_flintmq, flintmq, port_of, rocketmq
from .go_examples import SUITE as GO_EXAMPLES
from .go_examples import GoExamples
from .java import Unavailable, compile_java, fetch_class_path
from .outcomes import Outcome, Report, chosen

PARTS = ("java", "go", "mqadmin", "grpc")
GRPC_CLIENT = "gRPC client for Java through the Proxy"
RELEASE = "5.3.3"
TAG = f"rocketmq-all-{RELEASE}"
"""Sources of the tests, which compile with the jars of their own release only."""


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the context managers then stop all processes
    report = Report()
    with contextlib.ExitStack() as stack:
        work = options.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rocketmq-suite-")))
        work.mkdir(parents=True, exist_ok=True)
        try:
            target = stack.enter_context(_broker(options, work))
            run_parts(options, target, work, report)
        except Unavailable as missing:
            show_failure("rocketmq-suite", missing)
            return 2
    for failure in report.failed:
        print(f"\n{failure.suite}: {failure.case}\n{failure.detail}")
    print(f"\n{report.table()}")
    return 1 if report.failed or not report.outcomes else 0


def run_parts(options: argparse.Namespace, target: Target, work: Path, report: Report) -> None:
    """Run the suites, each of which may be unavailable here."""
    if "java" in options.parts:
        with _or_absent(report, APACHE_TESTS):
            if options.sources is None:
                raise Unavailable(f"pass --sources FOLDER: a checkout of Apache RocketMQ's tag {TAG}")
            tests = ApacheTests(options.sources, fetch_class_path(work, release=RELEASE), work)
            with contextlib.ExitStack() as stack:
                encrypted = target
                if options.broker == "flintmq" and any(
                    name.startswith(ENCRYPTED) for name in chosen(tests.tests, options.only)
                ):
                    encrypted = stack.enter_context(encrypted_flintmq(work / "encrypted"))
                tests.run(target, encrypted, report, options.only, options.jobs)
    if "go" in options.parts:
        with _or_absent(report, GO_EXAMPLES):
            GoExamples(work, target).run(report, options.only)
    if "mqadmin" in options.parts:
        with _or_absent(report, ADMIN_COMMANDS):
            AdminTool(work, target, fetch_class_path(work)).run(report, options.only)
    if "grpc" in options.parts:
        with _or_absent(report, GRPC_CLIENT):
            run_grpc_client(work, target, report, options.only)


def run_grpc_client(work: Path, target: Target, report: Report, patterns: Sequence[str]) -> None:
    """Run the cases of RocketMQ's gRPC client for Java, through Apache RocketMQ's Proxy in cluster mode.

    Each has a name that contains one of ``patterns``; all without patterns. Raises ``Unavailable``, with the reason.
    """
    folder = work / "grpc"
    jars = fetch_class_path(work, proxy.FOLDER / "pom.xml")
    compile_java(sorted(proxy.FOLDER.glob("*.java")), jars, folder / "classes")
    classes = f"{jars}{os.pathsep}{folder / 'classes'}"
    with RemotingSocket(("127.0.0.1", port_of(target.address))) as remote:
        proxy.prepare(remote)
    with proxy.running_proxy(classes, folder / "proxy", target.name_server, CLUSTER) as running:
        for row in proxy.run_cases(classes, folder / "client", running, chosen(proxy.CASES, patterns)):
            report.add(Outcome(GRPC_CLIENT, row.case, "passed" if row.passed else "failed", row.reason))


@contextlib.contextmanager
def _or_absent(report: Report, suite: str) -> Iterator[None]:
    try:
        yield
    except Unavailable as missing:
        report.add_absent(suite, str(missing))


def _broker(options: argparse.Namespace, work: Path) -> contextlib.AbstractContextManager[Target]:
    if options.address:
        return contextlib.nullcontext(Target(options.address, options.address))
    if options.broker == "rocketmq":
        return rocketmq(work, fetch_class_path(work))
    return flintmq(work, options.set)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rocketmq-suite", description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="suites to run; all unless given")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only cases with TEXT in their name"
    )
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="classes of tests that run at once (3)")
    parser.add_argument("--sources", type=Path, metavar="DIR", help=f"checkout of RocketMQ's tag {TAG}, for `java`")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scratch folder to keep; a temporary one unless given")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="setting of FlintMQ's broker")
    parser.add_argument("--broker", choices=["flintmq", "rocketmq"], default="flintmq", help="broker to start")
    parser.add_argument("--address", metavar="HOST:PORT", help="use a running broker, which serves routes, too")
    options = parser.parse_args()
    options.parts = options.parts or list(PARTS)
    return options


if __name__ == "__main__":
    sys.exit(main())
