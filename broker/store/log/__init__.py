"""The CommitLog: appending records, preallocating its files, packing the batches of producers.

Read first: ``commitlog``.
"""
