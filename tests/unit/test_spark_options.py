"""The source's options: valid values, and errors that name the option."""

from __future__ import annotations

import pickle
import re

import pytest

from flintmq.client.spark.errors import InvalidOption
from flintmq.client.spark.options import READ_OPTIONS, read_options, refuse

LEAST = {"bootstrap": "localhost:10911", "subscribe": "orders"}


def test_options_not_given_have_their_defaults() -> None:
    options = read_options(LEAST)
    assert [(broker.name, broker.address) for broker in options.bootstrap] == [("localhost:10911", "localhost:10911")]
    assert options.subscribe == ("orders",)
    assert options.fail_on_data_loss
    assert not (options.include_properties)
    assert not (options.include_headers)
    assert not (options.push_filters)
    assert [options.starting_offsets, options.ending_offsets, options.key, options.min_partitions] == [None] * 4
    assert options.timeout == 60


def test_every_option_is_understood_in_any_case() -> None:
    given = {
        "BOOTSTRAP": "east=h:1, west=[::1]:2 ; x:3, other",
        "subscribePattern": "order.*",
        "STARTINGOFFSETS": '{"orders": {"0": 17, "1": -2}, "refunds/3": -1, "orders@east/4": 5, "orders/2@west": 6}',
        "endingTimestamp": "2026-11-21T08:00:00+01:00",
        "maxOffsetsPerTrigger": "1000",
        "failOnDataLoss": "False",
        "includeProperties": "true",
        "includeHeaders": "TRUE",
        "tags": "eu || us",
        "timeoutMs": "1500",
    }
    options = read_options(given)
    assert [(broker.name, broker.address) for broker in options.bootstrap] == [
        ("east", "h:1"),
        ("west", "[::1]:2,x:3"),
        ("other:10911", "other:10911"),
    ]
    assert options.subscribe_pattern == re.compile("order.*")
    assert options.starting_offsets == {
        "orders": {0: 17, 1: -2},
        "refunds": {3: -1},
        "orders@east": {4: 5},
        "orders@west": {2: 6},
    }
    assert options.ending_ms == 1795244400000
    assert options.max_offsets_per_trigger == 1000
    assert not options.fail_on_data_loss
    assert options.include_properties
    assert options.include_headers
    assert options.tag_filter.wanted == {"eu", "us"}
    assert options.timeout == 1.5
    assert pickle.loads(pickle.dumps(options)) == options


def test_both_forms_of_a_time_are_the_same() -> None:
    for written in ("1795244400000", "2026-11-21T07:00:00Z", "2026-11-21T12:30:00.000+05:30"):
        assert read_options(LEAST | {"startingTimestamp": written}).starting_ms == 1795244400000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "orders"}, "'bootstrap' is missing"),
        ({"bootstrap": "h:1"}, "'subscribePattern' is missing"),
        (LEAST | {"startingOffset": "earliest"}, "no option 'startingOffset' (did you mean 'startingOffsets'?)"),
        (LEAST | {"kafka.bootstrap.servers": "h:1"}, "no option 'kafka.bootstrap.servers'"),
        (LEAST | {"bootstrap": ""}, "'bootstrap'"),
        (LEAST | {"bootstrap": "h:99999"}, "'bootstrap' is 'h:99999'"),
        (LEAST | {"bootstrap": "h:1,h:1"}, "is named twice"),
        (LEAST | {"bootstrap": "a/b=h:1"}, "names a broker 'a/b'"),
        (LEAST | {"bootstrap": "h:1;i:1"}, "'h:1;i:1' has several addresses and no name: give the replica set one"),
        (LEAST | {"bootstrap": "h:1;east=i:1"}, "names a broker 'h:1;east'"),
        (LEAST | {"bootstrap": "east=h:1;h:1"}, "'h:1' is given twice"),
        (LEAST | {"subscribe": " , "}, "'subscribe' is ' , ': it names no topic"),
        (LEAST | {"subscribePattern": "x"}, "'subscribe' and 'subscribePattern' exclude each other"),
        ({"bootstrap": "h:1", "subscribePattern": "("}, "'subscribePattern' is '(': it is not a regular expression"),
        ({"bootstrap": "h:1", "subscribePattern": " "}, "'subscribePattern' is ' ': it must not be empty"),
        (LEAST | {"startingTimestamp": "5", "endingTimestamp": "4"}, "'startingTimestamp' is after 'endingTimestamp'"),
        (LEAST | {"startingOffsets": "first"}, "'startingOffsets' is 'first'"),
        (LEAST | {"startingOffsets": "{"}, "'startingOffsets' is '{'"),
        (LEAST | {"startingOffsets": "[1]"}, "'startingOffsets' is '[1]'"),
        (LEAST | {"startingOffsets": '{"orders": 5}'}, "instead of offsets by queue"),
        (LEAST | {"startingOffsets": '{"orders": {"x": 5}}'}, "the queue 'x'"),
        (LEAST | {"startingOffsets": '{"orders": {"0": 1.5}}'}, "has 1.5 for queue 0"),
        (LEAST | {"startingOffsets": '{"orders": {"0": true}}'}, "has True for queue 0"),
        (LEAST | {"startingOffsets": '{"orders": {"0": -3}}'}, "has -3 for queue 0"),
        (LEAST | {"startingOffsets": '{"orders": {"0": 9223372036854775808}}'}, "which is not an offset"),
        (LEAST | {"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        (LEAST | {"endingOffsets": "latest", "endingTimestamp": "1"}, "exclude each other"),
        (LEAST | {"endingOffsets": "earliest"}, "nothing would be read"),
        (LEAST | {"startingTimestamp": "2026-11-21T08:00:00"}, "with its zone"),
        (LEAST | {"startingTimestamp": "-5"}, "'startingTimestamp' is '-5'"),
        (LEAST | {"startingTimestamp": "99999999999999999999"}, "'startingTimestamp'"),
        (LEAST | {"maxOffsetsPerTrigger": "0"}, "'maxOffsetsPerTrigger' is '0'"),
        (LEAST | {"maxOffsetsPerTrigger": "1e6"}, "'maxOffsetsPerTrigger' is '1e6'"),
        (LEAST | {"minPartitions": "two"}, "'minPartitions' is 'two'"),
        (LEAST | {"failOnDataLoss": "no"}, "'failOnDataLoss' is 'no': it must be 'true' or 'false'"),
        (LEAST | {"tags": "x" * 5000}, "'tags'"),
        (LEAST | {"key": ""}, "'key' is ''"),
        (LEAST | {"key": "k", "startingOffsets": "earliest"}, "'key' and 'startingOffsets' exclude each other"),
        (LEAST | {"key": "k", "pushFilters": "true"}, "'key' and 'pushFilters' exclude each other"),
        (LEAST | {"timeoutMs": "0"}, "'timeoutMs' is '0'"),
        (LEAST | {"user": "u"}, "user 'u' was given without password"),
        (LEAST | {"user": "u", "password": ""}, "option 'password' is …: it must not be empty"),
        (LEAST | {"user": "u", "password": "p", "passwordFile": "/nowhere"}, "exclude each other"),
    ],
)
def test_errors_name_the_option(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=re.escape(says)):
        read_options(given)


def test_an_option_that_has_no_place_in_a_query_is_refused() -> None:
    refuse(LEAST, ["key"], "is for batch queries")
    with pytest.raises(InvalidOption, match="option 'key' is for batch queries: leave it out"):
        refuse(LEAST | {"KEY": "k"}, ["key"], "is for batch queries")


def test_every_option_has_a_description() -> None:
    assert all(option.meaning for option in READ_OPTIONS)
    assert len({option.name.lower() for option in READ_OPTIONS}) == len(READ_OPTIONS)
