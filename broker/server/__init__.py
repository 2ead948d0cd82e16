"""Sockets, connections, and the handlers of the commands. Everything here runs on the event loop."""
