"""The broker: store, background services and server, started by ``flintmq-broker serve`` (``broker/app/daemon.py``)."""
