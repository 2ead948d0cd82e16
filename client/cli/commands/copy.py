"""The command ``flintmq copy``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from ....protocol.errors import FlintError
from ...message import Message
from ...operator.names import shown_name
from ..command import command, note
from ..params import TOPIC
from ..settings import BrokerChoice
from ..transfer import MessageSelection, Transfer, for_each_sound, say_done, selection_options

if TYPE_CHECKING:
    from ...core.consume.stored import StoredMessage
    from ...core.topics import TopicInfo
    from ...operator.positions import Typed
    from ...sync.admin import Admin


@command("copy")
@selection_options
@click.argument("target", metavar="TO", type=TOPIC)
def copy(
    settings: BrokerChoice,
    topic: str,
    target: str,
    from_: Typed,
    until: Typed,
    key: str | None,
    tag: str | None,
    condition: str | None,
) -> int:
    """Copy the messages of TOPIC to the topic TO.

    The copies keep keys, tags, sharding keys, properties and the order within each queue; they get new ids and times.
    If TO does not exist, it is created with as many queues as TOPIC. TO may be TOPIC itself: the messages that it has
    now are sent again.

    \b
        flintmq copy orders orders-test --from @-1d
        flintmq copy orders orders --key o-1 --from @-1d      # replay one key since yesterday
    """
    selection = MessageSelection(topic, from_, until, key, tag, condition)
    with settings.admin() as admin:
        queues = _target_queues(settings, admin, topic, target)
    with settings.consumer() as consumer, settings.producer() as producer:
        stats = consumer.topic_stats(topic)
        transfer = Transfer(producer, queues, same_queues=queues == len(stats))
        transfer.done = selection.first_offsets(consumer, stats)

        def send(message: StoredMessage) -> None:
            transfer.add(Message.again(message, target), message.queue, message.queue_offset)

        try:
            with contextlib.closing(selection.messages(consumer, stats)) as messages:
                code = for_each_sound(messages, send, condition)
            transfer.flush()
        except FlintError:
            note(settings, f"{transfer.summary('copied')} before that")
            raise
        say_done(settings, transfer, "copied", code)
    return code


def _target_queues(settings: BrokerChoice, admin: Admin, topic: str, target: str) -> int:
    """Return the number of write queues of the target topic, after creating it if it does not exist."""
    topics: dict[str, TopicInfo] = admin.topics(system=True)
    if target not in topics:
        like = len(admin.topic_stats(topic))
        admin.create_topic(target, like)
        note(settings, f"created topic {shown_name(target)} with {like} queues, like {shown_name(topic)}")
        return like
    return topics[target].write_queues
