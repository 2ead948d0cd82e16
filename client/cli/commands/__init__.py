"""One module per command. ``flintmq.client.cli.main`` lists them and imports only the one that is called."""
