"""The registry of replica sets: keeps each set's configuration and the lease of its primary, outside of the brokers.

``interface`` says what a registry does, ``etcd`` does it with etcd's HTTP gateway. From the bottom: ``errors``;
``interface``; ``config_json``, the configuration as etcd stores it; ``http_exchange``, one HTTP request; ``gateway``,
requests to a cluster of endpoints; ``etcd``, whose ``EtcdRegistry`` a driver uses. Only a broker of a replica set
imports ``etcd``: it needs the extra ``replication``.
"""
