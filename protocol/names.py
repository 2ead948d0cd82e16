"""Rules for the names of topics and groups, and the names that are the broker's own."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from .errors import InvalidParameter, NoPermission
from .storage.layout import GROUP_BYTES_MAX, TOPIC_BYTES_MAX

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

_POP_RETRY = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+\Z")
"""A retry topic of a group that pops, the only name with a plus sign."""

_FOREIGN = re.compile(r"[^%|a-zA-Z0-9_-]+")

_LEADS_AWAY = re.compile("[/\0\ud800-\udfff]")

SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""Topics that a RocketMQ broker makes for itself (``TopicValidator``)."""

PRODUCE_FORBIDDEN_TOPICS = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""Topics that producers may not write to (``TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET``), besides ``rmq_sys_*``."""

SYSTEM_TOPIC_PREFIX = "rmq_sys_"


SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
"""Prefix of the groups under which a broker stores its own progress."""


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is a valid name of a topic (``kind="topic"``) or group. Raises ``InvalidParameter``."""
    if fault := name_fault(kind, name):
        shown = repr(name) if len(name) <= GROUP_BYTES_MAX else f"{name[:40]!r}…"
        raise InvalidParameter(f"{kind} {shown} {fault}" if name else f"the {kind} name {fault}")
    return name


def name_fault(kind: str, name: str) -> str:
    """Return why ``name`` is not a valid topic (``kind="topic"``) or group name, as a predicate; empty if it is."""
    longest = TOPIC_BYTES_MAX if kind == "topic" else GROUP_BYTES_MAX
    if not name:
        return f"is empty; give it a name of 1 to {longest} characters"
    if len(name) > longest:
        return f"has {len(name)} characters; at most {longest} are allowed"
    if not is_valid_name(name) and not (kind == "topic" and _POP_RETRY.match(name)):
        return f"has characters that are not allowed; {_use_instead(name)}"
    return ""


def is_valid_name(name: str) -> bool:
    """Return whether ``name`` has only characters that RocketMQ's rule allows, and at least one."""
    return _NAME.match(name) is not None


def _use_instead(name: str) -> str:
    """Return the allowed characters and three suggestions for ``name``. Names with dots are common elsewhere."""
    rule = "use % | a-z A-Z 0-9 _ -"
    encode = "encode_name of flintmq.client makes a valid name of any"
    with_dashes, with_underscores = (_FOREIGN.sub(sign, name).strip("-_") for sign in "-_")
    if not with_dashes:
        return f"{rule}; {encode}"
    return f"{rule}: {with_dashes!r} or {with_underscores!r}, for instance; {encode}"


def is_folder_name(name: str) -> bool:
    """Return whether a topic found on disk is safe as a folder name: it cannot lead elsewhere. ``check_name`` is
    stricter, for names that come from clients."""
    return name not in ("", ".", "..") and len(name.encode(errors="replace")) <= 255 and not _LEADS_AWAY.search(name)


def check_client_group(name: str) -> str:
    """Return ``name`` if clients may use it for a group. Raises ``NoPermission`` for the broker's own groups."""
    if name.startswith(SYSTEM_GROUP_PREFIX):
        raise NoPermission(f"group {name[:GROUP_BYTES_MAX]} is reserved for the broker; use another name")
    return check_name("group", name)


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is the broker's own: a user cannot delete, change or auto-create it."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def may_produce_to(topic: str) -> bool:
    """Return whether a producer may write to the topic directly."""
    return topic not in PRODUCE_FORBIDDEN_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIX)


# ---- Hosts: the network that counts as one visitor, and the check of the Host header against DNS rebinding.
#
# A web page can make its own host name resolve to this machine, and its script could then read what the port
# serves. But the browser still sends that name as Host, so a server refuses requests for names that are not
# its own.

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^:\[\]]+))(?::[0-9]{1,5})?\Z")


IPV6_PREFIX = 64
"""Length of the IPv6 prefix that counts as one address: one client usually controls the whole network."""


def network_of(host: str) -> str:
    """Return what counts as one address: an IPv4 address, the network of an IPv6 address, or any other text itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))
        address = address.ipv4_mapped
    return str(address)


class AllowedHosts:
    """Names under which a port may be requested: loopback, the address of the connection, and ``names``."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"localhost", *(name.strip().lower() for name in names if name.strip())}

    def allows(self, header: str, local_address: str) -> bool:
        """Return whether a Host header names this server. ``local_address``: the address that the request reached."""
        match = _HOST.match(header)
        if match is None:
            return False
        host = (match[1] or match[2]).lower().rstrip(".")
        if host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
            local = ipaddress.ip_address(local_address.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or address == local or address == getattr(local, "ipv4_mapped", None)
