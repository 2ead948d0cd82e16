"""Security: users and their authentication, permissions, TLS and the audit log.

What both sides of a connection know (SCRAM's messages, permissions, the file of users) is in ``protocol.auth``; what
only the broker decides is here. Read first: ``access``, which answers whether a user may do something.
"""
