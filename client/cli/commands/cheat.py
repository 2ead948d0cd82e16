"""``flintmq cheat``."""

from __future__ import annotations

import click

from ..command import command
from ..failures import nearest
from ..output import JSON, TABLE, to_json
from ..settings import Settings

EXAMPLES: dict[str, list[tuple[str, str]]] = {
    "send": [
        ("one message", "flintmq send orders 'hello'"),
        ("with a key, a tag and a property", "flintmq send orders -k o-1 -t eu -p source=web '{\"id\": 1}'"),
        ("a message for each line", "cat orders.jsonl | flintmq orders"),
        ("the key in front of each line", "cat pairs.txt | flintmq send orders -K ="),
        ("whole files", "flintmq send images -f a.png -f b.png"),
        ("in order, by customer", "flintmq send orders --sharding-key c-7 'first' 'second'"),
        ("to be delivered in two hours", "flintmq send orders hello --delay 2h"),
        ("what waits to be delivered later", "flintmq delay list"),
    ],
    "read": [
        ("follow, beginning with the last ten", "flintmq orders"),
        ("everything that is there", "flintmq tail orders --from earliest --until latest"),
        ("since this morning, one tag", "flintmq tail orders --from @08:00 --tag eu"),
        ("by what properties say", "flintmq tail orders --filter \"amount >= 5 AND region IN ('eu', 'us')\" -n 10"),
        ("the last quarter of an hour, as JSON", "flintmq tail orders --from @-15m --until latest -o json"),
        ("key, tag and body", "flintmq tail orders --format '%k %t %v\\n'"),
        ("one queue from an offset on", "flintmq pull orders --queue 0 --offset 17 -n 100"),
        ("one body, byte by byte", "flintmq pull images -n 1 --raw --format %v > a.png"),
    ],
    "query": [
        ("by key, newest first", "flintmq query key orders o-1"),
        ("by id", "flintmq query id 7F0000010F8C2DCA0A6B92885F0000AA"),
        ("the first ten stored at a time or later", "flintmq query time orders 2026-11-21T10:00"),
        ("where each queue was an hour ago", "flintmq query time orders --offsets @-1h"),
    ],
    "topic": [
        ("all, with their messages", "flintmq topic list --messages"),
        ("a new one", "flintmq topic create orders --queues 8"),
        ("more queues", "flintmq topic update orders --queues 16"),
        ("no more producing", "flintmq topic update orders --perm r"),
        ("what its queues hold", "flintmq topic status orders"),
        ("delete without being asked", "flintmq topic delete orders --yes"),
    ],
    "group": [
        ("all, with their lag", "flintmq group list"),
        ("members, queues, what is ready, in flight, delayed", "flintmq group status billing"),
        ("stopped: read everything again", "flintmq group reset billing orders --to earliest"),
        ("running: go back two hours", "flintmq group reset billing orders --to @-2h --force"),
        ("what retention took before it was read", "flintmq group moved billing --since -7d"),
        ("forget a group", "flintmq group delete billing --yes"),
    ],
    "dlq": [
        ("which groups have dead letters", "flintmq dlq list"),
        ("the first ten", "flintmq dlq show billing"),
        ("what would be sent again", "flintmq dlq resend billing --dry-run"),
        ("send them again to their topics", "flintmq dlq resend billing"),
        ("to this group alone", "flintmq dlq resend billing --to-group"),
        ("the first hundred", "flintmq dlq resend billing --queue-offset :100"),
        ("drop the rest", "flintmq dlq purge billing --yes"),
    ],
    "offset": [
        ("how far all groups are", "flintmq offset show"),
        ("read everything again", "flintmq offset reset billing orders --to earliest"),
        ("go back two hours", "flintmq offset reset billing orders --to @-2h"),
        ("keep what groups have committed", "flintmq offset export > offsets.jsonl"),
        ("and restore it", "flintmq offset import offsets.jsonl"),
    ],
    "tx": [
        ("what is open or was parked", "flintmq tx list"),
        ("deliver it, nobody else can tell", "flintmq tx commit 7F00000104D2A1B2C3D4000000000001"),
    ],
    "broker": [
        ("how it is", "flintmq status"),
        ("live", "flintmq top"),
        ("for a monitor", "flintmq check --lag-warning 1000 --lag-critical 100000"),
        ("how fast it is", "flintmq bench produce"),
        ("one at a time", "flintmq bench latency -n 1000"),
    ],
    "config": [
        ("all settings, and which can be set now", "flintmq config list"),
        ("what was changed since the start", "flintmq config list --changed"),
        ("one, and what it may be", "flintmq config get retention.file_reserved_hours"),
        ("until the next start (for good: in broker.toml)", "flintmq config set retention.file_reserved_hours=24"),
    ],
    "user": [
        ("the first administrator, where the store is", "flintmq user add ops --admin --generate --store DIR"),
        ("as an administrator: an application", "flintmq user add billing --generate"),
        ("what it may do", "flintmq user grant billing --consume orders --group billing"),
        ("a producer", "flintmq user grant shop --publish orders"),
        ("a monitor", "flintmq user grant monitor --query-broker"),
        ("who there is", "flintmq user list"),
        ("who may do what", "flintmq user show billing"),
        ("as a user, whose password is asked for", "flintmq tail orders --user billing"),
        ("with the password from a file", "flintmq tail orders --user billing --password-file billing.password"),
    ],
    "tls": [
        ("a certificate that this machine trusts", "flintmq status -b mq.example.com:10911 --tls"),
        ("of a CA of your own", "flintmq status -b mq.example.com:10911 --tls-ca ca.pem"),
        ("with a certificate of yours", "flintmq status --tls-ca ca.pem --tls-certificate me.pem --tls-key me.key"),
        ("all of it by a name", "flintmq context add prod mq.example.com:10911 --user billing --tls-ca ca.pem"),
    ],
    "spark": [
        ("the flights of a year into a topic", "flintmq pipeline produce"),
        ("counted by hour into Parquet, with alerts", "flintmq pipeline run --parquet results --once"),
        ("compared with the CSV", "flintmq pipeline verify --parquet results"),
    ],
    "script": [
        ("name brokers and choose one", "flintmq context add prod 10.0.0.5:10911 --use"),
        ("another broker for one command", "flintmq -b 10.0.0.6:10911 status"),
        ("bodies into jq", "flintmq tail orders --from earliest --until latest | jq .id"),
        ("the lag of a group as a number", "flintmq offset show billing -o json | jq -s 'map(.lag) | add'"),
        ("completion of topics", 'eval "$(flintmq completion bash)"'),
    ],
}
"""Subject → what it does, and the line to type."""


@command("cheat")
@click.argument("subject", metavar="[SUBJECT]", default="")
def cheat(settings: Settings, subject: str) -> None:
    """Show examples, all of them or those of one SUBJECT: send, read, query, topic, group, dlq, offset, user, tls, …"""
    if subject and subject not in EXAMPLES:
        known = nearest(subject, EXAMPLES) or f"; there are {', '.join(EXAMPLES)}"
        raise click.UsageError(f"there is no subject {subject!r}{known}", click.get_current_context())
    output = settings.output
    for place, title in enumerate([subject] if subject else EXAMPLES):
        if output.mode == JSON:
            for what, line in EXAMPLES[title]:
                output.write(to_json({"subject": title, "what": what, "line": line}) + "\n")
            continue
        bold, dim, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if output.mode == TABLE and output.colour else ("", "", "")
        output.write("\n" * bool(place) + f"{bold}{title}{end}\n")
        for what, line in EXAMPLES[title]:
            output.write(f"  {dim}# {what}{end}\n  {line}\n")
