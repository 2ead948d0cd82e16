"""Offline tools for a store: verify, repair, rebuild, dump, stat, backup, restore.

The tools that only read open every file read-only and map it privately, so that they cannot change a store. A serving
broker imports nothing from here.
"""
