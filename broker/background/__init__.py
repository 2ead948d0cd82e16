"""Background work: one thread for each service, and work that the event loop does in small steps.

A service has ``start``, ``wake``, ``do_once``, ``stop`` and ``behind``. Read first: ``service``, then ``flush``.
"""
