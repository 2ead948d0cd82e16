"""The commands ``flintmq context``, ``flintmq cheat`` and ``flintmq completion``."""

from __future__ import annotations

import click

from ....protocol.display import JSON, TABLE
from ..command import CliGroup, command, note, pass_settings
from ..contexts import OPTIONS, Contexts
from ..failures import nearest
from ..output import TableColumn
from ..params import CONTEXT
from ..settings import BrokerChoice

# ---- The command ``flintmq context``.

COLUMNS = (
    TableColumn("current", "", lambda current: "*" if current else ""),
    TableColumn("context", "CONTEXT"),
    TableColumn("broker", "BROKER"),
    TableColumn("user", "USER"),
    TableColumn("tls", "TLS", lambda tls: "yes" if tls else ""),
)
DATA_COLUMNS = (*COLUMNS, *(TableColumn(key, key) for key in OPTIONS if key not in ("user", "tls")))


@click.group(cls=CliGroup)
def context() -> None:
    """Save brokers under names, with user and TLS options, and choose one.

    Contexts are stored in $XDG_CONFIG_HOME/flintmq/contexts.toml, or in ~/.config/flintmq/contexts.toml.
    FLINTMQ_BROKER, --context and --broker override the context in use. The options of a context apply only to its own
    broker.
    """


@context.command("add")
@pass_settings
@click.argument("name")
@click.argument("address", metavar="HOST:PORT")
@click.option("--use", is_flag=True, help="Make it the context in use.")
def add(settings: BrokerChoice, name: str, address: str, use: bool) -> None:
    """Save the address of a broker, or several (a:1,b:2), under a name. The first context is used at once.

    The context also saves these options if they are given: --user, --password-file, --tls, --tls-ca,
    --tls-certificate, --tls-key, --timeout and --output. It never saves a password, only the path of a file that no
    other user can read.

    \b
        flintmq context add prod mq.example.com:10911 --user billing --password-file ~/.billing --tls-ca ca.pem
    """
    contexts = Contexts.load()
    given = {key: getattr(settings, "mode" if key == "output" else key) for key in OPTIONS}
    contexts.add(name, address, {key: value for key, value in given.items() if value is not None})
    if use or not contexts.current:
        contexts.current = name
    contexts.save()
    in_use = ", in use" if contexts.current == name else ""
    note(settings, f"context {name} is {contexts.brokers[name]}{in_use} ({contexts.path})")


@context.command("use")
@pass_settings
@click.argument("name", type=CONTEXT)
def use(settings: BrokerChoice, name: str) -> None:
    """Make a context the one in use."""
    contexts = Contexts.load()
    broker = contexts.broker_of(name)
    contexts.current = name
    contexts.save()
    note(settings, f"context {name} is now in use: {broker}")


@context.command("list")
@pass_settings
def list_contexts(settings: BrokerChoice) -> None:
    """List the contexts; * marks the one in use."""
    contexts = Contexts.load()
    settings.output.rows(
        COLUMNS if settings.output.mode == TABLE else DATA_COLUMNS,
        (
            {
                "current": name == contexts.current,
                "context": name,
                "broker": broker,
                **{key: options.get(key) for key in OPTIONS},
                "user": options.get("user", ""),
                "tls": any(key.startswith("tls") for key in options),
            }
            for name, broker in sorted(contexts.brokers.items())
            for options in (contexts.options.get(name, {}),)
        ),
        empty="there are no contexts; flintmq context add NAME HOST:PORT adds one",
    )


@context.command("remove")
@pass_settings
@click.argument("name", type=CONTEXT)
def remove(settings: BrokerChoice, name: str) -> None:
    """Remove a context."""
    contexts = Contexts.load()
    contexts.remove(name)
    contexts.save()
    note(settings, f"removed context {name}")


# ---- The command ``flintmq cheat``.

EXAMPLES: dict[str, list[tuple[str, str]]] = {
    "send": [
        ("one message", "flintmq send orders 'hello'"),
        ("with a key, a tag and a property", "flintmq send orders -k o-1 -t eu -p source=web '{\"id\": 1}'"),
        ("one message per line", "cat orders.jsonl | flintmq send orders"),
        ("with the key at the start of each line", "cat pairs.txt | flintmq send orders -K ="),
        ("whole files", "flintmq send images -f a.png -f b.png"),
        ("in order for each customer", "flintmq send orders --sharding-key c-7 'first' 'second'"),
        ("to be delivered in two hours", "flintmq send orders hello --delay 2h"),
        ("show the messages waiting for later delivery", "flintmq delay list"),
    ],
    "read": [
        ("follow the topic, starting with the last ten", "flintmq tail orders"),
        ("all stored messages", "flintmq tail orders --from earliest --until latest"),
        ("since 8 this morning, one tag", "flintmq tail orders --from @08:00 --tag eu"),
        ("filtered by properties", "flintmq tail orders --filter \"amount >= 5 AND region IN ('eu', 'us')\" -n 10"),
        ("the last quarter of an hour, as JSON", "flintmq tail orders --from @-15m --until latest -o json"),
        ("key, tag and body", "flintmq tail orders --format '%k %t %v\\n'"),
        ("one queue, starting at an offset", "flintmq pull orders --queue 0 --offset 17 -n 100"),
        ("one body, byte by byte", "flintmq pull images -n 1 --raw --format %v > a.png"),
    ],
    "query": [
        ("by key, newest first", "flintmq query key orders o-1"),
        ("by id", "flintmq query id 7F0000010F8C2DCA0A6B92885F0000AA"),
        ("the first ten stored at a time or later", "flintmq query time orders 2026-11-21T10:00"),
        ("the offset of each queue an hour ago", "flintmq query time orders --offsets @-1h"),
    ],
    "topic": [
        ("all topics, with their message counts", "flintmq topic list --messages"),
        ("a new topic", "flintmq topic create orders --queues 8"),
        ("more queues", "flintmq topic update orders --queues 16"),
        ("allow no more sending", "flintmq topic update orders --perm r"),
        ("the contents of each queue", "flintmq topic status orders"),
        ("delete without confirmation", "flintmq topic delete orders --yes"),
    ],
    "group": [
        ("all groups, with their lag", "flintmq group list"),
        ("members and queues; ready, in flight, delayed messages", "flintmq group status billing"),
        ("stopped group: read everything again", "flintmq group reset billing orders --to earliest"),
        ("running group: go back two hours", "flintmq group reset billing orders --to @-2h --force"),
        ("messages that retention deleted before they were read", "flintmq group moved billing --since -7d"),
        ("delete a group", "flintmq group delete billing --yes"),
    ],
    "dlq": [
        ("the groups that have dead letters", "flintmq dlq list"),
        ("the first ten dead letters", "flintmq dlq show billing"),
        ("show what would be sent again", "flintmq dlq resend billing --dry-run"),
        ("send them again to their topics", "flintmq dlq resend billing"),
        ("send them to this group only", "flintmq dlq resend billing --to-group"),
        ("send only the first hundred", "flintmq dlq resend billing --queue-offset :100"),
        ("mark the rest as dealt with", "flintmq dlq purge billing --yes"),
    ],
    "offset": [
        ("committed offsets of all groups", "flintmq offset show"),
        ("read everything again", "flintmq offset reset billing orders --to earliest"),
        ("go back two hours", "flintmq offset reset billing orders --to @-2h"),
        ("save the committed offsets", "flintmq offset export > offsets.jsonl"),
        ("restore them", "flintmq offset import offsets.jsonl"),
    ],
    "tx": [
        ("open and parked transactions", "flintmq tx list"),
        ("commit one in place of its producer", "flintmq tx commit 7F00000104D2A1B2C3D4000000000001"),
    ],
    "broker": [
        ("state of the broker", "flintmq status"),
        ("live view", "flintmq top"),
        ("a page in the browser", "flintmq console"),
        ("a broker and its page, to try both", "flintmq dev"),
        ("for a monitor", "flintmq check --lag-warning 1000 --lag-critical 100000"),
        ("measure throughput", "flintmq bench produce"),
        ("measure latency, one message at a time", "flintmq bench latency -n 1000"),
    ],
    "config": [
        ("all settings, and which can be changed now", "flintmq config list"),
        ("settings changed since the start", "flintmq config list --changed"),
        ("one setting, and its allowed values", "flintmq config get retention.file_reserved_hours"),
        (
            "change until the next start (permanently: broker.toml)",
            "flintmq config set retention.file_reserved_hours=24",
        ),
    ],
    "user": [
        ("the first administrator, on the broker's machine", "flintmq user add ops --admin --generate --store DIR"),
        ("as an administrator: add an application", "flintmq user add billing --generate"),
        ("let it consume", "flintmq user grant billing --consume orders --group billing"),
        ("let a producer send", "flintmq user grant shop --publish orders"),
        ("let a monitor read the figures", "flintmq user grant monitor --query-broker"),
        ("all users", "flintmq user list"),
        ("the permissions of a user", "flintmq user show billing"),
        ("as a user; prompts for the password", "flintmq tail orders --user billing"),
        ("with the password from a file", "flintmq tail orders --user billing --password-file billing.password"),
    ],
    "tls": [
        ("the broker's certificate is trusted by this machine", "flintmq status -b mq.example.com:10911 --tls"),
        ("the certificate is from your own CA", "flintmq status -b mq.example.com:10911 --tls-ca ca.pem"),
        ("with a client certificate", "flintmq status --tls-ca ca.pem --tls-certificate me.pem --tls-key me.key"),
        ("save all of it under a name", "flintmq context add prod mq.example.com:10911 --user billing --tls-ca ca.pem"),
    ],
    "script": [
        ("name brokers and choose one", "flintmq context add prod 10.0.0.5:10911 --use"),
        ("another broker for one command", "flintmq -b 10.0.0.6:10911 status"),
        ("pipe bodies into jq", "flintmq tail orders --from earliest --until latest | jq .id"),
        ("the lag of a group as a number", "flintmq offset show billing -o json | jq -s 'map(.lag) | add'"),
        ("completion of commands and topics", 'eval "$(flintmq completion bash)"'),
    ],
}
"""Examples by subject: what each does, and the line to type."""


@command("cheat")
@click.argument("subject", metavar="[SUBJECT]", default="")
def cheat(settings: BrokerChoice, subject: str) -> None:
    """Show examples: all, or those of one SUBJECT (send, read, query, topic, group, dlq, offset, user, tls, …)."""
    if subject and subject not in EXAMPLES:
        known = nearest(subject, EXAMPLES) or f"; the subjects are {', '.join(EXAMPLES)}"
        raise click.UsageError(f"there is no subject {subject!r}{known}", click.get_current_context())
    output = settings.output
    for place, title in enumerate([subject] if subject else EXAMPLES):
        if output.mode == JSON:
            for what, line in EXAMPLES[title]:
                output.json({"subject": title, "what": what, "line": line})
            continue
        bold, dim, end = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if output.mode == TABLE and output.colour else ("", "", "")
        output.write("\n" * bool(place) + f"{bold}{title}{end}\n")
        for what, line in EXAMPLES[title]:
            output.write(f"  {dim}# {what}{end}\n  {line}\n")


# ---- The command ``flintmq completion``.

LINES = {
    "bash": ('eval "$({variable}=bash_source {program})"', "~/.bashrc"),
    "zsh": ('eval "$({variable}=zsh_source {program})"', "~/.zshrc"),
    "fish": ("{variable}=fish_source {program} | source", "~/.config/fish/completions/{program}.fish"),
}
PROGRAMS = ("flintmq", "flintmq-broker")
"""Programs with completion; the second one exists only if the ``broker`` extra is installed."""


@command("completion")
@click.argument("shell", type=click.Choice(list(LINES)))
def completion(settings: BrokerChoice, shell: str) -> None:
    """Print the lines that switch on completion in SHELL.

    Completion covers commands, options, and the broker's topics, groups and settings. The second line is for
    flintmq-broker.
    """
    line, file = LINES[shell]
    for program in PROGRAMS:
        variable = f"_{program.upper().replace('-', '_')}_COMPLETE"
        made = line.format(program=program, variable=variable)
        settings.output.write(f"# {program}: add this line to {file.format(program=program)}\n{made}\n")
