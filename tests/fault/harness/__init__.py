"""The fault harness: real brokers that are killed, lose their power or get errors from their disk, and who finds what
is missing afterwards. ``README.md`` beside this says how to run it and how to repeat a round.

Needs nothing that the broker and its client do not need, no pytest either: ``scripts/soak --rounds`` runs it too.
"""
