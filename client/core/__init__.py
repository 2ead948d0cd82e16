"""The client without I/O: what to send, when to try again, what an answer means. No socket, thread or event loop."""
