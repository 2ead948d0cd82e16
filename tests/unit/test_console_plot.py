"""The plot of the console's overview."""

from __future__ import annotations

from flintmq.client.console.render import HEIGHT, WIDTH, plot


def test_too_few_samples_make_no_plot() -> None:
    assert plot([]) is None
    assert plot([(2.0, 5.0, 5.0)]) is None


def test_the_newest_sample_is_at_the_right_edge_and_the_scale_is_round() -> None:
    found = plot([(900.0, 0.0, 0.0), (885.0, 130.0, 10.0), (0.0, 65.0, 0.0)])
    assert found is not None
    assert found.highest == 200.0
    assert len(found.incoming) == 2  # the console was not watched in between
    assert found.incoming[0].split()[0] == f"{WIDTH * 0.75:.1f},{HEIGHT:.1f}"
    assert found.incoming[-1].split()[0] == f"{WIDTH:.1f},{HEIGHT * (1 - 65 / 200):.1f}"


def test_a_busy_hour_is_averaged() -> None:
    found = plot([(float(ago), 10.0, 20.0) for ago in range(3599, -1, -2)])
    assert found is not None
    assert len(found.incoming) == 1
    assert len(found.incoming[0].split()) == 240
    assert found.rows == [(300.0 * row, 10.0, 20.0) for row in range(12)]
