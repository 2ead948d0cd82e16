"""``read_store``: the messages of one topic in a store's files, or in an archive, as an Arrow stream."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TypedDict, Unpack, get_args

import pyarrow as pa

from ....protocol.storage.archive.objects import is_archive
from ....protocol.storage.reader.log_reader import find_end
from ...core.times import to_millis
from ...errors import InvalidArgument
from ..bounds import Bounds
from ..decoder import Decoder, chosen
from ..options import OnLoss
from ..stream import ArrowStream, Losses
from .archived import archived_batches, check_archived_topics, open_archive, plan_archive
from .find_log import check_topics, find_log
from .options import StoreReadOptions
from .partition_reader import PartitionReader
from .plan import plan


class StoreOptions(TypedDict, total=False):
    """Options of a read of a store's files; all may be left out.

    ``since``, ``until``: aware datetimes that limit the store time, the second one excluded. ``columns``: names, in the
    order wanted. ``on_loss``: ``"raise"`` (default) fails at damage of the log; ``"report"`` reads what is sound, logs
    the damage, and lists it in the stream's ``losses``.
    """

    since: datetime | None
    until: datetime | None
    columns: Iterable[str] | None
    on_loss: OnLoss


def read_store(path: str | os.PathLike[str], topic: str, **options: Unpack[StoreOptions]) -> ArrowStream:
    """Return the messages of a topic in the files of a store, in the order of the log. Nothing is written, and a broker
    may have the store open.

    ``path``: the store's folder, FlintMQ's or Apache RocketMQ's, or its commitlog folder alone; or an archive, by its
    URL (``s3://BUCKET/PREFIX``, ``gs://…``, ``az://…``) or folder, for which the extra ``archive`` is needed. A store's
    log is read up to what its checkpoint says is on disk when a read begins, an archive's up to its end then. Raises
    ``InvalidOption`` if there is no store or no such topic, ``NoArchive`` and ``ObjectError`` for an archive; a read
    raises ``CorruptLog`` or ``CorruptObject`` for damage, unless ``on_loss`` is ``"report"``.
    """
    return bounded_stream(path, topic, options, Bounds())


def bounded_stream(path: str | os.PathLike[str], topic: str, options: StoreOptions, bounds: Bounds) -> ArrowStream:
    """Return what ``read_store`` does, narrowed to the topics and store times of ``bounds``."""
    decoder = Decoder(chosen(options.get("columns")))
    on_loss = options.get("on_loss", "raise")
    if on_loss not in get_args(OnLoss):
        raise InvalidArgument(f"on_loss is {on_loss!r}; it must be 'raise' or 'report'")
    since, until = options.get("since"), options.get("until")
    asked = StoreReadOptions(
        os.fspath(path),
        topics=(topic,),
        starting_ms=max((ms for ms in (_millis("since", since), bounds.since_ms) if ms is not None), default=None),
        ending_ms=min((ms for ms in (_millis("until", until), bounds.until_ms) if ms is not None), default=None),
        fail_on_corruption=on_loss == "raise",
    )
    if is_archive(asked.path):
        with open_archive(asked.path) as reader:
            check_archived_topics((topic,), reader)
    else:
        check_topics((topic,), find_log(asked.path, asked.on_damage))

    def read(losses: Losses) -> Iterator[pa.RecordBatch]:
        if bounds.wants_topic(topic):
            yield from _batches(asked, decoder, losses)

    return ArrowStream(decoder.schema, read)


def _batches(asked: StoreReadOptions, decoder: Decoder, losses: Losses) -> Iterator[pa.RecordBatch]:
    if is_archive(asked.path):
        with open_archive(asked.path) as reader:
            for entries in plan_archive(reader, asked):
                yield from archived_batches(reader, entries, decoder, asked, losses.add)
        return
    log = find_end(find_log(asked.path, asked.on_damage), asked.on_damage)
    for stretches in plan(log, asked):
        yield from PartitionReader(stretches, decoder, asked, losses.add).batches()


def _millis(what: str, moment: datetime | None) -> int | None:
    return None if moment is None else to_millis(what, moment)
