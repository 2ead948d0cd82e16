"""How often the console's live views look at their topics."""

from __future__ import annotations

import pytest

from flintmq.client.console.pages.topics import LOOKS_PER_SECOND_MAX, QUIET_TICK_SECONDS, TICK_SECONDS, tick_seconds


@pytest.mark.parametrize("streams", [1, 3, 5, 20, 50])
def test_all_live_views_together_look_at_most_so_often(streams: int) -> None:
    assert streams / tick_seconds(streams, quiet=False) <= LOOKS_PER_SECOND_MAX


def test_one_live_view_looks_four_times_a_second_and_less_often_at_a_quiet_topic() -> None:
    assert tick_seconds(1, quiet=False) == TICK_SECONDS == 0.25
    assert tick_seconds(1, quiet=True) == QUIET_TICK_SECONDS
