"""Names of topics and groups as people read and type them: decoded where ``encode_name`` made them.

The functions are inverse. People see a decoded name only if it breaks RocketMQ's rule and has no white space and no
control characters. So what they see never stands for two names, and what they type is a real name if it is valid.
"""

from __future__ import annotations

from ...protocol.names import is_system_topic, is_valid_name
from ...protocol.storage.delivery import GROUP_TOPIC_PREFIXES
from ..names import NameKind, decode_name, encode_name


def shown_name(name: str) -> str:
    """Return the name to show for a real one: ``orders.v1`` for ``orders%2Ev1``, ``%DLQ%a@b`` for ``%DLQ%a%40b``."""
    if "%" not in name:
        return name
    prefix, rest = _split(name)
    decoded = decode_name(rest)
    return prefix + decoded if _is_for_people(decoded) and not decoded.startswith(GROUP_TOPIC_PREFIXES) else name


def real_name(shown: str, kind: NameKind = "topic") -> str:
    """Return the real name for one that a person typed, who may have typed either.

    A name with white space or control characters is returned as it is: it must be a mistake, and the broker refuses it.
    Raises ``InvalidArgument`` if the name is too long once encoded.
    """
    prefix, rest = _split(shown)
    return prefix + encode_name(rest, kind) if _is_for_people(rest) else shown


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


def _split(name: str) -> tuple[str, str]:
    """Return the prefix of a group's own topic, which is never encoded, and the remaining name."""
    prefix = next((prefix for prefix in GROUP_TOPIC_PREFIXES if name.startswith(prefix)), "")
    return prefix, name[len(prefix) :]
