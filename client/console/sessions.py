"""Logins of people, each with broker clients of its own. They exist in memory only."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ...protocol.auth.permissions import Permissions
from ...protocol.errors import AuthenticationFailed
from ...protocol.names import network_of
from ..aio.admin import Admin
from ..aio.consumer import Consumer
from ..aio.producer import Producer
from ..core.rpc.access import AccessOptions
from ..operator.condition import Condition
from .failures import Refused

LIFE_SECONDS = 12 * 3600
IDLE_SECONDS = 30 * 60
SESSIONS_MAX = 1_000
SESSIONS_PER_USER_MAX = 10
BROKER_SECONDS = 3.0
"""Seconds within which the broker must answer a page's request."""
STATUS_SECONDS = 2.0
"""Seconds for which the broker's status in the bar is reused, so that a page has its requests for itself."""


class BrokerClients:
    """The admin client, consumer and producer of one session, each made on first use."""

    def __init__(self, addresses: str, access: AccessOptions) -> None:
        self._addresses = addresses
        self._access = access
        self._admin: Admin | None = None
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._addresses, timeout=BROKER_SECONDS, **self._access)
        return self._admin

    @property
    def consumer(self) -> Consumer:
        """The consumer. It reads; the console never commits for a group except to reset it."""
        if self._consumer is None:
            self._consumer = Consumer(self._addresses, timeout=BROKER_SECONDS, **self._access)
        return self._consumer

    @property
    def producer(self) -> Producer:
        """The producer, for messages that a person sends or replays."""
        if self._producer is None:
            self._producer = Producer(self._addresses, delivery_timeout=BROKER_SECONDS, **self._access)
        return self._producer

    @property
    def terms(self) -> tuple[str, AccessOptions]:
        """Addresses and access for a further client, such as the sync ones of a long job."""
        return self._addresses, self._access

    async def close(self) -> None:
        for client in (self._admin, self._consumer, self._producer):
            if client is not None:
                await client.close()


@dataclass(slots=True)
class ConsoleSession:
    """One login. ``user``: empty if the broker has no users; ``address``: the browser's; ``created``, ``seen``:
    monotonic seconds; ``notices``: messages for the next page, (kind, text) each; ``is_over``: the session has
    ended."""

    id: str
    user: str
    address: str
    clients: BrokerClients
    created: float
    seen: float
    rights: Permissions | None = None
    notices: list[tuple[str, str]] = field(default_factory=list)
    is_over: bool = False
    _status: Condition | None = None
    _status_at: float = 0.0

    async def status(self, now: float) -> Condition:
        """Return the broker's runtime status, at most ``STATUS_SECONDS`` old."""
        if self._status is None or now - self._status_at > STATUS_SECONDS:
            self._status = Condition(await self.clients.admin.status())
            self._status_at = now
        return self._status

    async def permissions(self) -> Permissions | None:
        """Return the rights of the user; None: the broker has no users, so everything is allowed."""
        if self.user and self.rights is None:
            self.rights = Permissions((await self.clients.admin.whoami()).grants)
        return self.rights


class Sessions:
    """All sessions, by id. A session ends 12 hours after the login, 30 minutes after its last page, at logout, or if
    its user or the console has too many newer ones.

    ``open_clients``: makes the broker clients for a user, a password and a browser's address. ``clock``: monotonic
    seconds.
    """

    def __init__(self, open_clients: Callable[[str, str, str], BrokerClients], clock: Callable[[], float]) -> None:
        self._open_clients = open_clients
        self._clock = clock
        self._by_id: dict[str, ConsoleSession] = {}  # in the order of their logins
        self._anonymous: dict[str, ConsoleSession] = {}  # by address
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_id) + len(self._anonymous)

    def find(self, session_id: str) -> ConsoleSession | None:
        """Return the living session with this id, and mark it as seen."""
        session = self._by_id.get(session_id)
        if session is None:
            return None
        now = self._clock()
        if self._is_over(session, now):
            self.end(session)
            return None
        session.seen = now
        return session

    def anonymous(self, address: str) -> ConsoleSession:
        """Return the session of all visitors from an address, for a broker without users."""
        now = self._clock()
        session = self._anonymous.pop(address, None)
        if session is None:
            while len(self._anonymous) >= SESSIONS_MAX:
                self.end(next(iter(self._anonymous.values())))
            session = ConsoleSession("", "", address, self._open_clients("", "", address), now, now)
        # Put at the end: the first of the dict is then the one that was not seen for longest.
        session.seen = now
        self._anonymous[address] = session
        return session

    async def login(self, user: str, password: str, address: str) -> ConsoleSession:
        """Authenticate at the broker and return a new session. Raises the broker's refusal."""
        clients = self._open_clients(user, password, address)
        try:
            rights = Permissions((await clients.admin.whoami()).grants)
        except BaseException:
            await clients.close()
            raise
        own = [session for session in self._by_id.values() if session.user == user]
        # One fewer than the maximum are kept, to make room for the new session.
        for session in own[: max(0, len(own) - SESSIONS_PER_USER_MAX + 1)]:
            self.end(session)
        while len(self._by_id) >= SESSIONS_MAX:
            self.end(next(iter(self._by_id.values())))
        now = self._clock()
        session = ConsoleSession(secrets.token_urlsafe(32), user, address, clients, now, now, rights)
        self._by_id[session.id] = session
        return session

    def of_user(self, user: str) -> list[ConsoleSession]:
        """Return the sessions of a user, the oldest first."""
        return [session for session in self._by_id.values() if session.user == user]

    def ages(self, session: ConsoleSession) -> tuple[float, float]:
        """Return the seconds since a session's login and since its last page."""
        now = self._clock()
        return now - session.created, now - session.seen

    def end(self, session: ConsoleSession) -> None:
        """Forget a session and disconnect its clients."""
        session.is_over = True
        self._by_id.pop(session.id, None)
        if self._anonymous.get(session.address) is session:
            del self._anonymous[session.address]
        # The set keeps the task alive: the loop refers to tasks only weakly.
        closing = asyncio.ensure_future(session.clients.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def sweep(self) -> None:
        """End the sessions that are over, so that their connections to the broker do not stay open."""
        now = self._clock()
        for session in [*self._by_id.values(), *self._anonymous.values()]:
            if self._is_over(session, now):
                self.end(session)

    async def close(self) -> None:
        for session in [*self._by_id.values(), *self._anonymous.values()]:
            self.end(session)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._closing)

    def _is_over(self, session: ConsoleSession, now: float) -> bool:
        is_idle = now - session.seen > IDLE_SECONDS
        return is_idle or (bool(session.id) and now - session.created > LIFE_SECONDS)


# ---- Limit of login attempts.
#
# To the broker everyone who uses the console has the console's address, and its pauses after wrong passwords would
# reach all of them. So the console refuses a guesser itself, before the broker hears of it. As at the broker, an IPv6
# network counts as one address, and one user's wrong passwords keep no other user out.

FREE_FAILURES = 5
"""Number of wrong passwords that a user may send from a network without waiting."""
FREE_NAMES = 5
"""Number of users whose passwords may be wrong from one network without a wait for all others behind it."""
WAIT_SECONDS = 30.0
"""Seconds between further attempts."""
FORGET_SECONDS = 600.0
"""Seconds without a failure after which a network starts again without a wait."""
CONCURRENT_MAX = 4
"""Maximum number of attempts of a network in progress."""
ALL_CONCURRENT_MAX = 100
"""Maximum number of attempts in progress, over all networks."""
NETWORKS_MAX = 10_000
"""Maximum number of networks with failures to remember; the one that failed least recently is forgotten first."""


@dataclass(frozen=True, slots=True)
class _Failures:
    """Failures of one user from a network: their number, and the time of the last one."""

    number: int
    at: float


_NO_FAILURES = _Failures(0, -math.inf)


class LoginAttempts:
    """Failures by network and user. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The network, and in it the user, that failed last is at the end.
        self._failures: dict[str, dict[str, _Failures]] = {}
        self._in_progress: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def attempt(self, address: str, user: str) -> Iterator[None]:
        """Judge the attempt that the block makes. Raises ``Refused`` if it must wait.

        Another attempt of the same network and user counts as failed until it is over, so many at once gain nothing.
        """
        network = network_of(address)
        others = self._in_progress.get(network, Counter())
        in_all = sum(each.total() for each in self._in_progress.values())
        if in_all >= ALL_CONCURRENT_MAX or others.total() >= CONCURRENT_MAX:
            raise Refused(429, "too many logins at the same time; try again in a second")
        if (seconds := self._seconds_to_wait(network, user, others)) > 0:
            raise Refused(429, f"too many failed logins from {address}; try again in {max(1.0, seconds):.0f} s")
        others[user] += 1
        self._in_progress[network] = others
        try:
            yield
        except AuthenticationFailed:
            self._failed(network, user)
            raise
        finally:
            others[user] -= 1
            if not others.total():
                del self._in_progress[network]
        self._succeeded(network, user)

    def _seconds_to_wait(self, network: str, user: str, others: Counter[str]) -> float:
        """Return the seconds for which an attempt must wait, beside others in progress; 0: none."""
        now = self._clock()
        failures = self._of(network, now)
        own = failures.get(user, _NO_FAILURES)
        seconds = 0.0
        if own.number + others[user] >= FREE_FAILURES:
            seconds = max(float(others[user]), own.at + WAIT_SECONDS - now)
        if len(failures.keys() | (+others).keys()) >= FREE_NAMES:
            last = max((each.at for each in failures.values()), default=-math.inf)
            seconds = max(seconds, float(others.total()), last + WAIT_SECONDS - now)
        return seconds

    def _of(self, network: str, now: float) -> dict[str, _Failures]:
        """Return the failures of a network by user, without those that are forgotten by now."""
        found = self._failures.get(network, {})
        return {user: failures for user, failures in found.items() if now - failures.at <= FORGET_SECONDS}

    def _failed(self, network: str, user: str) -> None:
        now = self._clock()
        failures = self._of(network, now)
        earlier = failures.pop(user, _NO_FAILURES)
        if len(failures) >= FREE_NAMES:  # names take memory; so many make the whole network wait already
            del failures[next(iter(failures))]
        failures[user] = _Failures(earlier.number + 1, now)
        self._failures.pop(network, None)
        if len(self._failures) >= NETWORKS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[network] = failures

    def _succeeded(self, network: str, user: str) -> None:
        """Forget the failures of this user from there: who has one password does not guess others faster."""
        failures = self._failures.get(network, {})
        failures.pop(user, None)
        if not failures:
            self._failures.pop(network, None)
