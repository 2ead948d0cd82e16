"""Sends the rows of Arrow data: piece by piece, each with as few calls of the producer as its order allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...protocol.errors import FlintError
from ..arrow.errors import RowsNotSent
from ..arrow.requirements import check_arrow
from ..errors import DeliveryFailed
from ..message import check_topic

if TYPE_CHECKING:
    from .producer import Producer


class ArrowData(Protocol):
    """A data frame, table or stream with the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


def send_rows(
    producer: Producer, topic: str, data: ArrowData, named: Mapping[str, str | None], properties: Sequence[str]
) -> int:
    """Do the work of ``Producer.send_arrow``. ``named``: the column of each part of a message, None without one."""
    check_arrow("Producer.send_arrow")
    from ..arrow.row_sends import sends
    from ..arrow.table_rows import TableRows

    check_topic(topic)
    done = 0
    for first, rows in TableRows(data, topic, named, properties):
        failed: dict[int, FlintError] = {}
        for send in sends(rows):
            try:
                send.run(producer, None)
            except DeliveryFailed as failure:
                numbers = send.rows.tolist()
                failed |= {first + numbers[index]: error for index, error in failure.errors.items()}
                break
            finally:
                done += len(send.rows)
        if failed:
            raise RowsNotSent(failed, done - len(failed))
    return done
