"""The example programs of RocketMQ's Go client, run against a broker.

Go's module proxy serves the client with its examples. They are copied into the scratch folder of the run, where the
address, and of each consumer the topic and the group, are changed; they run as their authors wrote them otherwise.
"""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .brokers import Target, process, until
from .java import Unavailable, need_programs
from .outcomes import Outcome, Report, chosen

MODULE = "github.com/apache/rocketmq-client-go/v2"
VERSION = "v2.1.2"
SUITE = f"examples of the Go client {VERSION}"
DOWNLOAD_SECONDS_MAX = 300.0
BUILD_SECONDS_MAX = 300.0
CASE_SECONDS_MAX = 60.0
SENT = "send message success: result="
RECEIVED = r"subscribe callback: .*Hello RocketMQ Go Client!"


@dataclass(frozen=True)
class Case:
    """An example, and what its output must and must not contain. ``times``: how often ``expected`` is there.

    ``feed``: the example that sends messages, in turns until the output is there; ``ends``: it ends by itself, with 0.
    """

    example: str
    expected: str
    times: int = 1
    feed: str = ""
    ends: bool = False
    refused: str = r"(?m)^(send message|start producer|init \w+|receive message|Request message) error.*"


CASES = (
    Case("admin/group", r"map\[", ends=True, refused=r"(?m)^.*error:.*"),
    Case("consumer/acl", RECEIVED, feed="producer/simple"),
    Case("consumer/broadcast", RECEIVED, feed="producer/simple"),
    Case("consumer/delay", r"Receive message\[msgId=\w+\] 1\d{4} ms later", feed="producer/delay"),
    Case("consumer/interceptor", r"user second interceptor after invoke: .*result: .*", feed="producer/simple"),
    Case("consumer/namespace", RECEIVED, feed="producer/namespace"),
    Case("consumer/orderly", r"subscribe orderly callback: .*Hello RocketMQ Go Client!", feed="producer/simple"),
    Case("consumer/pull/poll", r"msgList: .*Hello RocketMQ Go Client!", feed="producer/namespace"),
    Case("consumer/pull/pull", r"pull message successfully", feed="producer/namespace"),
    Case("consumer/retry/concurrent", r"subscribe callback: .*ReconsumeTimes=2.*", feed="producer/simple"),
    Case("consumer/retry/order", r"subscribe orderly callback: .*ReconsumeTimes=2.*", feed="producer/simple"),
    Case("consumer/rpc", r"reply to \S+ , SendResult .sendStatus=0", feed="producer/rpc/sync"),
    Case("consumer/simple", RECEIVED, times=10, feed="producer/simple"),
    Case("consumer/strategy", RECEIVED, feed="producer/simple"),
    Case("consumer/tag", r"subscribe callback: .*Tag[AC].*", times=2, feed="producer/tag"),
    Case("consumer/trace", RECEIVED, feed="producer/simple"),
    Case("producer/acl", SENT, times=1000, ends=True),
    Case("producer/async", SENT, times=10, ends=True),
    Case("producer/batch", SENT, ends=True),
    Case("producer/delay", SENT, times=10, ends=True),
    Case("producer/interceptor", SENT, times=10, ends=True),
    Case("producer/namespace", SENT, times=1000, ends=True),
    Case("producer/rpc/async", r"Requst to \S+ cost:\d+ ms responseMsg:.*", feed="consumer/rpc"),
    Case("producer/rpc/sync", r"Requst to \S+ cost:\d+ ms responseMsg:.*", feed="consumer/rpc"),
    Case("producer/simple", SENT, times=10, ends=True),
    Case("producer/tag", SENT, times=3, ends=True),
    Case("producer/trace", SENT, ends=True),
    Case("producer/transaction", r"checkLocalTransaction (COMMIT|ROLLBACK)_MESSAGE", times=7),
)
NOT_APPLICABLE = {
    "admin/topic": "deletes a topic without the address of a broker, which fails with RocketMQ, too",
    "consumer/pull/pull_from": "keeps its offsets in a Redis server",
}
TOPICS = ("TopicTest", "min", "test-topic", "test", "RequestTopic")
"""The topics of the examples, which the copies replace by one for each case."""


class GoExamples:
    """The examples in a scratch folder. Raises ``Unavailable``, with the reason."""

    def __init__(self, work: Path, target: Target) -> None:
        need_programs("go")
        self._folder = work / "go"
        self._target = target
        copied = self._folder / "module"
        shutil.copytree(_download(work), copied, copy_function=shutil.copy, dirs_exist_ok=True)
        for path in (copied, *copied.rglob("*")):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)  # Go's cache is read-only
        self._module = copied
        found = {str(path.parent.relative_to(copied / "examples")) for path in copied.glob("examples/**/main.go")}
        self._unknown = found - {case.example for case in CASES} - set(NOT_APPLICABLE)

    def run(self, report: Report, patterns: Sequence[str]) -> None:
        """Run the examples whose name contains one of ``patterns``, or all."""
        cases = {case.example: case for case in CASES}
        for name in chosen(cases, patterns):
            failure = self._failure(cases[name])
            report.add(Outcome(SUITE, name, "failed" if failure else "passed", failure))
        for name in chosen(NOT_APPLICABLE, patterns):
            report.add(Outcome(SUITE, name, "not applicable", NOT_APPLICABLE[name]))
        for name in chosen(sorted(self._unknown), patterns):
            report.add(Outcome(SUITE, name, "failed", "the suite has no case for this example"))

    def _failure(self, case: Case) -> str:
        """Run a case and return why it failed, or an empty text."""
        topic = f"go-{case.example.replace('/', '-')}"
        program = self._build(case.example, topic, topic)
        feed = self._build(case.feed, topic, topic) if case.feed else None
        output = self._folder / f"{topic}.output"
        if feed is None or not case.feed.startswith("consumer"):
            return self._attempt(case, program, feed, output)
        self._run_to_end(self._build("producer/rpc/sync", topic, topic))  # a consumer ends if there is no topic
        with (self._folder / f"{topic}-feed.output").open("w") as log, process([str(feed)], log):
            return self._attempt(case, program, None, output)

    def _attempt(self, case: Case, program: Path, feed: Path | None, output: Path) -> str:
        """Run a program until its output is complete; again if it ended before: a topic or a peer may be new."""
        written = ""
        for _ in until(CASE_SECONDS_MAX):
            if feed is not None:
                self._run_to_end(feed)
            with output.open("w") as log, process([str(program)], log) as running:
                for _ in until(CASE_SECONDS_MAX):
                    ended = running.poll()
                    written = output.read_text(errors="replace")
                    if case.ends and (refused := re.search(case.refused, written)):
                        return refused[0]
                    if len(re.findall(case.expected, written)) >= case.times and (ended == 0 or not case.ends):
                        return ""
                    if ended is not None:
                        break
                    if feed is not None:
                        self._run_to_end(feed)
        return f"its output lacks {case.times} × {case.expected!r} after {CASE_SECONDS_MAX:.0f} s: {written[-1500:]}"

    def _run_to_end(self, program: Path) -> None:
        with (self._folder / f"{program.name}.feed").open("w") as log:
            subprocess.run([str(program)], stdout=log, stderr=log, timeout=CASE_SECONDS_MAX, check=False)

    def _build(self, example: str, topic: str, group: str) -> Path:
        """Build an example with another address, topic and group."""
        name = f"{example.replace('/', '-')}-{topic}"
        folder = self._module / "examples/suite" / name
        folder.mkdir(parents=True, exist_ok=True)
        source = (self._module / "examples" / example / "main.go").read_text()
        (folder / "main.go").write_text(with_names(source, self._target, topic, group))
        program = self._folder / name
        command = ["go", "build", "-o", str(program), f"./examples/suite/{name}"]
        built = subprocess.run(
            command, cwd=self._module, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
        if built.returncode:
            raise Unavailable(f"Go cannot build {example}: {built.stderr.strip()[:500]}")
        return program


def with_names(source: str, target: Target, topic: str, group: str) -> str:
    """Return the source of an example with the addresses, topic and group of a case, and fewer messages of a loop."""
    changed = source.replace("127.0.0.1:9876", target.name_server).replace("127.0.0.1:10911", target.address)
    for name in TOPICS:
        changed = changed.replace(f'"{name}"', f'"{topic}"')
    for name in ("testGroup", "testPullGroup"):
        changed = changed.replace(f'"{name}"', f'"{group}"')
    changed = changed.replace('"ns"', '"namespace"').replace('"testPull"', '"*"')  # as the producer's
    return changed.replace("i < 100000", "i < 1000")


def _download(work: Path) -> Path:
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS_MAX, check=False)
    if done.returncode:
        raise Unavailable(f"Go cannot fetch {MODULE}; is there a network? {(done.stderr or done.stdout).strip()[:300]}")
    return Path(json.loads(done.stdout)["Dir"])
