"""The archive: a log's history as objects of a bucket or folder, in a format that others can read.

::

    archive.json                            the archive's identity; written once
    log/EPOCH/START-END-RAND.log            a fragment: whole records of the CommitLog, verbatim
    log/EPOCH/START-END-RAND.idx            its index: frames, ConsumeQueue units, keys
    keys/LEVEL/START-END-RAND-PART.run      the keys of many fragments, sorted
    groups/FIRST-LAST-RAND.mft              1,024 entries of the manifest each, immutable
    manifest/VERSION.mft                    the list of everything that counts; a new version for each change
    manifest/LATEST                         a copy of the newest version, or of the one before it
    tables/START/NAME                       topics, groups, offsets and delays at a position of the log

An object that no version of the manifest names does not count: it is what a writer that was killed left behind.

==============  ========================================================================================
``objects``     create, put, get, range, list and delete objects of a bucket or folder
``errors``      what can be wrong with an archive
``keys``        the 64-bit hash of a key, and sorted runs of (hash, position)
``fragment``    fragments: names, frames, index; encode and decode
``manifest``    the manifest, its entries and groups, ``archive.json``; encode and decode
``tables``      topics, groups, offsets and delays beside the log; encode and decode
==============  ========================================================================================
"""
