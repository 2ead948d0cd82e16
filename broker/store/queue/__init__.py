"""ConsumeQueues: their files, the table of all queues, and the check of their units.

Read first: ``consume_queue``.
"""
