"""The pytest plug-in: options and fixtures.

pytest imports this module in every run of everyone who has FlintMQ installed: nothing but pytest is imported before a
fixture needs it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..client import Admin, Consumer, Producer
    from .broker_handle import BrokerHandle
    from .started_broker import LocalBroker

OPTION, INI, VARIABLE = "--flintmq-broker", "flintmq_broker", "FLINTMQ_TEST_BROKER"
SHARED_FOLDER = "flintmq-broker"
NAME_CHARS_MAX = 80
"""Maximum length of a test's name in its topic, so that the topic's name is also valid for a group."""
QUEUES = 4
AIO_PLUGINS = ("asyncio", "anyio")
"""Plug-ins that run coroutine fixtures; the first of them that is there runs ours."""


@pytest.hookimpl
def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the setting for a broker that runs already."""
    what = "HOST:PORT of a running broker for the fixtures; by default they start one"
    parser.getgroup("flintmq", "FlintMQ").addoption(OPTION, metavar="HOST:PORT", help=f"{what} [{INI}, {VARIABLE}]")
    parser.addini(INI, what, default="")


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    """Add the fixtures of the asyncio clients if a plug-in can run them."""
    runner = next((name for name in AIO_PLUGINS if config.pluginmanager.hasplugin(name)), None)
    if runner is not None:
        from .aio_fixtures import aio_fixtures

        config.pluginmanager.register(aio_fixtures(runner), "flintmq-aio")


@pytest.hookimpl
def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which broker the fixtures use, or that its first start takes long; nothing if there is nothing to say."""
    if given := given_broker(config):
        return f"flintmq: the fixtures use the broker on {given}"
    if find_spec("numba") is None:
        return None
    from ..protocol.storage.arrays.kernel_caches import cache_folders

    if any(folder.is_dir() for parent in cache_folders() for folder in parent.glob("*/")):
        return None
    return "flintmq: no kernel is compiled yet; the first test that starts a broker waits for it, up to a minute, once"


def given_broker(config: pytest.Config) -> str:
    """Return the address of the broker that the user named: option, variable, setting; empty if none."""
    return str(config.getoption(OPTION) or os.environ.get(VARIABLE) or config.getini(INI)).strip()


# ---- brokers


@pytest.fixture(scope="session")
def flintmq_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    """Return a running broker for all tests of the session: ``.address``, ``.drain(topic)``, ``.dead_letters(group)``,
    ``.wait_for_lag(group)``; without pytest-xdist also ``.stop()``, ``.start()`` and ``.kill()``."""
    from .session_broker import session_broker

    is_worker = hasattr(request.config, "workerinput")
    folder = tmp_path_factory.getbasetemp().parent / SHARED_FOLDER if is_worker else None
    with session_broker(given_broker(request.config), folder) as broker:
        yield broker


@pytest.fixture
def flintmq_broker_factory() -> Iterator[Callable[..., LocalBroker]]:
    """Return ``make(store=None, *options, settings=None)``, which starts a broker for this test alone; see
    ``flintmq.testing.LocalBroker``."""
    from .started_broker import LocalBroker

    with contextlib.ExitStack() as opened:
        yield lambda *arguments, **settings: opened.enter_context(LocalBroker(*arguments, **settings))


# ---- a topic and clients


@pytest.fixture
def flintmq_topic(request: pytest.FixtureRequest, flintmq_broker: BrokerHandle) -> Iterator[str]:
    """Return the name of a new topic with four queues, which is deleted after the test. It is also a name for a group
    that no other test uses."""
    from ..client import Admin, TopicNotExist

    plain = re.sub(r"[^a-zA-Z0-9_-]+", "-", request.node.name).strip("-")[:NAME_CHARS_MAX]
    topic = f"{plain}-{os.urandom(6).hex()}"
    with Admin(flintmq_broker.address) as admin:
        admin.create_topic(topic, QUEUES)
        yield topic
        with contextlib.suppress(TopicNotExist):  # the test may have deleted it
            admin.delete_topic(topic)


@pytest.fixture
def flintmq_producer(flintmq_broker: BrokerHandle) -> Iterator[Producer]:
    """Return a ``Producer`` of the broker."""
    from ..client import Producer

    with Producer(flintmq_broker.address) as producer:
        yield producer


@pytest.fixture
def flintmq_consumer(flintmq_broker: BrokerHandle) -> Iterator[Consumer]:
    """Return a ``Consumer`` of the broker."""
    from ..client import Consumer

    with Consumer(flintmq_broker.address) as consumer:
        yield consumer


@pytest.fixture
def flintmq_admin(flintmq_broker: BrokerHandle) -> Iterator[Admin]:
    """Return an ``Admin`` of the broker."""
    from ..client import Admin

    with Admin(flintmq_broker.address) as admin:
        yield admin
