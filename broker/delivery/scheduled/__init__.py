"""Delayed and timed messages: finding what is due and storing it again in its own topic.

``worker`` runs the others in small steps on the event loop. Read first: ``redelivery``.
"""
