"""A member's small files on a full disk."""

from __future__ import annotations

import errno

import pytest

from flintmq.broker.replication.member.replica_member import write_when_room


class FullDisk:
    """A disk that refuses some writes with an error number."""

    def __init__(self, *refusals: int) -> None:
        self._refusals = list(refusals)
        self.written = 0

    def write(self) -> None:
        if self._refusals:
            raise OSError(self._refusals.pop(), "refused")
        self.written += 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_follower_writes_as_soon_as_there_is_room(number: int) -> None:
    disk = FullDisk(number, number)
    await write_when_room(disk.write, lambda: True, pause_s=0)
    assert disk.written == 1


@pytest.mark.parametrize(("number", "waits"), [(errno.EIO, True), (errno.ENOSPC, False)])
async def test_another_error_and_a_member_that_must_not_wait_fail_at_once(number: int, waits: bool) -> None:
    disk = FullDisk(number)
    with pytest.raises(OSError, match="refused") as raised:
        await write_when_room(disk.write, lambda: waits, pause_s=0)
    assert raised.value.errno == number
    assert disk.written == 0
