"""The client without I/O: what to send, when to retry, what a response means. No sockets, threads or event loops."""
