"""Delayed and timed messages: finding what is due and storing it again in its own topic.

``delivery`` reads waiting messages and writes their copies, also for commits of staged transactions. ``delay_levels``
and ``timers`` are the jobs that find due messages; ``worker`` runs them on the event loop and saves their progress.
Read first: ``delivery``.
"""
