"""Every command: its code, its typed request and response, the rows that it returns, what a user needs for it, and who
answers it in a replica set, in one table (``COMMANDS``).

The fields and columns describe themselves; the tables of ``protocol/README.md`` are made of them. A module holds the
commands of one subject; its names are used as ``commands.PULL``, so no two modules may define the same one. Read first:
``common``, then ``messages``.
"""

from __future__ import annotations

# ruff: noqa: F403 - every public name of these modules belongs to the protocol; listing them here would repeat them
from .admin import *
from .archive import *
from .common import *
from .common import Command
from .groups import *
from .messages import *
from .transactions import *

DEFAULT_PORT = 10911

for _name, _value in list(globals().items()):
    if isinstance(_value, Command):
        _value.name = _name
