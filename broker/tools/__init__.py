"""Tools for a store that no broker has open: verify, rebuild, dump, stat.

All but ``rebuild`` open every file for reading only and map it privately: they cannot change a store. Nothing here is
imported by a broker that serves.
"""
