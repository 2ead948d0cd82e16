"""The registry of replica sets: keeps each set's configuration and the lease of its primary, outside of the brokers.

``interface`` says what a registry does, ``etcd`` does it with etcd's HTTP gateway. Only a broker of a replica set
imports ``etcd``: it needs the extra ``replication``.
"""
