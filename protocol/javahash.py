"""Java's ``String.hashCode``, which RocketMQ's tag codes and index keys are made of."""

from __future__ import annotations

import encodings.utf_16_be  # noqa: F401 - here, not at the first message: then a descriptor may be lacking


def java_hash(text: str) -> int:
    """Signed 32-bit hash over the UTF-16 code units: ``h = 31 * h + unit``."""
    value = 0
    if text.isascii():  # a pull may name hundreds of tags
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def tags_code(tags: str | None) -> int:
    """What a ConsumeQueue unit keeps of TAGS: 0 without tags."""
    return java_hash(tags) if tags else 0


def index_key_hash(topic: str, key: str) -> int:
    """What an IndexFile entry keeps of a key: ``index_hash(hashCode(topic#key))``."""
    return index_hash(java_hash(f"{topic}#{key}"))


def index_hash(value: int) -> int:
    """Return what an IndexFile entry keeps of a hash: its absolute value, 0 for the smallest integer."""
    value = abs(value)
    return 0 if value == 0x8000_0000 else value
