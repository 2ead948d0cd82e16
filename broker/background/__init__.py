"""Background work: one thread for each service, and work that the event loop does in small steps.

``Service`` (a thread) and ``LoopWorker`` (a task) have the same face: ``start``, ``wake``, ``stop`` and ``backlog``.
Modules here know the store and the settings, but neither connections nor what delivery does with messages. If a service
or a worker fails, the broker ends. Read first: ``loop_work``, then ``flush``.
"""
