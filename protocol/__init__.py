"""The wire protocol and the record format: bytes in, values out.

Broker and client share this package. It uses no socket, event loop or array library.
The specification for other languages is ``protocol/README.md``.
"""
