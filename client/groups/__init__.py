"""Clients that belong to a group: push consumers and transactional producers.

Both keep a connection of their own, over which the broker can ask them or give them queues, and one thread that serves
it with the synchronous driver; their shells exist for threads and for asyncio. What an application uses without a group
belongs to ``sync`` and ``aio``. Read first: ``connection_thread``, then
``push.group_client`` and ``transactions.registration``.
"""
