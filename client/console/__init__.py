"""The console: a page in the browser for operators, served by a process of its own that is a client of the broker.

Every person logs in as a user of the broker, and the broker decides what they may see and do; the console stores
nothing. Pages are rendered on the server. Read first: ``app``, then ``pages/messages``.
"""
