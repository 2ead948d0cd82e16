"""Recovery: what a start does until log, queues, index and tables agree, damage included.

Read first: ``recovery``, which calls the others in order.
"""
