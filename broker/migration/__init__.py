"""Live migration from Apache RocketMQ: a tool process follows a master as its slave, until FlintMQ takes over.

Read first: ``follower``, the run; then ``ha_codec`` and ``remoting_client``, the master's two protocols.
"""
