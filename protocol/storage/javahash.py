"""Java's ``String.hashCode``, from which RocketMQ computes tag codes and index keys."""

from __future__ import annotations

import encodings.utf_16_be  # noqa: F401 - now, because at the first message file descriptors may be exhausted


def java_hash(text: str) -> int:
    """Return the signed 32-bit hash over the UTF-16 code units: ``h = 31 * h + unit``."""
    value = 0
    if text.isascii():  # a fast path: a pull may name hundreds of tags
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tags_code(tags: str | None) -> int:
    """Return the tag code for a ConsumeQueue unit: the hash of TAGS, 0 without tags."""
    return java_hash(tags) if tags else 0


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash of a key for an IndexFile entry: ``index_hash(hashCode(topic#key))``."""
    return index_hash(java_hash(f"{topic}#{key}"))


def index_hash(value: int) -> int:
    """Return the form of a hash in an IndexFile entry: its absolute value, 0 for the smallest integer."""
    value = abs(value)
    return 0 if value == 0x8000_0000 else value
