"""Security: users and their authentication, permissions, TLS and the audit log.

The parts that clients need too (SCRAM's messages, permissions, the file of users) are in ``protocol.auth``; what
only the broker decides belongs here. Read first: ``access``, which answers whether a user may do something.
"""
