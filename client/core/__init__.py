"""The client without I/O: what to send, when to retry, what a response means.

``rpc`` is the conversation on one connection, ``produce`` the way of a message to its receipt, ``consume`` the way from
a position to stored messages, ``admin`` what an operator sees and changes. Time is passed in; a module that needs a
socket, a thread or an event loop belongs to a driver (``sync``, ``aio``). Read first: ``rpc.operation``.
"""
