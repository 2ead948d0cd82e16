"""The command ``flintmq export``."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from ....protocol.display import to_json
from ...operator.names import shown_name
from ...operator.units import plural, show_seconds
from ..command import command, note
from ..messages import message_row
from ..settings import BrokerChoice
from ..transfer import MessageSelection, for_each_sound, selection_options

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...operator.positions import Typed


@command("export")
@selection_options
def export(
    settings: BrokerChoice,
    topic: str,
    from_: Typed,
    until: Typed,
    key: str | None,
    tag: str | None,
    condition: str | None,
) -> int:
    """Print the messages of TOPIC as JSON lines, in the form that flintmq import reads.

    Each line has the same names as -o json in other commands; a body that is not UTF-8 is in body_base64. The messages
    of each queue are in order.

    \b
        flintmq export orders > orders.jsonl
        flintmq export orders --from @-1d --filter "amount > 5" | flintmq -b other:10911 import orders
    """
    selection = MessageSelection(topic, from_, until, key, tag, condition)
    began, count = time.monotonic(), 0
    with settings.consumer() as consumer:

        def show(message: StoredMessage) -> None:
            nonlocal count
            settings.output.write_bytes((to_json(message_row(message)) + "\n").encode())
            count += 1

        with contextlib.closing(selection.messages(consumer, consumer.topic_stats(topic))) as messages:
            code = for_each_sound(messages, show, condition)
    settings.output.flush()
    took = show_seconds(time.monotonic() - began)
    note(settings, f"exported {plural(count, 'message')} from {shown_name(topic)} in {took}")
    return code
