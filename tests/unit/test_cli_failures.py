"""The command line's output for an error: the next step, in its own options."""

from __future__ import annotations

import pytest

from flintmq.client.cli.failures import TLS_STEP, describe
from flintmq.client.core.rpc.address import Address
from flintmq.client.core.rpc.connection_errors import closed_here, not_greeted


@pytest.mark.parametrize("tls", [True, False])
def test_an_error_that_may_come_from_missing_tls_names_the_options(tls: bool) -> None:
    here = Address("127.0.0.1", 10911)
    assert describe(not_greeted(closed_here(here), tls=tls))[-1] == f"next: {TLS_STEP}"


def test_a_lost_connection_does_not_mention_tls() -> None:
    assert len(describe(closed_here(Address("127.0.0.1", 10911)))) == 1
