"""A list of messages as the command line and as Python, for people who want to continue there."""

from __future__ import annotations

import shlex

from ..visit import Visit


def as_command(visit: Visit, topic: str) -> str:
    """Return the ``flintmq`` command that prints what the list shows."""
    words = ["flintmq", "-b", visit.console.options.broker]
    if key := visit.text("key"):
        return " ".join(map(quoted, [*words, "query", "key", topic, key]))
    words += ["pull", topic, "--from", _position(visit)]
    for option, name in (("--queue", "queue"), ("--tag", "tag"), ("--filter", "filter")):
        if value := visit.text(name):
            words += [option, value]
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Return a word for a shell. Control characters are escaped: a terminal would act on them when they are pasted."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        each if each.isprintable() and each not in "\\'" else "".join(f"\\{byte:03o}" for byte in each.encode())
        for each in word
    )
    return f"$'{''.join(escaped)}'"


def as_python(visit: Visit, topic: str) -> str:
    """Return the Python lines that print what the list shows."""
    arguments = [repr(topic)]
    if key := visit.text("key"):
        call = f"consumer.query({topic!r}, {key!r})"
    else:
        for name, argument in (("queue", "queue"), ("at", "physical")):
            if visit.text(name):
                arguments.append(f"{argument}={visit.text(name)}")
        for name, argument in (("tag", "tags"), ("filter", "filter")):
            if value := visit.text(name):
                arguments.append(f"{argument}={value!r}")
        call = f"consumer.browse({', '.join(arguments)})"
    return (
        "from flintmq.client import Consumer\n"
        f"with Consumer({visit.console.options.broker!r}) as consumer:\n"
        f"    for message in {call}:\n"
        "        print(message.stored_at, message.keys, message.body)"
    )


def _position(visit: Visit) -> str:
    words = visit.text("from")
    return f"-{visit.text('count') or 50}" if words in ("", "newest") else words
