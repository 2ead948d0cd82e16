"""The handlers of the commands, by subject. A handler gets the connection that a request came from, and its frame."""
