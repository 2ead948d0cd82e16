"""The sync client: sockets and threads around ``flintmq.client.core``."""
