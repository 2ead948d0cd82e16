"""Who consumes what: even, sticky, and with no more moves than that takes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flintmq.broker.delivery.assignment import Queue, assign

TOPICS = ("orders", "payments", "%RETRY%g")
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
    """How many queues must leave a member that is still there, so that all have the same number, or one more.

    With n queues and m members, n mod m of them may keep one more: those who have most, for that saves most moves.
    """
    loads = sorted((Counter(before[q] for q in queues if before.get(q) in names)[name] for name in names), reverse=True)
    least, more = divmod(len(queues), len(names))
    return sum(max(load - least - (place < more), 0) for place, load in enumerate(loads))


@given(queue_sets, same_wishes, st.data())
def test_members_that_want_the_same_get_the_same_number_with_the_fewest_moves(
    queues: list[Queue], members: dict[str, tuple[str, ...]], data: st.DataObject
) -> None:
    before = data.draw(befores(queues))
    result = assign(queues, members, before)
    assert result.keys() == set(queues)
    loads = Counter(result.values())
    counts = [loads[name] for name in members]
    assert max(counts) - min(counts) <= 1
    moved = sum(before[q] in members and result[q] != before[q] for q in queues if q in before)
    assert moved == fewest_moves(before, queues, list(members))


@given(queue_sets, any_wishes, st.data())
def test_every_queue_that_is_wanted_goes_to_one_who_wants_it_and_nobody_could_take_one_from_a_richer(
    queues: list[Queue], members: dict[str, set[str]], data: st.DataObject
) -> None:
    before = data.draw(befores(queues))
    result = assign(queues, members, before)
    wanted = {topic for topics in members.values() for topic in topics}
    assert result.keys() == {queue for queue in queues if queue[0] in wanted}
    assert all(queue[0] in members[name] for queue, name in result.items())
    loads = Counter(result.values())
    for queue, name in result.items():
        for other, topics in members.items():
            assert queue[0] not in topics or loads[name] - loads[other] <= 1


@given(queue_sets, any_wishes, st.data())
def test_the_same_question_has_the_same_answer_and_an_answer_is_its_own_successor(
    queues: list[Queue], members: dict[str, set[str]], data: st.DataObject
) -> None:
    before = data.draw(befores(queues))
    result = assign(queues, members, before)
    shuffled = dict(reversed(members.items()))
    assert assign(list(reversed(queues)), shuffled, dict(reversed(before.items()))) == result
    assert assign(queues, members, result) == result


def test_no_member_and_no_queue_is_nothing_to_share() -> None:
    assert assign([("t", 0)], {}, {("t", 0): "a"}) == {}
    assert assign([], {"a": ("t",)}, {}) == {}
