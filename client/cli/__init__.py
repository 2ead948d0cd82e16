"""The command ``flintmq``: messages, topics, offsets and the broker's condition. See ``client/cli/README.md``.

A command's module is imported when the command is called, and rich when a table or a live screen is drawn: ``--help``
and completion have to be instant.
"""
