"""The remoting gateway: serves RocketMQ's own clients, by its remoting protocol, from the same store and groups.

A connection is a ``ClientConnection`` with another parser; a handler translates one request into calls of the services
that FlintMQ's own handlers use. Below this package only ``protocol.remoting``, which has the frames, knows RocketMQ's
protocol. Read ``connection.py`` first, then ``registry.py``, the table of requests.
"""
