"""The choice of the next address, and what ends a connection to a broker that does not lead its replica set."""

from __future__ import annotations

import pytest

from flintmq.client import AuthenticationFailed, ConnectionFailed, NotPrimary
from flintmq.client.core.rpc.access import NO_ACCESS, ClientAccess
from flintmq.client.core.rpc.address import ADDRESSES_MAX, LEARNED_MAX, Address, AddressBook, parse_addresses
from flintmq.client.core.rpc.connection_errors import leads_no_longer, no_address_answered
from flintmq.client.core.rpc.session import Answer, Session, advance
from flintmq.client.core.rpc.timeouts import CONNECT_SECONDS_MAX, CONNECT_SECONDS_MIN
from flintmq.client.errors import InvalidAddress
from flintmq.protocol.commands import HelloAnswer
from flintmq.protocol.errors import FlintError
from flintmq.protocol.fields import encode_fields
from flintmq.protocol.frames import RESPONSE, encode_frame

A, B, C = (Address(host, 1) for host in "abc")
GONE = ConnectionFailed("gone")


def following(primary: str = "") -> NotPrimary:
    return NotPrimary("a follower", primary=primary)


class Search:
    """A search through a book by a driver whose connections succeed or fail as ``outcomes`` say."""

    def __init__(self, book: AddressBook, outcomes: dict[Address, FlintError | None]) -> None:
        self.tried: dict[Address, FlintError] = {}
        self.found: Address | None = None
        while self.found is None and (attempt := book.next_attempt(self.tried, 5.0)) is not None:
            error = outcomes.get(attempt.address, GONE)
            if error is None:
                book.mark_answered(attempt.address)
                self.found = attempt.address
            else:
                self.tried[attempt.address] = error
                book.mark_failed(attempt.address, error, self.tried)


@pytest.fixture
def book() -> AddressBook:
    return AddressBook((A, B, C))


def test_addresses_are_tried_in_turn_and_each_once(book: AddressBook) -> None:
    search = Search(book, {})
    assert list(search.tried) == [A, B, C]
    assert search.found is None
    assert list(Search(book, {}).tried) == [A, B, C]


def test_a_search_begins_with_the_address_that_served_last(book: AddressBook) -> None:
    assert Search(book, {B: None}).found == B
    assert list(Search(book, {}).tried) == [B, C, A]


def test_after_a_lost_connection_the_next_address_comes_first(book: AddressBook) -> None:
    book.mark_answered(B)
    book.mark_failed(B, GONE)
    assert list(Search(book, {}).tried) == [C, A, B]


def test_the_loss_of_an_address_that_is_not_the_first_changes_nothing(book: AddressBook) -> None:
    book.mark_failed(B, GONE)
    assert list(Search(book, {}).tried) == [A, B, C]


def test_the_primary_that_a_follower_names_is_tried_next(book: AddressBook) -> None:
    search = Search(book, {A: following("c:1"), C: None})
    assert (list(search.tried), search.found) == ([A], C)


def test_a_primary_that_is_not_among_the_given_addresses_is_learned_and_kept(book: AddressBook) -> None:
    d = Address("d", 1)
    assert Search(book, {A: following("d:1"), d: None}).found == d
    book.mark_failed(d, GONE)
    assert list(Search(book, {}).tried) == [A, B, C, d]


def test_one_given_member_leads_to_the_primary() -> None:
    assert Search(AddressBook((A,)), {A: following("[::1]:7"), Address("::1", 7): None}).found == Address("::1", 7)


def test_a_named_primary_that_was_already_tried_does_not_delay_the_others(book: AddressBook) -> None:
    """After a failover the followers still name the dead primary for a while."""
    book.mark_answered(A)
    outcomes = {A: GONE, B: following("a:1"), C: following("a:1")}
    assert list(Search(book, dict(outcomes)).tried) == [A, B, C]
    assert Search(book, {**outcomes, C: None}).found == C


def test_followers_without_a_primary_are_all_asked(book: AddressBook) -> None:
    assert list(Search(book, dict.fromkeys((A, B, C), following())).tried) == [A, B, C]


def test_followers_that_name_each_other_end_the_search(book: AddressBook) -> None:
    outcomes: dict[Address, FlintError | None] = {A: following("b:1"), B: following("a:1"), C: following("b:1")}
    assert list(Search(book, outcomes).tried) == [A, B, C]


def test_a_follower_that_names_itself_is_asked_once() -> None:
    assert list(Search(AddressBook((A,)), {A: following("a:1")}).tried) == [A]


def test_learned_addresses_are_bounded_and_so_is_a_search_among_them() -> None:
    book = AddressBook((A,))
    named = {Address(f"n{number}", 1): following(f"n{number + 1}:1") for number in range(1000)}
    search = Search(book, {A: following("n0:1"), **named})
    assert len(search.tried) == ADDRESSES_MAX + LEARNED_MAX
    assert len(Search(book, {}).tried) == 1 + LEARNED_MAX


@pytest.mark.parametrize("primary", ["x:0", "x:1,y:1", "a..b:1", "http://x:1", "x" * 300 + ":1", "x:" + "9" * 9000])
def test_a_name_that_is_no_address_is_passed_over(book: AddressBook, primary: str) -> None:
    assert list(Search(book, {A: following(primary)}).tried) == [A, B, C]


def test_the_primary_named_by_the_cause_of_a_lost_connection_is_tried_first(book: AddressBook) -> None:
    book.mark_failed(A, leads_no_longer(A, following("c:1")))
    assert list(Search(book, {}).tried) == [C, A, B]


class TestTime:
    def test_one_address_has_all_the_time_up_to_the_maximum(self) -> None:
        for seconds, share in ((0.3, 0.3), (3.0, 3.0), (60.0, CONNECT_SECONDS_MAX)):
            assert AddressBook((A,)).next_attempt((), seconds) == (A, share)

    def test_untried_addresses_share_the_time(self, book: AddressBook) -> None:
        assert book.next_attempt((), 6.0) == (A, 2.0)
        assert book.next_attempt((A,), 6.0) == (B, 3.0)

    def test_each_has_the_minimum_as_long_as_there_is_time(self, book: AddressBook) -> None:
        assert book.next_attempt((), 1.5) == (A, CONNECT_SECONDS_MIN)
        assert book.next_attempt((A,), 0.5) == (B, 0.5)

    def test_a_search_without_time_tries_one_address(self, book: AddressBook) -> None:
        attempt = book.next_attempt((), -1.0)
        assert attempt is not None
        assert attempt.address == A
        assert 0 < attempt.seconds < 0.01
        assert book.next_attempt((A,), 0.0) is None


class TestErrors:
    def test_a_set_without_a_primary_is_a_failed_connection_that_says_so(self) -> None:
        error = no_address_answered({A: following(), B: following()})
        assert isinstance(error, ConnectionFailed)
        assert str(error) == "a follower; a follower"

    def test_a_single_follower_without_a_primary_is_a_failed_connection(self) -> None:
        error = no_address_answered({A: following()})
        assert type(error) is ConnectionFailed
        assert isinstance(error.__cause__, NotPrimary)

    def test_the_password_that_the_primary_of_a_set_refuses_is_the_error(self) -> None:
        refused = AuthenticationFailed("wrong")
        assert no_address_answered({A: GONE, B: refused, C: following()}) is refused

    def test_a_single_failure_is_the_error_itself(self) -> None:
        assert no_address_answered({A: GONE}) is GONE


HELLO_ANSWER = HelloAnswer(1, "east-1", "0", "sync", 1 << 24, 1 << 20, 1 << 19)


def arrive(session: Session, *frames: bytes) -> list[Answer]:
    """Return the responses after these frames have arrived at once."""
    blob = b"".join(frames)
    session.parser.writable()[: len(blob)] = blob
    session.parser.received(len(blob))
    return session.answers()


def greet(session: Session, access: ClientAccess = NO_ACCESS, **fields: str) -> None:
    greeting = session.greeting("me", access)
    advance(greeting, None)
    (answer,) = arrive(session, encode_frame(RESPONSE, 0, 1, {**encode_fields(HELLO_ANSWER), **fields}))
    assert advance(greeting, answer) is None


def not_primary(request_id: int) -> bytes:
    return encode_frame(RESPONSE, NotPrimary.code, request_id, following("c:1").fields())


class TestSession:
    @pytest.mark.parametrize("role", ["", "primary"])
    def test_a_broker_on_its_own_and_a_primary_serve(self, role: str) -> None:
        greet(Session(), role=role, primary="me:1" if role else "")

    def test_a_follower_is_left_for_the_primary_before_any_password(self) -> None:
        access = ClientAccess(user="u", password="p")
        with pytest.raises(NotPrimary, match="'east-1' is a follower in a replica set, and its primary is c:1") as got:
            greet(Session(), access, role="follower", primary="c:1")
        assert got.value.primary == "c:1"

    def test_a_follower_may_know_no_primary(self) -> None:
        with pytest.raises(NotPrimary, match="the set has no primary now") as got:
            greet(Session(), role="follower")
        assert got.value.primary == ""

    @pytest.mark.parametrize("request_id", [0, 7])
    def test_a_refused_connection_keeps_the_responses_before_the_refusal(self, request_id: int) -> None:
        session = Session()
        greet(session)
        stored = encode_frame(RESPONSE, 0, 6, {"offset": 5})
        answers = arrive(session, stored, not_primary(request_id), encode_frame(RESPONSE, 0, 8, {}))
        assert [answer.request_id for answer in answers] == [6]
        assert session.refusal is not None
        assert session.refusal.primary == "c:1"

    def test_a_refusal_that_arrives_alone_is_no_response(self) -> None:
        session = Session()
        greet(session)
        assert arrive(session, not_primary(7)) == []
        assert isinstance(session.refusal, NotPrimary)

    def test_a_refused_hello_is_the_response_to_it(self) -> None:
        session = Session()
        greeting = session.greeting("me", NO_ACCESS)
        advance(greeting, None)
        (answer,) = arrive(session, not_primary(0))
        with pytest.raises(NotPrimary):
            advance(greeting, answer)


@pytest.mark.parametrize(
    "addresses", ["user:secret@host", "flintmq://user:secret@host:1", "u:sec,ret@a:1,b:2", ["a:1", "user:secret@b:2"]]
)
def test_an_error_does_not_repeat_a_password(addresses: str | list[str]) -> None:
    with pytest.raises(InvalidAddress, match="password=") as raised:
        parse_addresses(addresses)
    assert "sec" not in str(raised.value)
