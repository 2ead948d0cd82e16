"""Users: SCRAM, permissions, and the file that both the broker and the command line write.

Read first: ``users``, then ``permissions``. The broker's part (who may try when, audit) is in ``broker/security``.

SCRAM is our own code (``scram``), not the library scramp 1.5.0. The library is well kept and compares in constant time,
but its client derives the keys again at every login, which takes milliseconds (ours caches them); it accepts up to
10,000,000 iterations from a server (seconds of CPU time; here 1,000,000), messages of any length, and several encodings
of the same bytes; and every client would need asn1crypto, last released in 2022. A wrapper that adds these checks would
save little.
"""
