"""Replication: a set of brokers keeps one log, one of them leads, and no acknowledged message is lost with a machine.

``docs/replication.md`` has the rules. ``core`` holds them as code that does no I/O: its inputs are messages, times and
answers of disk and registry, its outputs are actions. ``registry`` keeps configuration and lease of a set in etcd.
``member`` drives the core in a broker. Read first: ``core.rules``, then ``core.replica``.
"""
