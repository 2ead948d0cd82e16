"""RocketMQ's gRPC client for Java, through Apache RocketMQ's Proxy in cluster mode before a broker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.integration.rocketmq_proxy.proxy import CASES, FOLDER, prepare, run_cases, running_proxy
from tests.remoting_tools import RemotingSocket

from .brokers import CLUSTER, Target, port_of
from .java import compile_java, fetch_class_path
from .outcomes import Outcome, Report, chosen

SUITE = "gRPC client for Java through the Proxy"


def run_grpc_client(work: Path, target: Target, report: Report, patterns: Sequence[str]) -> None:
    """Run the cases whose name contains one of ``patterns``, or all. Raises ``Unavailable``, with the reason."""
    folder = work / "grpc"
    jars = fetch_class_path(work, FOLDER / "pom.xml")
    compile_java(sorted(FOLDER.glob("*.java")), jars, folder / "classes")
    classes = f"{jars}{os.pathsep}{folder / 'classes'}"
    with RemotingSocket(("127.0.0.1", port_of(target.address))) as remote:
        prepare(remote)
    with running_proxy(classes, folder / "proxy", target.name_server, CLUSTER) as proxy:
        for row in run_cases(classes, folder / "client", proxy, chosen(CASES, patterns)):
            report.add(Outcome(SUITE, row.case, "passed" if row.passed else "failed", row.reason))
