"""Staged transactions, which the protocol calls prepared messages: committed at once, and once only.

``table`` is the state, without I/O; ``service`` changes it and writes a note of each change first or together with it;
``commit_copier`` copies committed messages; ``notes`` has the notes, and ``startup_scan`` replays them.
Read first: ``service``.
"""
