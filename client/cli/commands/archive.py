"""The commands ``flintmq archive``: they read an archive in a bucket or a folder, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from ....protocol.commands import ArchiveStatus
from ....protocol.display import show_bytes
from ....protocol.errors import MessageNotFound
from ....protocol.storage.archive.objects import ArchiveExtraMissing, Objects
from ....protocol.storage.record import parse_offset_id
from ...core.consume.batch import StoredMessage
from ...core.times import to_millis
from ...operator.display import plural, shown_name
from ..command import CliGroup, note, pass_settings
from ..failures import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_OK
from ..messages import MessageStyle, format_options, show_messages
from ..output import TableColumn, columns_of, values_of
from ..params import COUNT, TIME, TOPIC
from ..settings import BrokerChoice

if TYPE_CHECKING:
    from ....protocol.storage.archive.reader import ArchiveReader

TOPICS_MAX = 64
"""Maximum number of topics that a query without ``--topic`` searches: each costs requests of its own."""


@click.group(cls=CliGroup)
def archive() -> None:
    """Search and check an archive, in a bucket or a folder, without a broker; show how far a broker's is."""


def _open(url: str) -> ArchiveReader:
    try:
        from ....protocol.storage.archive.reader import ArchiveReader
    except ImportError as error:
        raise ArchiveExtraMissing(
            f"reading an archive needs {error.name}, which is not installed: pip install 'flintmq[archive]'"
        ) from None
    return ArchiveReader(Objects(url))


_URL = click.argument("url")


@archive.command("query")
@pass_settings
@_URL
@click.option("--key", help="Only messages with this key, or with this unique key as their id.")
@click.option("--id", "message_id", help="The message with this offset id.")
@click.option("--topic", type=TOPIC, help=f"Topic to search.  [default: all, if there are at most {TOPICS_MAX}]")
@click.option("-n", "--count", type=COUNT, help="Maximum number of messages.  [default: all]")
@click.option("--since", type=TIME, metavar="TIME", help="Only messages stored at this time or later.")
@click.option("--until", type=TIME, metavar="TIME", help="Only messages stored at this time or earlier.")
@format_options
def query(
    settings: BrokerChoice,
    url: str,
    key: str | None,
    message_id: str | None,
    topic: str | None,
    count: int | None,
    since: datetime | None,
    until: datetime | None,
    style: MessageStyle,
) -> int:
    """Show the messages of an archive that have a key, newest first, or the one with an id.

    URL is s3://BUCKET/PREFIX, gs://…, az://… or a folder. Credentials come from the environment.
    """
    if (key is None) == (message_id is None):
        raise click.UsageError("pass either --key or --id", click.get_current_context())
    if since is not None and until is not None and since > until:
        raise click.UsageError("--since is after --until", click.get_current_context())
    with _open(url) as reader:
        if message_id is not None:
            found: Iterator[StoredMessage] = iter([_by_id(reader, message_id)])
        else:
            assert key is not None
            since_ms = None if since is None else to_millis("since", since)
            until_ms = None if until is None else to_millis("until", until + timedelta(milliseconds=1))
            found = _by_key(reader, _topics(reader, topic), key, since_ms, until_ms)
        messages = list(_taken(found, count))
        code = show_messages(settings, messages, style.printer(settings))
    if not messages:
        of_topic = f"topic {shown_name(topic)} of the archive" if topic else "the archive"
        note(settings, f"{of_topic} has no such message with the key {key}")
        return EXIT_NOT_FOUND
    return code


def _taken(messages: Iterator[StoredMessage], count: int | None) -> Iterator[StoredMessage]:
    for number, message in enumerate(messages, 1):
        yield message
        if number == count:
            return


def _by_id(reader: ArchiveReader, message_id: str) -> StoredMessage:
    parsed = parse_offset_id(message_id)
    if parsed is None:
        raise MessageNotFound(
            f"{message_id!r} is not an offset id; expected 32 or 56 hexadecimal digits. To search by a key or a "
            "unique id, use --key"
        )
    record = reader.record_at(parsed[1])
    if record is None:
        raise MessageNotFound(f"the archive has no message at physical offset {parsed[1]:,} any more, or not yet")
    return _message(record)


def _topics(reader: ArchiveReader, topic: str | None) -> list[str]:
    if topic is not None:
        return [topic]
    known = dict.fromkeys(reader.manifest.topics)
    for group in reader.manifest.groups:
        known.update(dict.fromkeys(reader.group(group)[1]))
    if len(known) > TOPICS_MAX:
        raise click.UsageError(f"the archive has {len(known)} topics: pass --topic", click.get_current_context())
    return list(known)


def _by_key(
    reader: ArchiveReader, topics: list[str], key: str, since_ms: int | None, until_ms: int | None
) -> Iterator[StoredMessage]:
    """Yield the messages with a key, newest first."""
    if len(topics) == 1:
        yield from map(_message, reader.find_key(topics[0], key, since_ms=since_ms, until_ms=until_ms))
        return
    found = [
        _message(record)
        for topic in topics
        for record in reader.find_key(topic, key, since_ms=since_ms, until_ms=until_ms)
    ]
    yield from sorted(found, key=lambda message: message.physical_offset, reverse=True)


def _message(record: bytes) -> StoredMessage:
    return StoredMessage(len(record), 0, record, "")


_FLAW_COLUMNS = (TableColumn("name", "OBJECT", fold=True), TableColumn("reason", "WHAT IS WRONG", fold=True))


@archive.command("verify")
@pass_settings
@_URL
def verify(settings: BrokerChoice, url: str) -> int:
    """Read the whole archive, and name each object that is damaged or missing.

    The exit code is 1 if there is any.
    """
    with _open(url) as reader:
        from ....protocol.storage.archive.verify import VerifiedArchive
        from ....protocol.storage.archive.verify import verify as verify_archive

        done = VerifiedArchive()
        flaws = list(verify_archive(reader, done))
    settings.output.rows(_FLAW_COLUMNS, flaws, empty="every object is sound")
    note(
        settings,
        f"read {plural(done.fragments, 'sound fragment')} with {plural(done.records, 'record')} and "
        f"{show_bytes(done.raw_bytes)} of the log, from {show_bytes(done.stored_bytes)}; the manifest does not name "
        f"{plural(done.unlisted, 'object')}",
    )
    return EXIT_ERROR if flaws else EXIT_OK


_STATUS_COLUMNS = columns_of(
    ArchiveStatus,
    "url state reason archived_at oldest_age_seconds behind_bytes messages raw_bytes stored_bytes fragments requests "
    "failures start_offset archived_offset version gaps",
    {"gaps": lambda each: list(map(asdict, each.gaps))},
    gaps=lambda gaps: f"{plural(len(gaps), 'gap')}, {show_bytes(sum(gap['end'] - gap['start'] for gap in gaps))}",
)


@archive.command("status")
@pass_settings
def status(settings: BrokerChoice) -> int:
    """Show the archive that the broker writes: where it is, how far, and what is wrong with it.

    The exit code is 1 if it is unavailable or stopped.
    """
    with settings.admin() as admin:
        found = admin.archive()
    settings.output.record(_STATUS_COLUMNS, values_of(_STATUS_COLUMNS, found))
    if not found.url:
        note(settings, "this broker writes no archive: set archive.url")
    return EXIT_ERROR if found.state in ("unavailable", "stopped") else EXIT_OK
