"""The size of a response while other connections are active."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
from pathlib import Path

import msgpack
import pytest

from flintmq.broker.handlers.pull import SHARED_BYTES_MAX
from flintmq.protocol.commands import PRODUCE, PULL
from flintmq.protocol.errors import SUCCESS
from flintmq.protocol.frames import REQUEST, encode_frame
from tests.native_side import NativeSide

MESSAGE_BYTES = 100_000
MESSAGES = 60


@pytest.mark.parametrize("shared", [False, True])
def test_a_large_pull_gets_less_while_other_connections_are_active(shared: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        side = NativeSide(Path(folder), "async", time.time_ns() // 1_000_000)
        runner.run(side.start(short_way=True))
        fields = {"topic": "orders", "queue": 0, "count": 1}
        body = msgpack.packb((bytes(MESSAGE_BYTES), {}))
        for number in range(MESSAGES):
            runner.run(side.feed([encode_frame(REQUEST, PRODUCE.code, number, fields, body)], number + 1))
        sharing = side.broker.dispatch.sharing
        sharing._changed = math.inf if shared else -math.inf
        offset = pulls = 0
        while offset < MESSAGES:
            pulls += 1
            side.wire.sent.clear()
            asked = {"topic": "orders", "queue": 0, "offset": offset, "max_count": 1000, "max_bytes": 16 << 20}
            runner.run(side.feed([encode_frame(REQUEST, PULL.code, 1, asked)], 1))
            ((_, code, answer, content),) = side.answers()
            assert code == SUCCESS
            assert len(content) <= SHARED_BYTES_MAX + 4 * answer["count"] or not shared
            offset = answer["next_offset"]
        runner.run(side.lifecycle.stop())
    assert pulls == (3 if shared else 1)
