"""Names of topics and groups as people read and type them: decoded where ``encode_name`` made them.

The functions are inverse. People see a decoded name only if it breaks RocketMQ's rule and has no white space and no
control characters. So what they see never stands for two names, and what they type is a real name if it is valid.
"""

from __future__ import annotations

from ...protocol.names import is_system_topic, is_valid_name
from ...protocol.storage.delivery import GROUP_TOPIC_PREFIXES, POP_RETRY_SEPARATOR, RETRY_TOPIC_PREFIX
from ..names import NameKind, decode_name, encode_name


def shown_name(name: str) -> str:
    """Return the name to show for a real one: ``orders.v1`` for ``orders%2Ev1``, ``%DLQ%a@b`` for ``%DLQ%a%40b``."""
    prefix, parts = _split(name)
    shown = [_shown_part(part) for part in parts]
    # There the sign separates group and topic.
    if prefix == RETRY_TOPIC_PREFIX and any(POP_RETRY_SEPARATOR in part for part in shown):
        return name
    return prefix + POP_RETRY_SEPARATOR.join(shown)


def real_name(shown: str, kind: NameKind = "topic") -> str:
    """Return the real name for one that a person typed, who may have typed either.

    A name with white space or control characters is returned as it is: it must be a mistake, and the broker refuses it.
    Raises ``InvalidArgument`` if the name is too long once encoded.
    """
    prefix, parts = _split(shown)
    real = [encode_name(part, kind) if _is_for_people(part) else part for part in parts]
    return prefix + POP_RETRY_SEPARATOR.join(real)


def is_called(name: str, text: str) -> bool:
    """Return whether ``text`` is in a name, real or as people see it, in upper or lower case."""
    return text.lower() in name.lower() or text.lower() in shown_name(name).lower()


def is_group_topic(name: str) -> bool:
    """Return whether the topic is a group's retry topic or dead-letter topic."""
    return name.startswith(GROUP_TOPIC_PREFIXES)


def is_own(name: str) -> bool:
    """Return whether the broker created the topic, for itself or for a group."""
    return is_system_topic(name) or is_group_topic(name)


def _is_for_people(name: str) -> bool:
    """Return whether people read and type this name in place of the encoded one."""
    return bool(name) and name.isprintable() and " " not in name and not is_valid_name(name)


def _shown_part(name: str) -> str:
    decoded = decode_name(name)
    return decoded if _is_for_people(decoded) and not decoded.startswith(GROUP_TOPIC_PREFIXES) else name


def _split(name: str) -> tuple[str, list[str]]:
    """Return the prefix of a group's own topic, which is never encoded, and the names that follow it: two in the retry
    topic of a group that pops."""
    prefix = next((prefix for prefix in GROUP_TOPIC_PREFIXES if name.startswith(prefix)), "")
    rest = name[len(prefix) :]
    both = prefix == RETRY_TOPIC_PREFIX and rest.count(POP_RETRY_SEPARATOR) == 1
    return prefix, rest.split(POP_RETRY_SEPARATOR) if both else [rest]
