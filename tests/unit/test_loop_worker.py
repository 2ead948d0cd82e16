"""A job of the event loop survives what passes."""

from __future__ import annotations

import asyncio

import pytest

from flintmq.broker.background.loop_work import LoopWorker, wall_ms
from flintmq.protocol.errors import BrokerError, NotEnoughReplicas, NotPrimary, ServiceNotAvailable


class RefusedOnce:
    """A job whose first step is refused, as an append to the store may be."""

    def __init__(self, refusal: BrokerError) -> None:
        self._refusals = [refusal]
        self.refused, self.done = asyncio.Event(), asyncio.Event()

    async def step(self, now_ms: int) -> bool:
        if self._refusals:
            self.refused.set()
            raise self._refusals.pop()
        self.done.set()
        return False

    def next_due_ms(self) -> int | None:
        return None

    def backlog(self) -> int:
        return 1


@pytest.mark.parametrize("refusal", [ServiceNotAvailable, NotEnoughReplicas, NotPrimary])
async def test_a_refused_step_is_tried_again_and_does_not_end_the_broker(refusal: type[BrokerError]) -> None:
    ends: list[BaseException] = []
    job = RefusedOnce(refusal("not now"))
    worker = LoopWorker("a job", job, asyncio.get_running_loop(), wall_ms, lambda part, error: ends.append(error))
    worker.start()
    await job.refused.wait()
    worker.wake()
    if not ends:
        await job.done.wait()
    await worker.stop()
    assert ends == []
