"""The record's format in NumPy arrays: what the broker's kernels and ``storage.reader`` share.

Only these two import it: everything else in ``protocol``, and the rest of the client, works without NumPy and Numba.
Read first: ``record_parts``.

====================  ===================================================================================
``jit``               how kernels are compiled, and the cache of the compiled code
``kernel_caches``     where that cache is; needs no Numba
``kernel_locator``    where a kernel is in it
``words``             big-endian loads and stores, the only module that depends on the machine's byte order
``octets``            search and comparison of bytes
``crc32``             CRC-32, sixteen bytes a step
``record_parts``      where a record's parts and the values of its properties are
``record_positions``  the same for many records at once, with NumPy alone
====================  ===================================================================================
"""
