"""A broker as a member of a replica set: the driver of the core over store, registry and protocol."""
