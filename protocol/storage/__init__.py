"""The store's format: layouts, records, checksums, ids, names of properties. Bytes in, values out.

The broker, the client and the tools take every offset and size from here. Read first: ``layout``.
"""
