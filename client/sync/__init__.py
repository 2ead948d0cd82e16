"""The synchronous client: sockets and threads around ``flintmq.client.core``."""
