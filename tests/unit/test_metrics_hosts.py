"""Host names under which the metrics port may be requested."""

from __future__ import annotations

import pytest

from flintmq.broker.metrics.endpoint import Hosts

HERE = "10.1.2.3"


def refused(
    host: str, *, listen: str = "0.0.0.0:10912", names: str = "broker;Broker.Example.com", at: str = HERE
) -> str:
    return Hosts(listen, names).refusal(f"GET / HTTP/1.1\r\nHost: {host}\r\nX: y".encode("latin-1"), at)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:10912",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.9.9.9",
        "[::1]",
        "[::1]:10912",
        HERE,
        f"{HERE}:10912",
        "broker",
        "BROKER:10912",
        "broker.example.com",
        "broker.example.com.:80",
        "0.0.0.0:10912",
    ],
)
def test_the_ports_own_names_are_served(host: str) -> None:
    assert refused(host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:10912",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.1.2.4",
        "broke",
        "brokerr",
        "",
        ":10912",
        "[::2]",
        "[localhost]",
        "[::1",
        "localhost:",
        "localhost:x",
        "localhost:10912:1",
        "a@localhost",
        "localhost/x",
        "local host",
        "\xe9",
        "\x00",
        "localhost\x00",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
    ],
)
def test_any_other_name_is_refused_by_the_setting_that_allows_it(host: str) -> None:
    said = refused(host)
    assert "metrics.hosts" in said
    assert said.isprintable()


def test_a_request_without_a_host_is_served_and_one_with_two_is_refused() -> None:
    hosts = Hosts("", "")
    assert hosts.refusal(b"GET / HTTP/1.0", HERE) == ""
    assert hosts.refusal(b"GET /?host: evil HTTP/1.1\r\nX-Host: evil.example", HERE) == ""
    assert hosts.refusal(b"GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example", HERE) != ""
    assert hosts.refusal(b"GET / HTTP/1.1\nHOST : evil.example\n", HERE) != ""


def test_the_listening_name_is_served_at_a_mapped_address_too() -> None:
    assert refused("metrics.internal:1", listen="metrics.internal:10912", names="") == ""
    assert refused(HERE, names="", at=f"::ffff:{HERE}") == ""
    assert refused("[fe80::1]", names="", at="fe80::1%eth0") == ""
    assert refused("localhost", listen="", names="") == ""
