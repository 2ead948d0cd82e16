"""The commands of RocketMQ's mqadmin, run against a broker with topics, messages and live clients."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .brokers import BROKER, CLUSTER, Target, process, until
from .java import FOLDER, Unavailable, compile_java, java_command
from .outcomes import Outcome, Report

SUITE = "commands of mqadmin 5.5.0"
MAIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
COMMAND_SECONDS_MAX = 60.0
START_SECONDS_MAX = 30.0
TOPIC, GROUP, OTHER_GROUP, PRODUCERS = "admin-topic", "admin-group", "admin-copy", "admin-producers"
REFUSED = re.compile(r"^(?:\w+\.)+\w*(?:Exception|Error)\b.*$", re.MULTILINE)

SETUP = (
    ("updateTopic -b {address} -t {topic} -r 4 -w 4", "create topic to .* success"),
    ("updateSubGroup -b {address} -g {group}", "create subscription group to .* success"),
    ("updateSubGroup -b {address} -g {copy}", "create subscription group to .* success"),
    ("sendMessage -t {topic} -p admin-body -k admin-key -c admin-tag", "SEND_OK"),
)
WITH_CLIENTS = (
    ("clusterList", r"{broker}\s+0\s+{address}"),
    ("clusterList -m", "{broker}"),
    ("topicList", "(?m)^{topic}"),
    ("topicList -c", r"{cluster}\s+{topic}"),
    ("topicRoute -t {topic}", '"brokerName":"{broker}"'),
    ("topicStatus -t {topic}", r"(?m)^{broker}\s+3\s+0\s+\d"),
    ("topicClusterList -t {topic}", "{cluster}"),
    ("brokerStatus -b {address}", "brokerVersionDesc +: V5"),
    ("brokerConsumeStats -b {address}", "{topic} .*{group}"),
    ("statsAll -t {topic}", "{topic} "),
    ("consumerProgress", "{group}"),
    ("consumerProgress -g {group}", "Consume Diff Total: 0"),
    ("consumerConnection -g {group}", "{client}"),
    ("producerConnection -g {producers} -t {topic}", "JAVA"),
    ("producer -b {address}", "{producers}"),
    ("consumerStatus -g {group}", "{client}"),
    ("consumerStatus -g {group} -i {client}", "#Consumer Properties#"),
    ("consumerStatus -g {group} -i {client} -s", "(?s)#Consumer Properties#.*TID: "),
    ("queryMsgById -t {topic} -i {id}", "Message Body Path"),
    ("queryMsgByUniqueKey -t {topic} -i {id}", "Message Body Path"),
    ("queryMsgByKey -t {topic} -k admin-key", "{id}"),
    ("queryMsgByOffset -t {topic} -b {broker} -i {queue} -o 0", "Message Body Path|MsgId"),
    ("queryCq -t {topic} -q {queue} -i 0 -b {address}", "(?s)Queue data.*physicOffset"),
    ("printMsg -t {topic}", "admin-body"),
    ("consumeMessage -t {topic} -c 100 -g admin-reader", "Consume ok"),
    ("checkMsgSendRT -t {topic} -a 3 -s 16", "Avg RT"),
    ("getBrokerConfig -b {address}", "brokerName +"),
    ("updateBrokerConfig -b {address} -k fileReservedTime -v 72", "update broker config success"),
    ("getConsumerConfig -g {group}", "{group}"),
    ("getNamesrvConfig", "{name_server}"),
    ("exportMetadata -c {cluster} -f {folder}", "export .* success"),
    ("exportConfigs -c {cluster} -f {folder}", "export .* success"),
    ("updateTopicPerm -b {address} -t {topic} -p 4", "update topic perm from 6 to 4"),
    ("updateTopicPerm -b {address} -t {topic} -p 6", "update topic perm from 4 to 6"),
    ("wipeWritePerm -b {broker}", r"wipe write perm of broker\[{broker}\].*OK"),
    ("addWritePerm -b {broker}", r"add write perm of broker\[{broker}\].*OK"),
    ("cleanExpiredCQ -b {address}", "success"),
    ("cleanUnusedTopic -b {address}", "success"),
    ("resetOffsetByTime -g {group} -t {topic} -s 0", r"{broker}\s+\d+\s+\d+"),
    ("skipAccumulatedMessage -g {group} -t {topic}", r"{broker}\s+\d+\s+\d+"),
)
WITHOUT_CLIENTS = (
    ("cloneGroupOffset -s {group} -d {copy} -t {topic} -o true", "clone group offset success"),
    ("deleteSubGroup -b {address} -g {group}", "delete subscription group .* success"),
    ("deleteSubGroup -c {cluster} -g {copy}", r"delete subscription group .* in cluster \[{cluster}\] success"),
    ("deleteTopic -c {cluster} -t {topic}", "delete topic .* success"),
)


class AdminTool:
    """The tool, run against a broker. Raises ``Unavailable``, with the reason."""

    def __init__(self, work: Path, target: Target, classes: str) -> None:
        self._folder = work / "mqadmin"
        self._classes = compile_java([FOLDER / "drivers/LiveClients.java"], classes, self._folder / "classes")
        self._names = {
            "address": target.address,
            "name_server": target.name_server,
            "broker": BROKER,
            "cluster": CLUSTER,
            "topic": TOPIC,
            "group": GROUP,
            "copy": OTHER_GROUP,
            "producers": PRODUCERS,
            "folder": str(self._folder),
        }

    def run(self, report: Report, patterns: Sequence[str]) -> None:
        """Run the commands; ``patterns`` choose those to report. The first commands prepare the others."""
        sent = ""
        for command, expected in SETUP:
            sent = self._check(command, expected, report, patterns)
        found = re.search(rf"(?m)^{BROKER}\s+(\d+)\s+SEND_OK\s+(\w+)", sent)
        if found is None:
            raise Unavailable(f"mqadmin cannot send the message that its other commands need: {sent[-500:]}")
        self._names |= {"queue": found[1], "id": found[2]}
        arguments = [self._names["name_server"], TOPIC, PRODUCERS, GROUP]
        output = self._folder / "clients.output"
        command_line = java_command(self._classes, self._folder / "clients", "LiveClients", arguments, [])
        with output.open("w") as log, process(command_line, log):
            self._names["client"] = _wait_for_client(output)
            for command, expected in WITH_CLIENTS:
                self._check(command, expected, report, patterns)
        for command, expected in WITHOUT_CLIENTS:
            self._check(command, expected, report, patterns)

    def _check(self, command: str, expected: str, report: Report, patterns: Sequence[str]) -> str:
        """Run a command until its output is complete, report it, and return the output."""
        words = command.format_map(self._names).split()
        line = java_command(self._classes, self._folder / "home", MAIN, [*words, "-n", self._names["name_server"]], [])
        wanted = re.compile(expected.format_map({name: re.escape(value) for name, value in self._names.items()}))
        output = ""
        for _ in until(START_SECONDS_MAX):  # figures and progress arrive after some seconds
            done = subprocess.run(
                line, cwd=self._folder, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
            )
            output = done.stdout + done.stderr
            if wanted.search(output) and not REFUSED.search(output):
                break
        failed = ""
        if refused := REFUSED.search(output):
            failed = refused[0]
        elif not wanted.search(output):
            failed = f"no {wanted.pattern!r} in: {output[-1500:]}"
        if not patterns or any(pattern in command for pattern in patterns):
            report.add(Outcome(SUITE, command, "failed" if failed else "passed", failed))
        return output


def _wait_for_client(output: Path) -> str:
    for _ in until(START_SECONDS_MAX):
        if found := re.search(r"(?m)^client (\S+)$", output.read_text(errors="replace")):
            return found[1]
    raise Unavailable(f"the clients for mqadmin did not start: {output.read_text(errors='replace')[-1000:]}")
