"""SCRAM-SHA-256: the RFC's example, both sides against each other, and every wrong message."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintmq.protocol.auth import scram
from flintmq.protocol.auth.scram import ClientExchange, ScramError, ServerExchange, Verifier, make_verifier, prepare

# The example of RFC 7677, section 3.
PASSWORD = "pencil"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
CLIENT_FIRST = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s={SALT},i=4096"
CLIENT_FINAL = (
    "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="

VERIFIER = make_verifier(PASSWORD, 4096, base64.b64decode(SALT))


def client(password: str = PASSWORD, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> ClientExchange:
    return ClientExchange("user", password, nonce=nonce)


def server(verifier: Verifier = VERIFIER) -> ServerExchange:
    return ServerExchange(lambda name: verifier, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


class TestTheExampleOfTheRfc:
    def test_the_client_sends_the_rfcs_messages(self) -> None:
        exchange = client()
        assert exchange.first() == CLIENT_FIRST
        assert exchange.final(SERVER_FIRST) == CLIENT_FINAL
        exchange.check(SERVER_FINAL)

    def test_the_server_sends_the_rfcs_messages(self) -> None:
        exchange = server()
        assert exchange.first(CLIENT_FIRST) == SERVER_FIRST
        assert exchange.name == "user"
        assert exchange.final(CLIENT_FINAL) == SERVER_FINAL


def run(password: str, verifier: Verifier, name: str = "user") -> None:
    """Run a whole exchange with fresh nonces."""
    one, other = ClientExchange(name, prepare(password)), ServerExchange(lambda found: verifier)
    one.check(other.final(one.final(other.first(one.first()))))
    assert other.name == name


class TestTheExchange:
    def test_the_right_password_passes(self) -> None:
        run("s3cret", make_verifier("s3cret", 4096))

    def test_a_wrong_password_does_not(self) -> None:
        with pytest.raises(ScramError, match="the proof is wrong"):
            run("s3creT", make_verifier("s3cret", 4096))

    def test_a_name_with_commas_and_equal_signs_arrives_as_it_was(self) -> None:
        run("s3cret", make_verifier("s3cret", 4096), name="a=b,c=2C")

    def test_passwords_that_look_alike_are_the_same(self) -> None:
        run("I\u00adX \u2168", make_verifier("IX IX", 4096))  # a soft hyphen, the Roman numeral nine

    def test_a_server_without_the_verifier_is_refused(self) -> None:
        exchange = client()
        answer = server(make_verifier("another", 4096, VERIFIER.salt))
        answer.first(CLIENT_FIRST)
        exchange.final(SERVER_FIRST)
        with pytest.raises(ScramError, match="not the expected broker"):
            exchange.check("v=" + "A" * 43 + "=")

    def test_a_proof_does_not_hold_in_another_exchange(self) -> None:
        other = ServerExchange(lambda name: VERIFIER)
        other.first(CLIENT_FIRST)
        with pytest.raises(ScramError, match="nonce is not that of this exchange"):
            other.final(CLIENT_FINAL)

    def test_nonces_are_never_the_same(self) -> None:
        assert len({scram.new_nonce() for _ in range(100)}) == 100

    def test_secrets_are_in_no_repr(self) -> None:
        keys = scram.derive_keys("s3cret", b"salt", 4096)
        assert "\\x" not in repr(VERIFIER) + repr(keys)
        assert "s3cret" not in repr(ClientExchange("user", "s3cret"))


class TestBadMessages:
    @pytest.mark.parametrize(
        "message",
        [
            "",
            "n,,",
            "n,,n=user",
            "n,,r=abc",
            "n,a=other,n=user,r=abc",
            "n,,m=ext,n=user,r=abc",
            "n,,n=,r=abc",
            "n,,n=us=er,r=abc",
            "n,,n=user,r=",
            "n,,n=user,r=a b",
            "n,,n=user,r=\u00e9",
            "n,,n=us\0er,r=abc",
            "p=tls-unique,,n=user,r=abc",
            "x,,n=user,r=abc",
            "n,,n=user,r=" + "a" * 257,
            "n,,n=user,r=abc\n",
            "n,,n=" + "u" * 2000 + ",r=abc",
        ],
    )
    def test_an_invalid_first_message(self, message: str) -> None:
        with pytest.raises(ScramError):
            server().first(message)

    @pytest.mark.parametrize(
        "message",
        [
            "",
            "c=biws",
            CLIENT_FINAL + "\n",
            CLIENT_FINAL.replace("c=biws", "c=eSws"),
            CLIENT_FINAL[:-1],
            CLIENT_FINAL.replace("p=d", "p=e"),
            CLIENT_FINAL.replace(",p=", ",x=1,p="),
            CLIENT_FINAL + ",x=1",
            CLIENT_FINAL.split("p=")[0] + "p=AAAA",
            CLIENT_FINAL.replace("r=r", "r=R"),
            "v=" + "A" * 43 + "=",
        ],
    )
    def test_an_invalid_proof(self, message: str) -> None:
        exchange = server()
        exchange.first(CLIENT_FIRST)
        with pytest.raises(ScramError):
            exchange.final(message)

    def test_a_proof_before_anything_else(self) -> None:
        with pytest.raises(ScramError, match="before its first"):
            server().final(CLIENT_FINAL)

    @pytest.mark.parametrize(
        ("message", "why"),
        [
            (SERVER_FIRST.replace("i=4096", "i=4095"), "4095 iterations"),
            (SERVER_FIRST.replace("i=4096", "i=1000001"), "1000001 iterations"),
            (SERVER_FIRST.replace("i=4096", "i=9999999999999999"), "not a message of SCRAM"),
            (SERVER_FIRST.replace("r=r", "r=s"), "does not continue"),
            (f"r=rOprNGfwEbeRWgbNEkqO,s={SALT},i=4096", "does not continue"),
            (SERVER_FIRST.replace(SALT, "W22Z!J0SNY7soEsUEjb6gQ=="), "not base64"),
            (SERVER_FIRST.replace(SALT, "W22ZaJ0SNY7soEsUEjb6gR=="), "not base64"),
            (SERVER_FIRST.replace(SALT, "A" * 300), "salt has 225 bytes"),
            ("m=ext," + SERVER_FIRST, "not a message of SCRAM"),
            ("e=unknown-user", "not a message of SCRAM"),
            ("", "not a message of SCRAM"),
        ],
    )
    def test_an_invalid_challenge_costs_no_derivation(self, message: str, why: str) -> None:
        def never(password: str, salt: bytes, iterations: int) -> scram.Keys:
            raise AssertionError("the keys were derived")

        exchange = ClientExchange("user", PASSWORD, nonce="rOprNGfwEbeRWgbNEkqO", derive=never)
        with pytest.raises(ScramError, match=why):
            exchange.final(message)

    def test_a_signature_before_the_proof_is_refused(self) -> None:
        with pytest.raises(ScramError):
            client().check(SERVER_FINAL)

    @pytest.mark.parametrize("password", ["", "\u00ad", "a\x00b", "a\nb", "\ue000", "\ud800", "x" * 257, "\u0627a"])
    def test_a_password_that_cannot_be_is_refused_without_being_said(self, password: str) -> None:
        with pytest.raises(ScramError) as raised:
            make_verifier(password)
        assert not password or password not in str(raised.value)


def mutated(message: str, position: int, char: str) -> str:
    position %= len(message)
    return message[:position] + char + message[position + 1 :]


class TestMutations:
    """The exchange fails after a change of one character in any message."""

    @given(st.integers(0, 10_000), st.characters(min_codepoint=0x20, max_codepoint=0x17E))
    def test_of_the_client_first(self, position: int, char: str) -> None:
        message = mutated(CLIENT_FIRST, position, char)
        if message == CLIENT_FIRST:
            return
        one, other = client(), server()
        with pytest.raises(ScramError):
            one.check(other.final(one.final(other.first(message))))

    @given(st.integers(0, 10_000), st.characters(min_codepoint=0x20, max_codepoint=0x17E))
    def test_of_the_server_first(self, position: int, char: str) -> None:
        message = mutated(SERVER_FIRST, position, char)
        if message == SERVER_FIRST:
            return
        one, other = ClientExchange("user", PASSWORD, nonce="rOprNGfwEbeRWgbNEkqO", derive=_cheap), server(_CHEAP)
        other.first(one.first())
        with pytest.raises(ScramError):
            one.check(other.final(one.final(message)))

    @given(st.integers(0, 10_000), st.characters(min_codepoint=0x20, max_codepoint=0x17E))
    def test_of_the_client_final(self, position: int, char: str) -> None:
        message = mutated(CLIENT_FINAL, position, char)
        if message == CLIENT_FINAL:
            return
        other = server()
        other.first(CLIENT_FIRST)
        with pytest.raises(ScramError):
            other.final(message)

    @given(st.integers(0, 10_000), st.characters(min_codepoint=0x20, max_codepoint=0x17E))
    def test_of_the_server_final(self, position: int, char: str) -> None:
        message = mutated(SERVER_FINAL, position, char)
        if message == SERVER_FINAL:
            return
        one = ClientExchange("user", PASSWORD, nonce="rOprNGfwEbeRWgbNEkqO", derive=_derived)
        one.final(SERVER_FIRST)
        with pytest.raises(ScramError):
            one.check(message)


def _cheap(password: str, salt: bytes, iterations: int) -> scram.Keys:
    """Return keys that depend on every argument, as real ones do, but cost no time."""
    mixed = hashlib.sha256(f"{password},{salt.hex()},{iterations}".encode()).digest()
    return scram.Keys(mixed, hashlib.sha256(mixed).digest())


_KEYS = _cheap(PASSWORD, VERIFIER.salt, 4096)
_CHEAP = Verifier(4096, VERIFIER.salt, hashlib.sha256(_KEYS.client_key).digest(), _KEYS.server_key)
_REAL = scram.derive_keys(PASSWORD, VERIFIER.salt, 4096)


def _derived(password: str, salt: bytes, iterations: int) -> scram.Keys:
    return _REAL
