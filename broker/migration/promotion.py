"""End of a migration: the store of a follower becomes FlintMQ's own."""

from __future__ import annotations

from ...protocol.errors import ConnectionFailed, RequestTimeout
from ..addresses import parse_address
from ..store import MessageStore
from .errors import StillServing
from .follower import check_history
from .log_follower import LogFollower
from .master import read_extent, read_settings, read_tables
from .remoting_client import connected
from .tables import apply_names, apply_progress


async def take_last_tables(store: MessageStore) -> bool:
    """Take the tables of the master that the store follows once more; return whether the master could be reached.

    Raises ``StillServing`` if it has messages that the store lacks, or may still get some, and ``HistoryDiffers`` if it
    has another log.
    """
    host, port = parse_address(store.followed_master.address())
    try:
        async with connected(host, port) as client:
            settings = await read_settings(client)
            tables = await read_tables(client, settings)
            # After the tables: what they count as delivered or consumed is below this end.
            extent = await read_extent(client)
            await check_history(LogFollower(store), client, extent)
            address = client.address
    except (ConnectionFailed, RequestTimeout):
        return False
    if extent.end > store.write_offset:
        raise StillServing(
            f"{address} has {extent.end - store.write_offset:,} bytes of log that {store.path} lacks: run "
            f"`flintmq-broker follow-rocketmq {address}` until it is behind by nothing, or give them up with --force"
        )
    if settings.takes_messages:
        raise StillServing(
            f"{address} still takes messages: stop it, or make it read-only (mqadmin updateBrokerConfig -b {address} "
            "-k brokerPermission -v 4) and follow it to its end; --force ignores it"
        )
    apply_names(store, tables)
    apply_progress(store, tables)
    return True
