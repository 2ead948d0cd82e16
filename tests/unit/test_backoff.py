"""Pauses after failed authentications: their length, whom they affect, and that no client can get around them.

The tests set the clock.
"""

from __future__ import annotations

import gc
import hashlib
import heapq
import hmac
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from flintmq.broker.security import backoff as backoff_module
from flintmq.broker.security.backoff import (
    FORGET_S,
    FREE_NAMES,
    NAMES_MAX,
    PAUSE_S_MAX,
    WAIT_S_MAX,
    LoginBackoff,
    pause_after,
)
from flintmq.broker.security.users import WRONG, Authenticator, UserTable
from flintmq.protocol.auth.scram import ClientExchange
from flintmq.protocol.errors import AuthenticationFailed, SystemBusy
from flintmq.protocol.names import network_of
from tests.security_tools import PASSWORD, set_user

HOST = "192.0.2.7"
NAME = "billing"


class Handle:
    """A scheduled call."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the call."""
        self.cancelled = True


class Loop:
    """A clock that the test advances; it runs the calls that are due."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Handle, Callable[[str], None], str]] = []

    def time(self) -> float:
        """Return the time in seconds."""
        return self.now

    def call_at(self, when: float, call: Callable[[str], None], argument: str) -> Handle:
        """Schedule ``call`` for the time ``when``."""
        handle = Handle()
        heapq.heappush(self._due, (when, next(self._numbers), handle, call, argument))
        return handle

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and run the calls that are due."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            when, _, handle, call, argument = heapq.heappop(self._due)
            self.now = max(self.now, when)
            if not handle.cancelled:
                call(argument)
        self.now = end


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def backoff(loop: Loop) -> LoginBackoff:
    return LoginBackoff(loop.time, loop.call_at)


def test_pauses_double_up_to_a_bound(backoff: LoginBackoff) -> None:
    pauses = [backoff.record_failure(HOST, NAME) for _ in range(100)]
    assert pauses[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.0])
    assert set(pauses[5:]) == {PAUSE_S_MAX}
    assert pause_after(10**9) == PAUSE_S_MAX


def test_a_client_that_never_failed_does_not_wait(backoff: LoginBackoff) -> None:
    assert not backoff.must_wait(HOST, NAME)
    backoff.record_failure(HOST, NAME)
    assert backoff.must_wait(HOST, NAME)
    assert not backoff.must_wait("192.0.2.8", NAME)


def test_the_pause_ends(backoff: LoginBackoff, loop: Loop) -> None:
    backoff.record_failure(HOST, NAME)
    loop.pass_time(0.11)
    assert not backoff.must_wait(HOST, NAME)


def test_concurrent_attempts_are_judged_one_after_the_other(backoff: LoginBackoff, loop: Loop) -> None:
    for _ in range(3):
        backoff.record_failure(HOST, NAME)
    judged: list[float] = []

    def judge() -> None:
        judged.append(loop.now - 1000.0)
        backoff.record_failure(HOST, NAME)

    for _ in range(3):
        backoff.wait(HOST, NAME, judge)
    loop.pass_time(60)
    assert judged == pytest.approx([0.4, 0.4 + 0.8, 0.4 + 0.8 + 1.6])


def test_one_right_password_admits_all_waiting_attempts(backoff: LoginBackoff, loop: Loop) -> None:
    for _ in range(3):
        backoff.record_failure(HOST, NAME)
    judged: list[str] = []

    def right(name: str) -> Callable[[], None]:
        def judge() -> None:
            judged.append(name)
            backoff.record_success(HOST, NAME)

        return judge

    for name in "abc":
        backoff.wait(HOST, NAME, right(name))
    loop.pass_time(0.39)
    assert judged == []
    loop.pass_time(0.02)
    assert judged == ["a", "b", "c"]
    assert len(backoff) == 0
    assert not backoff.must_wait(HOST, NAME)


def test_one_wrong_password_makes_the_others_wait_again(backoff: LoginBackoff, loop: Loop) -> None:
    for _ in range(3):
        backoff.record_failure(HOST, NAME)
    judged: list[str] = []

    def right() -> None:
        judged.append("right")
        backoff.record_success(HOST, NAME)

    def wrong() -> None:
        judged.append("wrong")
        backoff.record_failure(HOST, NAME)

    backoff.wait(HOST, NAME, right)
    backoff.wait(HOST, NAME, wrong)
    backoff.wait(HOST, NAME, lambda: judged.append("last"))
    loop.pass_time(0.41)
    assert judged == ["right", "wrong"]
    loop.pass_time(0.1)
    assert judged == ["right", "wrong", "last"]


def test_a_client_that_would_wait_too_long_gets_the_time_to_wait(backoff: LoginBackoff) -> None:
    for _ in range(6):
        backoff.record_failure(HOST, NAME)
    backoff.wait(HOST, NAME, lambda: None)
    with pytest.raises(SystemBusy, match=r"have failed \(6 as this user, 1 users in all\), and 1 wait") as raised:
        backoff.wait(HOST, NAME, lambda: None)
    assert raised.value.retry_after_ms > WAIT_S_MAX * 1000


def test_a_withdrawn_attempt_costs_no_one_time(backoff: LoginBackoff, loop: Loop) -> None:
    backoff.record_failure(HOST, NAME)
    judged: list[str] = []
    take_back = backoff.wait(HOST, NAME, lambda: judged.append("gone"))
    backoff.wait(HOST, NAME, lambda: judged.append("stays"))
    take_back()
    take_back()
    loop.pass_time(0.11)
    assert judged == ["stays"]


def test_failures_are_forgotten_after_a_while(backoff: LoginBackoff, loop: Loop) -> None:
    for _ in range(10):
        backoff.record_failure(HOST, NAME)
    loop.pass_time(FORGET_S + 10)
    assert backoff.record_failure(HOST, NAME) == pytest.approx(0.1)


def test_one_users_failures_delay_no_one_else_behind_the_address(backoff: LoginBackoff, loop: Loop) -> None:
    judged: list[str] = []
    for _ in range(10):
        backoff.record_failure(HOST, NAME)
    backoff.wait(HOST, NAME, lambda: judged.append(NAME))
    assert not backoff.must_wait(HOST, "shop")
    backoff.record_failure(HOST, "shop")
    backoff.wait(HOST, "shop", lambda: judged.append("shop"))
    loop.pass_time(10)
    assert judged == ["shop", NAME]


def test_a_password_of_ones_own_makes_guesses_of_others_no_faster(backoff: LoginBackoff) -> None:
    pauses = []
    for _ in range(7):
        pauses.append(backoff.record_failure(HOST, NAME))
        backoff.record_success(HOST, "guesser")
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0])
    assert backoff.must_wait(HOST, NAME)


@pytest.mark.parametrize("names", [1, 2, FREE_NAMES, FREE_NAMES + 1, 6, 7, NAMES_MAX, 30, 10**6])
def test_guesses_with_any_number_of_names_stay_slow(backoff: LoginBackoff, loop: Loop, names: int) -> None:
    """The guesser takes its names in turns, and always has one whose turn it is, if there is any."""
    guesses = 0
    loop.pass_time(1)
    end = loop.now + 180
    turn = 0
    while loop.now < end:
        for _ in range(min(names, 20)):
            name = f"user-{turn % names}"
            turn += 1
            if not backoff.must_wait(HOST, name):
                backoff.record_failure(HOST, name)
                guesses += 1
        loop.pass_time(0.1)
    assert guesses <= 3 * min(130, 22 * names)
    if names > FREE_NAMES:
        assert backoff.must_wait(HOST, "somebody else") or names < NAMES_MAX


def test_the_pause_of_an_address_grows_with_the_names_that_fail_and_ends(backoff: LoginBackoff, loop: Loop) -> None:
    for number in range(FREE_NAMES):
        backoff.record_failure(HOST, f"user-{number}")
    assert not backoff.must_wait(HOST, NAME)
    backoff.record_failure(HOST, "one-more")
    assert backoff.must_wait(HOST, NAME)
    loop.pass_time(0.11)
    assert not backoff.must_wait(HOST, NAME)
    backoff.record_failure(HOST, "another")
    loop.pass_time(0.11)
    assert backoff.must_wait(HOST, NAME)
    backoff.record_success(HOST, "user-0")  # fewer names have failed
    assert not backoff.must_wait(HOST, NAME)


def test_attempts_of_many_users_take_turns_while_the_address_has_a_pause(backoff: LoginBackoff, loop: Loop) -> None:
    for number in range(NAMES_MAX - 2):
        backoff.record_failure(HOST, f"user-{number}")
    judged: list[tuple[float, str]] = []

    def wrong(name: str) -> Callable[[], None]:
        def judge() -> None:
            judged.append((loop.now - 1000.0, name))
            backoff.record_failure(HOST, name)

        return judge

    for name in "abc":
        backoff.wait(HOST, name, wrong(name))
    loop.pass_time(60)
    assert [name for _, name in judged] == ["a", "b", "c"]
    assert [at for at, _ in judged] == pytest.approx([0.8, 0.8 + 1.6, 0.8 + 1.6 + 3.0])


def test_names_are_bounded_whatever_their_number_and_length(backoff: LoginBackoff) -> None:
    gc.collect()
    tracemalloc.start()
    for number in range(2_000):
        backoff.record_failure(HOST, f"{number}" * 1_000)
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 4_096


def test_the_table_is_bounded_and_forgets_the_oldest(backoff: LoginBackoff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff_module, "ADDRESSES_MAX", 50)
    for number in range(200):
        backoff.record_failure(f"192.0.2.{number}", NAME)
    assert len(backoff) == 50
    assert not backoff.must_wait("192.0.2.149", NAME)
    assert backoff.must_wait("192.0.2.150", NAME)


def test_one_ipv6_network_is_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1%eth0") != network_of("2001:db8:0:1::1")
    assert network_of("192.0.2.1") == network_of("::ffff:192.0.2.1") != network_of("192.0.2.2")


class TestSameWork:
    """A wrong password and an unknown user cost the same steps, so that they take the same time."""

    def hashes(self, users: UserTable, loop: Loop, name: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
        """Return the lengths of key and message of every hash that the broker computes for one failed attempt."""
        authenticator = Authenticator(users, LoginBackoff(loop.time, loop.call_at))
        exchange = ClientExchange(name, "wrong", nonce="n" * 24)
        seen: list[tuple[int, int]] = []
        real_hmac, real_sha256 = hmac.digest, hashlib.sha256

        def counted_hmac(key: bytes, message: bytes, digest: str) -> bytes:
            seen.append((len(key), len(message)))
            return real_hmac(key, message, digest)

        def counted_sha256(data: bytes) -> object:
            seen.append((0, len(data)))
            return real_sha256(data)

        with monkeypatch.context() as patched:
            patched.setattr(hmac, "digest", counted_hmac)
            patched.setattr(hashlib, "sha256", counted_sha256)
            server, challenge = authenticator.begin(exchange.first())
            of_first = list(seen)
        answer = exchange.final(challenge)
        seen.clear()
        with monkeypatch.context() as patched:
            patched.setattr(hmac, "digest", counted_hmac)
            patched.setattr(hashlib, "sha256", counted_sha256)
            with pytest.raises(AuthenticationFailed) as raised:
                authenticator.finish(server, answer, HOST)
        assert raised.value.message == WRONG
        return of_first + seen

    def test_they_cost_the_same_hashes(self, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        set_user(tmp_path, "billing", PASSWORD)
        users = UserTable(tmp_path)
        users.load()
        known = self.hashes(users, loop, "billing", monkeypatch)
        assert len(known) == 5  # a decoy's salt and iterations, the proof's signature, its hash, the broker's signature
        assert self.hashes(users, loop, "strange", monkeypatch) == known
