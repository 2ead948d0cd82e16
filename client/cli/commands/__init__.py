"""One module a command. ``flintmq.client.cli.main`` lists them and imports the one that is called."""
