"""The replication core: the state machine of one member of a replica set, without I/O, threads or clocks.

A driver calls a ``Replica`` with what happened and the time, takes the actions that it asks for, and carries them out
in order. The core knows offsets only, never bytes. Each rule that keeps messages safe is a method of ``rules.Rules``,
so that the tests of the simulator can break one at a time. Nothing outside the standard library may enter.
"""
