"""The soak test: producers and followers whose loops are blocked, with a broker that stops and restarts.

Started by ``scripts/soak/run``; ``groups`` is the one for consumer groups, ``rounds`` runs the fault harness.
"""
