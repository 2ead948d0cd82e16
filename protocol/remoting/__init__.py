"""RocketMQ's remoting protocol without I/O: frames, codes, and the JSON that its clients write and read.

The broker's gateway (``broker/remoting``) serves it; ``broker/migration`` speaks it to a RocketMQ master. It may import
only ``errors`` and ``frames``. Read ``command.py`` first.
"""
