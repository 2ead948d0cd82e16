"""The writer of the archive: it copies the confirmed and flushed log into a bucket or folder, in the background.

``protocol.storage.archive`` has the format. ``cutter`` decides which bytes make the next fragment and derives its
index, ``lineage`` knows the archive's manifest and changes it, ``merge`` makes few fragments of many small ones,
``key_runs`` few runs of keys, ``leftovers`` says what is no longer needed, and ``uploader`` is the service that drives
them. ``reads`` answers clients from the archive.
"""

STARTING, RUNNING, UNAVAILABLE, STOPPED = ARCHIVE_STATES = ("starting", "running", "unavailable", "stopped")
"""States of the writer: nothing was asked yet; it works; the bucket does not, and is tried again; a person has to
decide."""
