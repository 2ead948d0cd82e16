"""The clients of both drivers under the same names, so that one test class runs against either.

The sync clients are used directly. An asyncio client runs on a loop in a thread, and each call waits for its coroutine:
the tests exercise the client, not the few lines here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from flintmq.client import Admin, Consumer, Delivery, GroupConsumer, Producer, PushConsumer, Receipt, StoredMessage, aio


@dataclass(frozen=True)
class Clients:
    """Clients of one driver. ``name``: "sync" or "aio"."""

    name: str
    Producer: type[Producer]
    Consumer: type[Consumer]
    Admin: type[Admin]
    PushConsumer: type[PushConsumer]
    GroupConsumer: type[GroupConsumer]


SYNC = Clients("sync", Producer, Consumer, Admin, PushConsumer, GroupConsumer)


@contextlib.contextmanager
def aio_clients() -> Iterator[Clients]:
    """Yield the asyncio clients on a loop of their own, and check at the end that nothing is left in it."""
    loop = asyncio.new_event_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    thread = threading.Thread(target=loop.run_forever, name="loop of the tests")
    thread.start()

    def facade(kind: type) -> Any:
        return type(kind.__name__, (Facade,), {"loop": loop, "kind": kind})

    try:
        push = type("PushConsumer", (PushFacade,), {"loop": loop, "kind": aio.PushConsumer})
        receiver = type("GroupConsumer", (ReceiverFacade,), {"loop": loop, "kind": aio.GroupConsumer})
        yield Clients(
            "aio", facade(aio.Producer), facade(aio.Consumer), facade(aio.Admin), cast(Any, push), cast(Any, receiver)
        )
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        left = asyncio.run_coroutine_threadsafe(_other_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    assert left == []
    assert complaints == []


async def _other_tasks() -> list[str]:
    await asyncio.sleep(0)
    return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Facade:
    """An asyncio client under the sync names. ``aio_clients`` makes a subclass for each kind."""

    loop: asyncio.AbstractEventLoop
    kind: type

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = self.kind(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if name.startswith("_") or not callable(attribute):
            return attribute
        return lambda *arguments, **options: self._run(attribute, *arguments, **options)

    def __enter__(self) -> Facade:
        self._run(self._client.__aenter__)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._run(self._client.__aexit__, *raised)

    def _run(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return the result of the call, awaited if it is a coroutine. An interrupt cancels the coroutine."""

        async def run() -> Any:
            result = call(*arguments, **options)
            return await result if asyncio.iscoroutine(result) else result

        future = asyncio.run_coroutine_threadsafe(run(), self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def send_async(self, *arguments: Any, **options: Any) -> ThreadedSendFuture:
        """Return a future for threads."""
        return cast(
            ThreadedSendFuture, self._run(lambda: ThreadedSendFuture(self._client.send_async(*arguments, **options)))
        )

    def iter(self, *arguments: Any, **options: Any) -> Iterator[StoredMessage]:
        """Iterate over the messages, which a task prefetches."""
        return self._drain(self._run(lambda: self._client.iter(*arguments, **options)))

    def query_iter(self, *arguments: Any, **options: Any) -> Iterator[StoredMessage]:
        """Iterate over the messages, which a task prefetches."""
        return self._drain(self._run(lambda: self._client.query_iter(*arguments, **options)))

    def _drain(self, messages: Any) -> Iterator[StoredMessage]:
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ended = threading.Event()

        async def pump() -> None:
            try:
                async with contextlib.aclosing(messages):
                    async for message in messages:
                        arrived.put(message)
                arrived.put(StopIteration())
            except Exception as error:  # noqa: BLE001 - raised again by the iterator
                arrived.put(error)
            finally:
                ended.set()

        pumping = asyncio.run_coroutine_threadsafe(pump(), self.loop)
        try:
            while not isinstance(message := arrived.get(), Exception):
                yield message
            if not isinstance(message, StopIteration):
                raise message
        finally:
            if not self.loop.is_closed():  # otherwise the caller left the iteration, and it ended with its client
                self.loop.call_soon_threadsafe(pumping.cancel)
                ended.wait()


class PushFacade(Facade):
    """An asyncio push consumer with a listener that may block: it is called in a thread of its own."""

    def __init__(self, addresses: str, group: str, topics: Any, listener: Callable[[Any], Any], **options: Any) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(64)

        async def listen(handed: Any) -> Any:
            return await asyncio.wrap_future(self._threads.submit(listener, handed))

        super().__init__(addresses, group, topics, listen, **options)

    def start(self) -> PushFacade:
        """Start the consumer."""
        self._run(self._client.start)
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            super().__exit__(*raised)
        finally:
            self._threads.shutdown(wait=False)


class ReceiverFacade(Facade):
    """An asyncio group consumer; deliveries are settled from the threads of the tests."""

    def start(self) -> ReceiverFacade:
        """Start the consumer."""
        self._run(self._client.start)
        return self

    def __iter__(self) -> Iterator[Delivery]:
        return cast(Iterator[Delivery], self._drain(self._client.__aiter__()))


class ThreadedSendFuture(concurrent.futures.Future[Receipt]):
    """A ``SendFuture`` used from a thread."""

    def __init__(self, future: aio.SendFuture) -> None:
        super().__init__()
        self._future = future
        future.add_done_callback(self._complete)

    def _complete(self, future: asyncio.Future[Receipt]) -> None:
        error = asyncio.Future.exception(future)  # without retrieving it
        if error is None:
            self.set_result(asyncio.Future.result(future))
        else:
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> Receipt:
        """Wait for the receipt, as ``SendFuture.result`` does."""
        super().exception(timeout)
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the error, as ``SendFuture.exception`` does."""
        super().exception(timeout)
        return self._future.exception()
