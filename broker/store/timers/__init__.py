"""RocketMQ's timer files: which timed messages are due, and how far they have been delivered.

Read first: ``timer_files``.
"""
