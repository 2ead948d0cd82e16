"""The wire protocol and the record format: bytes in, values out.

Nothing here knows a socket, a file, an event loop or an array library; broker and client both stand on it.
The specification for other languages is ``protocol/README.md``.
"""
