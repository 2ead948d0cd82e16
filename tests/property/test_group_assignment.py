"""Assignment of queues to members: even, sticky, and with the fewest moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.delivery.groups.group import Queue, assign

RETRY = "%RETRY%"
TOPICS = ("orders", "payments", f"{RETRY}g")
MEMBERS = tuple("abcdefgh")
queue_sets = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 12), min_size=1).map(
    lambda sizes: [(topic, number) for topic, size in sizes.items() for number in range(size)]
)
same_wishes = st.sets(st.sampled_from(MEMBERS), min_size=1).map(lambda names: dict.fromkeys(names, TOPICS))
any_wishes = st.dictionaries(st.sampled_from(MEMBERS), st.sets(st.sampled_from(TOPICS), min_size=1), min_size=1)


@st.composite
def befores(draw: st.DrawFn, queues: list[Queue]) -> dict[Queue, str]:
    return {queue: draw(st.sampled_from((*MEMBERS, "gone"))) for queue in queues if draw(st.booleans())}


def fewest_moves(before: dict[Queue, str], queues: list[Queue], names: list[str]) -> int:
    """Return how many queues must leave a surviving member so that all have the same number, or one more.

    With n queues and m members, n mod m members may keep one more: those with most queues, because that saves most
    moves.
    """
    loads = sorted((Counter(before[q] for q in queues if before.get(q) in names)[name] for name in names), reverse=True)
    least, more = divmod(len(queues), len(names))
    return sum(max(load - least - (place < more), 0) for place, load in enumerate(loads))


def moves(before: dict[Queue, str], result: dict[Queue, str], members: Collection[str]) -> int:
    """Return how many queues left a surviving member."""
    return sum(before[queue] in members and name != before[queue] for queue, name in result.items() if queue in before)


def data(queues: Iterable[Queue]) -> list[Queue]:
    return [queue for queue in queues if not queue[0].startswith(RETRY)]


def spread(result: dict[Queue, str], queues: Iterable[Queue], names: Collection[str]) -> int:
    """Return the largest difference in the number of ``queues`` between two of ``names``."""
    loads = Counter(result[queue] for queue in queues)
    return max(loads[name] for name in names) - min(loads[name] for name in names)


@given(queue_sets, same_wishes, st.data())
def test_members_with_equal_subscriptions_get_equal_numbers_of_each_topic_and_in_total(
    queues: list[Queue], members: dict[str, tuple[str, ...]], draws: st.DataObject
) -> None:
    result = assign(queues, members, draws.draw(befores(queues)))
    assert result.keys() == set(queues)
    assert spread(result, data(queues), members) <= 1
    assert spread(result, queues, members) <= 1
    for topic in TOPICS:
        if not topic.startswith(RETRY):
            assert spread(result, [queue for queue in queues if queue[0] == topic], members) <= 1


@given(st.integers(0, 64), st.integers(0, 4), same_wishes, st.data())
def test_an_assignment_moves_as_few_queues_as_possible(
    count: int, retries: int, members: dict[str, tuple[str, ...]], draws: st.DataObject
) -> None:
    queues = [("orders", number) for number in range(count)]
    both = queues + [(TOPICS[-1], number) for number in range(retries)]
    before = draws.draw(befores(both))
    result = assign(both, members, before)
    of_data = {queue: result[queue] for queue in queues}
    assert moves(before, of_data, members) == fewest_moves(before, queues, list(members))


def test_a_retry_queue_is_not_counted_as_a_queue_of_data() -> None:
    """Two members of four queues have two each, regardless of the retry queue's owner and age."""
    queues = [("flights", number) for number in range(4)]
    retry = (TOPICS[-1], 0)
    alone = assign([*queues, retry], {"a": (*TOPICS, "flights")}, {})
    both = {"a": (*TOPICS, "flights"), "b": (*TOPICS, "flights")}
    for before in (alone, {**alone, retry: "b"}, assign(queues, both, {}), {}):
        result = assign([*queues, retry], both, before)
        assert Counter(result[queue] for queue in queues) == {"a": 2, "b": 2}
    # ... and it goes to the member with fewer of them.
    assert assign([*queues[:3], retry], both, {queues[0]: "a", queues[1]: "a", retry: "a"})[retry] == "b"


def test_a_member_that_joins_sixteen_takes_four_of_64_queues() -> None:
    queues = [*(("orders", number) for number in range(64)), (TOPICS[-1], 0)]
    fifteen = {f"m{number:02}": TOPICS for number in range(15)}
    before = assign(queues, fifteen, {})
    result = assign(queues, {**fifteen, "m15": TOPICS}, before)
    assert moves(before, {queue: result[queue] for queue in queues[:64]}, fifteen) == 4


def test_a_swap_that_leaves_a_member_poorer_than_another_is_followed_by_a_move() -> None:
    queues = [("orders", 0), *(("payments", number) for number in range(5))]
    members = {name: {"orders", "payments"} for name in "abdef"} | {"c": {"orders"}}
    result = assign(queues, members, {("payments", 3): "a", ("payments", 4): "a"})
    assert Counter(result.values()) == dict.fromkeys("abcdef", 1)


@given(queue_sets, any_wishes, st.data())
def test_every_subscribed_queue_goes_to_a_subscriber_and_no_member_could_take_one_from_a_richer(
    queues: list[Queue], members: dict[str, set[str]], draws: st.DataObject
) -> None:
    result = assign(queues, members, draws.draw(befores(queues)))
    wanted = {topic for topics in members.values() for topic in topics}
    assert result.keys() == {queue for queue in queues if queue[0] in wanted}
    assert all(queue[0] in members[name] for queue, name in result.items())
    loads, loads_of_data = Counter(result.values()), Counter(result[queue] for queue in data(result))
    for queue, name in result.items():
        counted = loads if queue[0].startswith(RETRY) else loads_of_data
        for other, topics in members.items():
            assert queue[0] not in topics or counted[name] - counted[other] <= 1


@given(queue_sets, any_wishes, st.data())
def test_an_assignment_is_deterministic_and_stable(
    queues: list[Queue], members: dict[str, set[str]], data: st.DataObject
) -> None:
    before = data.draw(befores(queues))
    result = assign(queues, members, before)
    shuffled = dict(reversed(members.items()))
    assert assign(list(reversed(queues)), shuffled, dict(reversed(before.items()))) == result
    assert assign(queues, members, result) == result


def test_no_members_or_no_queues_give_an_empty_assignment() -> None:
    assert assign([("t", 0)], {}, {("t", 0): "a"}) == {}
    assert assign([], {"a": ("t",)}, {}) == {}
