"""Valid listeners of push consumers, and the arguments of push consumers."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest

from flintmq.client import Batch, InvalidArgument, PushConsumer, StoredMessage, TransactionProducer, aio
from flintmq.client.core.rpc.access import AccessOptions
from flintmq.client.groups.push.options import Options, PushOptions, ReceiveOptions


def plain(message: StoredMessage) -> None:
    """Handle a message."""


def plain_batch(batch: Batch) -> None:
    """Handle a batch."""


async def coroutine(message: StoredMessage) -> None:
    """Handle a message."""


async def coroutine_batch(batch: Batch) -> None:
    """Handle a batch."""


async def two(database: object, message: StoredMessage) -> None:
    """Handle a message."""


def generator(message: StoredMessage) -> Iterator[None]:
    yield


async def async_generator(message: StoredMessage) -> AsyncIterator[None]:
    yield


class Handler:
    """An object whose method and ``__call__`` are coroutine functions."""

    async def handle(self, message: StoredMessage) -> None:
        """Handle a message."""

    async def __call__(self, message: StoredMessage) -> None:
        """Handle a message."""


COROUTINES: list[Callable[..., Any]] = [
    coroutine,
    Handler().handle,
    Handler(),
    functools.partial(two, None),
    functools.partial(Handler()),
    functools.partial(functools.partial(two), None),
]


@pytest.mark.parametrize("listener", COROUTINES)
def test_a_coroutine_function_is_refused_by_a_consumer_that_would_not_await_it(listener: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"coroutine function.*flintmq\.client\.aio\.PushConsumer"):
        PushConsumer(group="g", topics="t", listener=listener)
    with pytest.raises(InvalidArgument, match="coroutine function"):
        PushConsumer(group="g", topics="t", listener=listener, batch=10)
    aio.PushConsumer(group="g", topics="t", listener=listener)


@pytest.mark.parametrize("kind", [PushConsumer, aio.PushConsumer])
@pytest.mark.parametrize("listener", [generator, async_generator, functools.partial(generator)])
def test_a_generator_function_is_refused(kind: type[Any], listener: Any) -> None:
    with pytest.raises(InvalidArgument, match="generator function"):
        kind(group="g", topics="t", listener=listener)


def test_type_checkers_know_which_listener_is_valid() -> None:
    """If mypy no longer reports one of these errors, its unused ``type: ignore`` becomes an error."""
    PushConsumer("127.0.0.1:1", "g", "t", plain, start="first", mode="clustering", user="u", password="p")
    PushConsumer(group="g", topics="t", listener=plain_batch, batch=10)
    aio.PushConsumer("127.0.0.1:1", "g", "t", plain)
    aio.PushConsumer("127.0.0.1:1", "g", "t", coroutine)
    aio.PushConsumer(group="g", topics="t", listener=plain_batch, batch=10)
    aio.PushConsumer(group="g", topics="t", listener=coroutine_batch, batch=10)
    with pytest.raises(InvalidArgument):
        PushConsumer(group="g", topics="t", listener=coroutine)  # type: ignore[arg-type]  # the wrong argument is the test
    with pytest.raises(InvalidArgument):
        PushConsumer(group="g", topics="t", listener=plain, start="middle")  # type: ignore[call-overload]  # the wrong argument is the test
    with pytest.raises(InvalidArgument):
        PushConsumer(group="g", topics="t", listener=plain, mode="both")  # type: ignore[call-overload]  # the wrong argument is the test
    with pytest.raises(InvalidArgument):
        PushConsumer(topics="t", listener=plain)  # type: ignore[call-overload]  # the wrong argument is the test
    with pytest.raises(InvalidArgument):
        PushConsumer(group="g", listener=plain)  # type: ignore[call-overload]  # the wrong argument is the test
    with pytest.raises(InvalidArgument):
        PushConsumer(group="g", topics="t")  # type: ignore[call-overload]  # the wrong argument is the test
    PushConsumer(group="g", topics="t", listener=plain_batch)  # type: ignore[arg-type]  # the wrong argument is the test
    PushConsumer(group="g", topics="t", listener=plain, batch=10)  # type: ignore[arg-type]  # the wrong argument is the test
    aio.PushConsumer(group="g", topics="t", listener=coroutine, batch=10)  # type: ignore[arg-type]  # the wrong argument is the test


@pytest.mark.parametrize("keywords", [PushOptions, ReceiveOptions])
def test_every_option_that_can_be_passed_is_checked(keywords: type) -> None:
    passed = keywords.__annotations__.keys() - AccessOptions.__annotations__.keys()
    assert passed <= {each.name for each in fields(Options)}


@pytest.mark.parametrize("check", COROUTINES)
def test_a_coroutine_function_is_refused_as_the_check_of_a_producer_that_would_not_await_it(check: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"coroutine function.*flintmq\.client\.aio\.TransactionProducer"):
        TransactionProducer(group="g", check=check)
    aio.TransactionProducer(group="g", check=check)


@pytest.mark.parametrize("kind", [TransactionProducer, aio.TransactionProducer])
def test_a_generator_function_is_refused_as_a_check(kind: type[Any]) -> None:
    with pytest.raises(InvalidArgument, match="generator function"):
        kind(group="g", check=generator)
