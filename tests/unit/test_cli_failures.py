"""What the command line prints of an error: what to do next in its own options."""

from __future__ import annotations

import pytest

from flintmq.client.cli.failures import TLS_STEP, describe
from flintmq.client.core.address import Address
from flintmq.client.core.troubles import closed_here, not_greeted


@pytest.mark.parametrize("tls", [True, False])
def test_who_may_lack_tls_is_told_the_options_for_it(tls: bool) -> None:
    here = Address("127.0.0.1", 10911)
    assert describe(not_greeted(here, closed_here(here), tls=tls))[-1] == f"next: {TLS_STEP}"


def test_who_was_cut_off_is_not_told_of_tls() -> None:
    assert len(describe(closed_here(Address("127.0.0.1", 10911)))) == 1
