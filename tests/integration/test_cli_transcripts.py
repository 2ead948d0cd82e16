"""The command line against a real broker, as ``tests/transcripts`` shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from flintmq.client import Consumer, Delivery, GroupConsumer, Message
from tests.cli_tools import Cli
from tests.conftest import BrokerFactory, ConnectionFactory, RunningBroker
from tests.dead_letter_tools import bury, send_back
from tests.delivery_tools import receive
from tests.group_tools import RawMember, joined, until
from tests.security_tools import PASSWORD, SCRAM, set_grants
from tests.transaction_tools import listed, send_half, wait_until
from tests.transcript_tools import FOLDER, Step, Transcript, documented_rows

README = (Path(__file__).parents[2] / "client" / "cli" / "README.md").read_text(encoding="utf-8")
SHOWN_LIKE = {
    "topic create": "topic list",
    "topic update": "topic list",
    "tail": "pull",
    "query time": "query time --offsets",
    "user passwd": "user add",
}
"""Commands whose JSON has the names of another one."""


def documented(command: str) -> set[str]:
    """Return the names that the README lists for a command's JSON."""
    names = README.partition("### Names in JSON")[2]
    found = re.search(rf"^\| `{command}`[^|]* \| (.*) \|$", names, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", found[1])) if found else set()


def names_in(value: Any) -> set[str]:
    """Return all names in a JSON value; those of properties are the users' own."""
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    if isinstance(value, dict):
        return set(value).union(
            *(names_in(each) for name, each in value.items() if name not in ("properties", "noted"))
        )
    return set()


USERS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "withheld": {
        "shop": [{"actions": ["publish", "consume"], "topic": "orders"}, {"actions": ["consume"], "group": "g"}],
        "root": [{"actions": ["admin"], "broker": True}],
    }
}
"""Users of the transcripts whose broker serves authenticated users alone."""
SETTINGS: dict[str, dict[str, Any]] = {
    "withheld": SCRAM,
    "parked": {
        "transactions.timeout_ms": 400,
        "transactions.check_interval_ms": 400,
        "transactions.check_times_max": 1,
    },
}
"""Settings of the brokers of transcripts, if they are not the usual ones."""


class Steps:
    """What other programs do between the commands of a transcript."""

    def __init__(self, running: RunningBroker, connect: ConnectionFactory, cli: Cli) -> None:
        self._running = running
        self._cli = cli
        self._connect = connect
        self._members: dict[str, list[RawMember]] = {}
        self._halves = 0
        self._leased: list[Delivery] = []
        self._consumer: GroupConsumer | None = None

    def log_in(self, user: str) -> None:
        self._cli.variables |= {"FLINTMQ_USER": user, "FLINTMQ_PASSWORD": PASSWORD}

    def join(self, group: str, name: str, topic: str, mode: str = "clustering") -> None:
        member = joined(self._connect(self._running), group, name, topic, mode=mode)
        self._members.setdefault(group, []).append(member)

    def leave(self, group: str) -> None:
        for member in self._members.pop(group):
            member.leave()

    def pull(self, group: str, topic: str, queue: str, count: str) -> None:
        self._members[group][-1].pull(topic, int(queue), 0, max_count=int(count)).raise_for_error()

    def commit(self, group: str, topic: str, queue: str, offset: str) -> None:
        self._members[group][-1].commit(topic, int(queue), int(offset)).raise_for_error()

    def send_back(self, group: str, topic: str, level: str) -> None:
        """Send all messages back; wait until the group's member has its retry topic."""
        with Consumer(self._running.address) as consumer:
            offsets = [message.physical_offset for message in consumer.iter(topic, until="latest")]
        send_back(self._connect(self._running), group, offsets, level=int(level))
        member = self._members[group][-1]
        until(lambda: member.beat(topic).code == 0 and any(name != topic for name, _ in member.rows))

    def bury(self, group: str, topic: str, *bodies: str) -> None:
        letters = [Message(topic, body.encode(), keys=[f"k-{body}"], tags="t") for body in bodies]
        bury(self._running, self._connect(self._running), group, letters, "ValueError: no such account")

    def half(self, topic: str, body: str) -> None:
        self._halves += 1
        send_half(self._connect(self._running), topic, body.encode(), self._halves)

    def park(self, topic: str, body: str) -> None:
        """Begin a transaction that no producer decides; wait until the broker parks it."""
        connection = self._connect(self._running)
        self._halves += 1
        half = send_half(connection, topic, body.encode(), self._halves)
        wait_until(lambda: half.transaction_id in [row["id"] for row in listed(connection, parked=True)], connection)

    def lease(self, group: str, topic: str, count: str) -> None:
        self._consumer = GroupConsumer(self._running.address, group, topic, mode="work", start="first")
        self._consumer.start()
        self._leased = receive(self._consumer, int(count))

    def acknowledge(self) -> None:
        assert self._consumer is not None
        for delivery in self._leased:
            delivery.ack()
        self._consumer.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.txt")))
def test_a_transcript_shows_what_the_commands_print(
    name: str, broker: BrokerFactory, connect: ConnectionFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = tmp_path / "store"
    if name in USERS:
        set_grants(store, USERS[name])
    running = broker(store=store, settings=SETTINGS.get(name, {}))
    with Cli(tmp_path, running.address, {"FLINTMQ_STORE__PATH": str(store)}) as cli:
        steps = Steps(running, connect, cli)
        functions: dict[str, Step] = {
            step: getattr(steps, step) for step, made in vars(Steps).items() if callable(made) and step[0] != "_"
        }
        transcript = Transcript(name, cli, functions)
        printed = transcript.run()
    if request.config.getoption("--update-transcripts"):
        transcript.path.write_text(printed, encoding="utf-8")
    assert printed == transcript.text, "pytest --update-transcripts writes what is printed now; review the difference"


def test_all_names_in_json_are_documented() -> None:
    printed: dict[str, set[str]] = {}
    for typed, row in documented_rows():
        words = typed.split()[1:4]
        keys = (" ".join(words[:count]) for count in (3, 2, 1))
        row_of = next((key for key in keys if key in SHOWN_LIKE or documented(key)), typed)
        printed.setdefault(SHOWN_LIKE.get(row_of, row_of), set()).update(names_in(row))
    assert len(printed) > 15
    whole = documented("pull")
    for command, names in printed.items():
        if command in ("status", "top", "check"):  # transcripts show these of a user from whom most is withheld
            continue
        expected = documented(command) - {"pull"}
        if command in ("query id", "dlq show"):  # they name what they add to the names of pull
            names, expected = names - whole, expected - whole
        assert names == expected, command
