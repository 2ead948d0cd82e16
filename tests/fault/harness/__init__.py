"""The fault harness: kill real brokers, cut their power or fail their disk calls, then report which messages are
missing. ``README.md`` in this folder says how to run it and how to repeat a round.

It needs only what the broker and its client need, not even pytest: ``scripts/soak/run --rounds`` runs it too.
"""
