"""Programs that use Celery, each a function that ``python programs.py NAME …`` runs in Celery's environment."""

from __future__ import annotations

import sys

from celery import chain, chord, group
from tasks import add, again, app, crash, hesitate, refuse, total, work

WAIT_SECONDS = 120


def canvas() -> None:
    """Run a chain, a group and a chord."""
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(timeout=WAIT_SECONDS) == 10
    assert group(add.s(number, number) for number in range(5))().get(timeout=WAIT_SECONDS) == [0, 2, 4, 6, 8]
    assert chord((add.s(number, 1) for number in range(4)), total.s())().get(timeout=WAIT_SECONDS) == 10


def control() -> None:
    """Ask a worker, and tell it something."""
    inspect = app.control.inspect(["one@test"], timeout=WAIT_SECONDS)
    assert inspect.ping() == {"one@test": {"ok": "pong"}}
    assert [queue["name"] for queue in inspect.active_queues()["one@test"]] == ["celery"]
    one = {"destination": ["one@test"], "reply": True, "timeout": WAIT_SECONDS}
    assert app.control.add_consumer("more", **one)[0]["one@test"]["ok"].startswith("add consumer")
    assert add.apply_async((20, 22), queue="more").get(timeout=WAIT_SECONDS) == 42
    assert "more" in [queue["name"] for queue in inspect.active_queues()["one@test"]]
    assert app.control.cancel_consumer("more", **one)[0]["one@test"]["ok"] == "no longer consuming from more"
    app.control.purge()  # may count tasks that have ended in the last second


def events() -> None:
    seen: list[str] = []

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
        with receiver.consumer_context(wakeup=False) as (following, _, _):
            app.control.enable_events(["one@test"], reply=True, timeout=WAIT_SECONDS)
            add.delay(1, 1)
            while "task-succeeded" not in seen:
                following.drain_events(timeout=WAIT_SECONDS)
    assert {"task-received", "task-started"} <= set(seen)


def everything() -> None:
    """Run the functions above."""
    canvas()
    control()
    events()


def send_failing() -> None:
    """Send a task of each kind of failure."""
    for task in (refuse, hesitate, crash, again):
        task.delay()


def send(first: str, after: str, *options: str) -> None:
    """Send ``work`` with the numbers from ``first`` up to ``after``. ``options``: the queues to take in turn, or
    ``countdown=SECONDS``."""
    seconds = [float(option.partition("=")[2]) for option in options if option.startswith("countdown=")]
    queues = [option for option in options if "=" not in option] or ["celery"]
    for number in range(int(first), int(after)):
        work.apply_async((number,), queue=queues[number % len(queues)], countdown=seconds[0] if seconds else None)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
