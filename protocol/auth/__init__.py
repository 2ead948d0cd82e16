"""Users: SCRAM, permissions, and the file that both the broker and the command line write.

Read first: ``users``, then ``permissions``. The broker's part (who may try when, audit) is in ``broker/security``.

SCRAM is our own code (``scram``), not the library scramp 1.5.0. That one is well kept and compares in constant time, but
its client cannot cache derived keys, which a client that reconnects to many brokers needs; it accepts up to 10,000,000
iterations from a server (seconds of CPU time; here 1,000,000), messages of any length and several encodings of the same
bytes; and it needs asn1crypto, last released in 2022, in every client. The wrapper for all this would be nearly as long.
"""
