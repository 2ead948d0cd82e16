"""Administration: groups, transactions, delayed messages, users and settings as an operator sees and changes them.

Each module has the result types of one subject and its operations, which are the methods of both clients; no module
imports another. A request that producers or readers send too belongs to their rooms or to ``core.topics``. Read first:
``groups``.
"""
