"""Files: the seam to the operating system, mapped and pooled files, JSON tables and their journals, the lock.

Every system call of the store goes through ``file_system``, so that tests can fail or forget it. A module here knows
no message. Read first: ``file_system``, then ``mapped_file``.
"""
