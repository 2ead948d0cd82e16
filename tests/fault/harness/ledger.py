"""The ledger: messages sent, acknowledged and seen, and the comparison with what a broker holds afterwards.

Body, key and tag of a message follow from its number, so the ledger stores no bodies.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from flintmq.client import CorruptMessage, Message, StoredMessage

TOPIC = "ledger"
QUEUES = 4
SIZES = (0, 20, 300, 300, 3000, 3000, 20_000, 60_000)


def body_of(number: int) -> bytes:
    """Return the body of a message; the same at every call."""
    source = random.Random(number)
    return b"%012d" % number + source.randbytes(source.choice(SIZES))


def message_of(number: int, topic: str = TOPIC) -> Message:
    return Message(topic, body_of(number), keys=(key_of(number),), tags=tag_of(number))


def key_of(number: int) -> str:
    return f"key-{number}"


def tag_of(number: int) -> str:
    return "eu" if number % 3 else "us"


def number_in(body: bytes) -> int:
    return int(body[:12]) if body[:12].isdigit() else -1


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged message and its reported place. ``sync``: acknowledged after it was on disk."""

    queue: int
    queue_offset: int
    physical_offset: int
    message_id: str
    sync: bool


@dataclass
class Finding:
    """Result of one comparison: how many violations of each kind, with details."""

    lost: int = 0
    vanished: int = 0
    wrong: int = 0
    duplicates: int = 0
    disorder: int = 0
    reported: int = 0
    """Lost, and reported as lost: the bytes are in quarantine."""
    unchecked: int = 0
    """Damaged where no checksum covers the bytes, so that no one can notice: ``store.record_checksum`` was off."""
    tail: int = 0
    """Lost in a power cut after an acknowledgement before the flush: async flush allows it."""
    details: list[str] = field(default_factory=list)

    def note(self, kind: str, detail: str) -> None:
        """Count one violation of that kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.details) < 20:
            self.details.append(f"{kind}: {detail}")

    @property
    def sound(self) -> bool:
        """Return whether every promise was kept."""
        return not (self.lost or self.vanished or self.wrong or self.duplicates or self.disorder)


Place = tuple[str, int, int]
"""Topic, queue and queue offset."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """Messages that may be missing.

    ``tail_from``: the power was cut under async flush. Of the messages at or after this physical offset that were not
    acknowledged as flushed, all may be missing: of each queue a suffix of the messages that were there, ``before``.
    ``expired_below``: every message before it may be missing (retention).

    ``touched``: messages that damage touched, (topic, queue, queue offset) by physical offset. ``reported``: those that
    the broker reports as lost. ``checked``: whether a checksum covers the whole record; if not, a touched message may
    have another head or other properties.
    """

    tail_from: int | None = None
    before: frozenset[int] = frozenset()
    expired_below: int = 0
    touched: Mapping[int, Place] = field(default_factory=dict)
    reported: frozenset[Place] = frozenset()
    checked: bool = True

    def is_reported(self, physical_offset: int) -> bool:
        """Return whether damage touched the message and the broker reports it as lost."""
        return self.touched.get(physical_offset) in self.reported

    def is_unchecked(self, physical_offset: int) -> bool:
        """Return whether damage may have changed the message unnoticed."""
        return not self.checked and physical_offset in self.touched

    def covers(self, physical_offset: int) -> bool:
        """Return whether a message that a consumer saw there may be missing."""
        in_tail = self.tail_from is not None and physical_offset >= self.tail_from
        gone = self.is_reported(physical_offset) or self.is_unchecked(physical_offset)
        return physical_offset < self.expired_below or in_tail or gone


Held = dict[int, list[StoredMessage]]
"""Messages of each queue that a broker holds, in order."""


class Ledger:
    """Ledger of one topic, over any number of broker restarts."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Acknowledged] = {}
        self.seen: dict[tuple[int, int], tuple[int, int]] = {}
        """Number and physical offset by the (queue, queue offset) that a consumer saw."""
        self.owners: dict[int, int] = {}
        """Producer by number, for messages that one producer sent in order to one queue; others have no order."""
        self.next_number = 0
        self.acknowledged_in_all = 0

    def take_numbers(self, count: int) -> range:
        """Return numbers that no other message has."""
        numbers = range(self.next_number, self.next_number + count)
        self.next_number += count
        return numbers

    def acknowledge(self, number: int, place: Acknowledged) -> None:
        """Note that the broker acknowledged the message."""
        self.acknowledged[number] = place
        self.acknowledged_in_all += 1

    def see(self, queue: int, queue_offset: int, number: int, physical_offset: int) -> None:
        """Note that a consumer received the message."""
        self.seen[queue, queue_offset] = number, physical_offset

    def judge(self, held: Held, allowance: Allowance) -> Finding:
        """Compare the ledger with what the broker holds, then forget missing messages that may be missing."""
        finding = Finding()
        places: dict[int, StoredMessage] = {}
        for queue, messages in held.items():
            self._judge_queue(queue, messages, places, allowance, finding)
        missing = {}
        for number, place in self.acknowledged.items():
            message = places.get(number)
            if message is None:
                missing[number] = place
                continue
            found = message.queue, message.queue_offset, message.physical_offset
            if found != (place.queue, place.queue_offset, place.physical_offset):
                kind = "unchecked" if allowance.is_unchecked(place.physical_offset) else "wrong"
                finding.note(kind, f"{number} was acknowledged at {place} and is at {message}")
        self._judge_missing(missing, places, allowance, finding)
        self._judge_seen(places, allowance, finding)
        return finding

    def _judge_queue(
        self,
        queue: int,
        messages: list[StoredMessage],
        places: dict[int, StoredMessage],
        allowance: Allowance,
        finding: Finding,
    ) -> None:
        last: dict[int, int] = {}
        touched = set(allowance.touched.values())
        expected = messages[0].queue_offset if messages else 0
        for message in messages:
            for missing in range(expected, message.queue_offset):
                if (TOPIC, queue, missing) not in touched:
                    finding.note("lost", f"queue {queue} has no message {missing}")
            expected = message.queue_offset + 1
            unchecked = allowance.is_unchecked(message.physical_offset)
            number = self._number_of(message)
            if number < 0 and not (unchecked and _says_it_is_corrupt(message)):
                finding.note("wrong", f"queue {queue} holds at {message.queue_offset} a message that was never sent")
            if number < 0:
                continue
            if message.keys != (key_of(number),) or message.tags != tag_of(number) or message.queue != queue:
                what = f"{number} has keys {message.keys}, tag {message.tags}, queue {message.queue}"
                finding.note("unchecked" if unchecked else "wrong", what)
            if number in places:
                finding.note("duplicates", f"{number} is at {places[number]} and at {message}")
            places[number] = message
            owner = self.owners.get(number)
            if owner is not None:
                if number <= last.get(owner, -1):
                    finding.note("disorder", f"producer {owner} sent {number} before {last[owner]}; queue {queue}")
                last[owner] = number

    def _number_of(self, message: StoredMessage) -> int:
        """Return the number of an intact message, -1 if it was never sent."""
        try:
            number = number_in(bytes(message.body))
            whole = 0 <= number < self.next_number and bytes(message.body) == body_of(number)
        except CorruptMessage:
            return -1
        return number if whole else -1

    def _judge_missing(
        self, missing: dict[int, Acknowledged], places: dict[int, StoredMessage], allowance: Allowance, finding: Finding
    ) -> None:
        ends: Counter[int] = Counter()
        for number in allowance.before & places.keys():
            place = self.acknowledged[number]
            ends[place.queue] = max(ends[place.queue], place.queue_offset + 1)
        tail_from = allowance.tail_from
        for number, place in missing.items():
            del self.acknowledged[number]
            if place.physical_offset < allowance.expired_below:
                continue
            if allowance.is_reported(place.physical_offset):
                finding.reported += 1
            elif allowance.is_unchecked(place.physical_offset):
                finding.note("unchecked", f"{number} at {place} is not served")
            elif tail_from is None or place.sync or place.physical_offset < tail_from:
                finding.note("lost", f"{number} at {place}")
            elif place.queue_offset < ends[place.queue]:
                finding.note("lost", f"{number} at {place}, and queue {place.queue} has messages after it")
            else:
                finding.tail += 1

    def _judge_seen(self, places: dict[int, StoredMessage], allowance: Allowance, finding: Finding) -> None:
        kept = {(message.queue, message.queue_offset): number for number, message in places.items()}
        for at, (number, physical_offset) in list(self.seen.items()):
            if kept.get(at) == number:
                continue
            del self.seen[at]
            if not allowance.covers(physical_offset):
                finding.note("vanished", f"{number} was seen at {at}, physical offset {physical_offset}")


def _says_it_is_corrupt(message: StoredMessage) -> bool:
    try:
        bytes(message.body)
    except CorruptMessage:
        return True
    return False
