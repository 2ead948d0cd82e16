"""Staged messages and their commit, over a plain connection."""

from __future__ import annotations

from typing import Any

import msgpack

from flintmq.protocol.commands import ABORT_PREPARED, COMMIT_PREPARED
from tests.conftest import Answer, RawConnection
from tests.transaction_tools import messages

PREFIX = "7F00000155A738209801"


def prepare(connection: RawConnection, attempt: str, topic: str, *bodies: bytes, **fields: Any) -> Answer:
    """Stage bodies for a topic."""
    return connection.produce(topic, *bodies, prepare=attempt, **fields).raise_for_error()


def commit(
    connection: RawConnection, number: int, attempts: dict[str, int], *, series: str = "query", drop: str = ""
) -> Answer:
    """Commit stages that have so many messages each; return the response, even if it is an error."""
    fields = {"series": series, "number": number, "count": len(attempts), "drop": drop}
    return connection.call(COMMIT_PREPARED, fields, msgpack.packb([list(each) for each in attempts.items()]))


def abort(connection: RawConnection, drop: str) -> int:
    """Drop the stages that begin so; return how many there were."""
    answer = connection.call(ABORT_PREPARED, {"drop": drop}).raise_for_error()
    return int(answer.fields.get("count", 0))


def bodies(connection: RawConnection, topic: str, queues: int = 4) -> list[bytes]:
    """Return all bodies of a topic, queue by queue."""
    return [record.body for record in messages(connection, topic, queues)]
