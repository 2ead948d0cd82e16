"""Requests and logins that the console refuses, whatever page they are for."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from flintmq.client.console.failures import Refused
from flintmq.client.console.policy import ConsoleOptions, SecurityPolicy
from flintmq.client.console.services import ConsoleServices
from flintmq.client.console.sessions import FREE_FAILURES, FREE_NAMES, WAIT_SECONDS, LoginAttempts
from flintmq.protocol.errors import AuthenticationFailed

HOST = "127.0.0.1:10980"


def status_of(method: str, headers: dict[str, str]) -> int | None:
    """Return the status with which a request is refused, or None."""
    policy = SecurityPolicy(None, ConsoleOptions(broker="", tls={}, port=10980))  # type: ignore[arg-type] # not called
    refusal = policy.refusal({"method": method, "server": ("127.0.0.1", 10980)}, headers)
    return refusal and refusal[0]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused(host: str) -> None:
    assert status_of("GET", {"host": host}) == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, None),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"origin": f"http://{HOST}"}, None),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": f"https://{HOST}"}, 403),
        ({"origin": "null"}, 403),
        ({"cookie": "a=b"}, 403),
        ({}, None),
    ],
)
def test_a_change_must_come_from_the_page_itself(headers: dict[str, str], status: int | None) -> None:
    assert status_of("POST", {"host": HOST, **headers}) == status
    assert status_of("GET", {"host": HOST, **headers}) is None


# ---- guessed passwords


class Guesses:
    """Logins at a console whose clock stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._attempts = LoginAttempts(lambda: self.now)

    def status(self, address: str, user: str, *, is_right: bool = False) -> int:
        """Return the status that an attempt gets."""
        try:
            with self._attempts.attempt(address, user):
                if not is_right:
                    raise AuthenticationFailed("the password is wrong")
        except AuthenticationFailed:
            return 403
        except Refused as refused:
            return refused.status
        return 303


def test_a_network_that_guesses_does_not_lock_the_others_out() -> None:
    guesses = Guesses()
    for number in range(FREE_FAILURES):
        assert guesses.status(f"2001:db8::{number:x}", "ops") == 403
    assert guesses.status("2001:db8::ffff:1", "ops", is_right=True) == 429
    assert guesses.status("2001:db8:0:1::1", "ops", is_right=True) == 303
    guesses.now += WAIT_SECONDS
    assert guesses.status("2001:db8::ffff:1", "ops", is_right=True) == 303


def test_a_user_with_a_password_does_not_guess_that_of_another_one_faster() -> None:
    guesses = Guesses()
    for _ in range(FREE_FAILURES):
        assert guesses.status("192.0.2.1", "ops") == 403
        assert guesses.status("192.0.2.1", "guesser", is_right=True) == 303
    assert guesses.status("192.0.2.1", "ops", is_right=True) == 429
    assert guesses.status("192.0.2.1", "other", is_right=True) == 303


def test_guesses_with_many_names_make_all_behind_the_address_wait() -> None:
    guesses = Guesses()
    for number in range(FREE_NAMES):
        assert guesses.status("192.0.2.1", f"guessed-{number}") == 403
    assert guesses.status("192.0.2.1", "guessed-again") == 429
    assert guesses.status("192.0.2.1", "ops", is_right=True) == 429


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("claimed, 10.0.0.1", "10.0.0.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("[2001:db8::1]:4711", "2001:db8::1"),
    ],
)
def test_behind_a_proxy_the_address_is_the_last_one_without_its_port(forwarded: str, address: str) -> None:
    services = ConsoleServices(ConsoleOptions(broker="", tls={}, behind_proxy=True))
    headers = [(b"x-forwarded-for", forwarded.encode())]
    assert services.address_of(Request({"type": "http", "headers": headers})) == address
