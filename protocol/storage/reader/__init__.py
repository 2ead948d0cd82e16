"""A store's CommitLog read as files, without a broker: which files there are, where it ends, where records begin.

Nothing is written, and a broker may have the store open. The Arrow and Spark parts of the client and the broker's tools
read with this package. ``files`` is the only module that touches the file system. Only ``scan`` loads Numba, on first
use. Read first: ``log_files``, then ``log_reader``.
"""
