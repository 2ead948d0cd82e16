"""The objects of an archive: six verbs over a bucket (by obstore) or a folder.

A name is relative to the archive's URL, as in ``log/7/0-67108864-5f.log``. All methods may be called from any thread.
Credentials come from the environment, a file that it names, or the cloud's own identity, never from the URL.
"""

from __future__ import annotations

import configparser
import contextlib
import errno
import hashlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar
from urllib.parse import unquote, urlsplit

from ...errors import ConfigurationError
from ...store_files import FILE_MODE, FOLDER_MODE
from .errors import ArchiveError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

# ---- errors; each says which verb failed, on which object, why, and what to do next


class ObjectError(ArchiveError):
    """A verb on an object of an archive failed."""

    retriable: ClassVar[bool] = False


class ObjectNotFound(ObjectError):
    """There is no object with the name, or the bucket does not exist."""


class ObjectExists(ObjectError):
    """A create-only put found an object of other content under the name: another writer was first."""


class ObjectCutShort(ObjectError):
    """An object ends before the range that was asked for."""


class ObjectStoreRefused(ObjectError):
    """The object store refuses these credentials, or what they ask for."""


class ObjectStoreUnavailable(ObjectError):
    """The object store did not answer as it should until the deadline."""

    retriable: ClassVar[bool] = True


class ConditionsIgnored(ObjectError):
    """The object store overwrites objects that were to be created only: two writers would not notice each other."""


class InvalidArchiveURL(ConfigurationError, ObjectError):
    """The URL of an archive is malformed, of an unknown kind, or has parts that do not belong there."""


class ArchiveExtraMissing(ConfigurationError, ObjectError):
    """obstore is not installed."""


# ---- what an archive is

IDENTITY = "archive.json"
"""Object with the identity of an archive, which its writer creates first."""
_BUCKET = re.compile(r"(?!file:)[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_archive(path: str) -> bool:
    """Return whether a path names an archive: the URL of a bucket, or a folder with ``archive.json``."""
    return _BUCKET.match(path) is not None or (Path(path.removeprefix("file://")) / IDENTITY).is_file()


# ---- the six verbs

VERBS = ("create", "put", "get", "range", "list", "delete")
DEADLINE_S = 60.0
_FIRST_PAUSE_S = 0.1
_PAUSE_MAX_S = 5.0
_CONNECT_S = 5.0
_FIND_ALL = "`flintmq archive verify` finds all such objects"
_SCHEMES = ("s3", "gs", "az")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
"""The names of the format. No part begins with a dot, so none leads out of a folder, or to a scratch file."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object in a list: its name, its size in bytes, and when it was last written, in ms since 1970 UTC."""

    name: str
    size: int
    modified_ms: int


class Objects:
    """The objects below ``url``: ``s3://BUCKET/PREFIX``, ``gs://…``, ``az://…``, or a folder.

    ``deadline_s``: seconds for which a verb is tried again, with growing, random pauses of at most 5 s; an attempt
    takes at most half of it, so that a verb ends within one and a half deadlines. ``kms_key``: the key with which S3
    encrypts new objects. Raises ``InvalidArchiveURL`` and ``ArchiveExtraMissing``; the store is asked for nothing yet.
    """

    def __init__(self, url: str | Path, *, deadline_s: float = DEADLINE_S, kms_key: str = "") -> None:
        self.url = shown_url(str(url))
        folder = _folder_of(str(url))
        self._place: _Folder | _Bucket = (
            _Folder(folder) if folder is not None else _Bucket(_open_bucket(str(url), deadline_s, kms_key))
        )
        self._begin(deadline_s)

    def _begin(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.requests: Counter[str] = Counter()
        """Attempts by verb, for figures: those of several threads at once may be counted as one."""
        self.on_trouble: Callable[[str], object] = lambda reason: None
        """Called before a verb is tried again, with what went wrong; what it raises ends the verb. Any thread."""

    @classmethod
    def over(cls, store: ObjectStore, name: str, *, deadline_s: float = DEADLINE_S) -> Objects:
        """Return the objects of an obstore store that the caller has made; ``name`` stands for it in errors."""
        objects = cls.__new__(cls)
        objects.url, objects._place = name, _Bucket(store)
        objects._begin(deadline_s)
        return objects

    def __repr__(self) -> str:
        return f"Objects({self.url!r})"

    def create(self, name: str, content: bytes | bytearray) -> None:
        """Write a new object, never over another one; it is durable on return.

        Raises ``ObjectExists`` if there is one of other content. One of the same content is taken for this call's own:
        the answer to an attempt that succeeded may be lost, and the next attempt then finds its own object.
        """
        try:
            self._try("create", name, lambda: self._place.put(name, content, create=True))
        except ObjectExists:
            held = self.get(name)
            if hashlib.sha256(held).digest() != hashlib.sha256(content).digest():
                raise

    def put(self, name: str, content: bytes | bytearray) -> None:
        """Write an object, over another one if there is one; it is durable on return."""
        self._try("put", name, lambda: self._place.put(name, content, create=False))

    def get(self, name: str) -> bytes:
        """Return the content of an object. Raises ``ObjectNotFound``."""
        return self._try("get", name, lambda: self._place.get(name))

    def range(self, name: str, begin: int, end: int) -> bytes:
        """Return bytes ``[begin, end)`` of an object. Raises ``ObjectNotFound``, ``ObjectCutShort``."""
        if begin >= end:
            return b""
        found = self._try("range", name, lambda: self._place.range(name, begin, end))
        if len(found) != end - begin:
            raise ObjectCutShort(
                f"{self._of(name)} has {begin + len(found):,} bytes, but bytes {begin:,} to {end:,} were to be read: "
                f"it was cut short, or is another object than its entry says. {_FIND_ALL}"
            )
        return found

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """Yield the objects below a folder of names, such as ``log`` or ``manifest``, by name."""
        if prefix:
            self._check(prefix)
        after: str | None = None
        while page := self._try("list", prefix, lambda: self._place.page(prefix, after)):  # noqa: B023 - called at once
            yield from page
            after = page[-1].name

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(ObjectNotFound):
            self._try("delete", name, lambda: self._place.delete(name))

    def check_conditions(self) -> None:
        """Raise ``ConditionsIgnored`` if the store writes over an object that was to be created only.

        Writes the object ``probe/RANDOM`` twice, and deletes it.
        """
        name = f"probe/{os.urandom(8).hex()}"
        first, second = b"first", b"second"
        self.create(name, first)
        try:
            self.create(name, second)
        except ObjectExists:
            return
        finally:
            self.delete(name)
        raise ConditionsIgnored(
            f"{self.url} wrote over {name}, which was to be created only: it ignores `If-None-Match: *`, so that two "
            "brokers could overwrite each other's manifest. Use a store that honours it"
        )

    def _try(self, verb: str, name: str, attempt: Callable[[], T]) -> T:
        """Return the result of an attempt; try again after errors that may pass, until the deadline."""
        if verb != "list":
            self._check(name)
        began = time.monotonic()
        pause_s = _FIRST_PAUSE_S
        while True:
            self.requests[verb] += 1
            try:
                return attempt()
            except self._place.errors as error:
                if not self._place.may_pass(error):
                    self._fail(verb, name, error)
                pause_s = min(_PAUSE_MAX_S, random.uniform(_FIRST_PAUSE_S, 3 * pause_s))  # noqa: S311 - only a pause
                waited_s = time.monotonic() - began
                if waited_s + pause_s >= self._deadline_s:
                    raise ObjectStoreUnavailable(
                        f"cannot {verb} {self._of(name)}: {_reason(error)}; it was tried for {waited_s:.1f} s. Try "
                        "again later"
                    ) from None
                self.on_trouble(f"cannot {verb} {self._of(name)}: {_reason(error)}")
            time.sleep(pause_s)

    def _fail(self, verb: str, name: str, error: Exception) -> NoReturn:
        """Raise the error of the family for one of the store."""
        what = f"cannot {verb} {self._of(name)}: {_reason(error)}"
        kind = type(error).__name__
        if isinstance(error, FileNotFoundError):
            if "NoSuchBucket" in str(error):
                raise ObjectNotFound(f"{what}. Create the bucket, or correct the URL of the archive") from None
            raise ObjectNotFound(f"{what}. It was deleted, or never written") from None
        if isinstance(error, FileExistsError) or kind in ("AlreadyExistsError", "PreconditionError"):
            raise ObjectExists(
                f"cannot {verb} {self._of(name)}: another object has this name. Another writer was first: read again "
                "what is there"
            ) from None
        if isinstance(error, ObjectError):  # from the source of credentials
            raise error
        if isinstance(error, PermissionError) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
            raise ObjectStoreRefused(
                f"{what}. Correct the credentials in the environment, or what they may do with the bucket"
            ) from None
        if kind == "GenericError" and re.search(r"status code: 416|Invalid range", str(error)):
            raise ObjectCutShort(
                f"{self._of(name)} ends before the range that was to be read: it was cut short. {_FIND_ALL}"
            ) from None
        raise ObjectError(f"{what}. Correct what it names, and try again") from None

    def _of(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def _check(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise ObjectError(f"{name!r:.200} is not a name of the archive's format: nothing was read or written")


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, in which a secret may be."""
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        return url.partition("?")[0] if parts.scheme else url
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


_URL_TAIL = re.compile(r"(https?://)(?:[^\s/@?]*@)?([^\s?#]*)[?#]\S*")


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the queries of URLs, in which signatures are."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.strerror or type(error).__name__
    lines = str(error).splitlines() or [type(error).__name__]
    return _URL_TAIL.sub(r"\1\2", lines[0])[:500].rstrip(". ")


# ---- a bucket

_ANSWERED = re.compile(r"status code: (\d{3})")
_PASSING_CODES = {408, 409, 425, 429}
_PAGE = 1000


class _Bucket:
    """Objects in obstore's store, one attempt each. obstore is told not to repeat anything itself: it repeats no put
    that was not answered in time, and all verbs here may be repeated."""

    def __init__(self, store: ObjectStore) -> None:
        from obstore.exceptions import BaseError

        self.errors: tuple[type[Exception], ...] = (BaseError, OSError, NotImplementedError)
        self._store = store

    def put(self, name: str, content: bytes | bytearray, *, create: bool) -> None:
        """Write an object in one request: no parts of it can stay in the bucket if it is interrupted."""
        self._store.put(name, content, mode="create" if create else "overwrite", use_multipart=False)

    def get(self, name: str) -> bytes:
        return bytes(self._store.get(name).bytes())

    def range(self, name: str, begin: int, end: int) -> bytes:
        return bytes(self._store.get_range(name, start=begin, end=end))

    def page(self, prefix: str, after: str | None) -> list[Listed]:
        for rows in self._store.list(prefix or None, offset=after, chunk_size=_PAGE):
            return [Listed(row["path"], row["size"], _ms(row["last_modified"])) for row in rows]
        return []

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def may_pass(self, error: Exception) -> bool:
        """Return whether the same attempt may succeed later: after connection errors, timeouts and 5xx."""
        said = _reason(error)
        answered = _ANSWERED.search(said)
        if answered is not None:
            return int(answered[1]) >= 500 or int(answered[1]) in _PASSING_CODES
        return "HTTP error" in said


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _open_bucket(url: str, deadline_s: float, kms_key: str) -> ObjectStore:
    _check_url(url)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise ArchiveExtraMissing(
            f"{shown_url(url)} needs obstore: pip install 'flintmq[archive]'; a folder needs nothing"
        ) from None
    options: dict[str, Any] = {}
    endpoint = ""
    if url.startswith("s3://"):
        endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
        options["config"] = {"aws_endpoint": endpoint} if endpoint else {}
        if kms_key:
            options["config"] |= {"aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": kms_key}
        if (credentials := _s3_credentials_of_file()) is not None:
            options["credential_provider"] = credentials
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=deadline_s / 2),
        "connect_timeout": timedelta(seconds=min(_CONNECT_S, deadline_s / 2)),
    }
    if endpoint.startswith("http://"):  # somebody named it so; others must encrypt
        client["allow_http"] = True
    open_: Callable[..., ObjectStore] = from_url
    try:
        return open_(url, client_options=client, retry_config={"max_retries": 0}, **options)
    except (BaseError, ValueError) as error:
        raise InvalidArchiveURL(
            f"cannot open the bucket {shown_url(url)}: {_reason(error)}. Correct the URL, or the environment"
        ) from None


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise InvalidArchiveURL(
            f"{shown_url(url)!r:.300} is not the URL of an archive: use s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX, or the path of a folder"
        )
    if "@" in parts.netloc:
        raise InvalidArchiveURL(
            f"the URL {shown_url(url)!r:.300} was given with a user or a password, which would be in logs and process "
            "lists: leave them out; credentials come from the environment, a file, or the cloud's own identity"
        )
    if parts.query or parts.fragment:
        raise InvalidArchiveURL(
            f"the URL {shown_url(url)!r:.300} was given with a query or a fragment: leave it out; settings of the "
            "store come from the environment (AWS_ENDPOINT_URL, AWS_REGION …)"
        )
    if not parts.netloc:
        raise InvalidArchiveURL(f"{shown_url(url)!r:.300} names no bucket: use {parts.scheme}://BUCKET/PREFIX")


_FILE_KEYS_S = 300.0
_FILE_KEYS = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key"}


def _s3_credentials_of_file() -> Callable[[], Any] | None:
    """Return a source of the keys in the AWS credentials file, None if the environment has keys or there is no file.

    obstore reads the environment and asks the cloud itself, but does not read this file. The file is read again every
    five minutes, so that keys may be changed in it.
    """
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path("~/.aws/credentials").expanduser())
    profile = os.environ.get("AWS_PROFILE", "default")

    def read() -> dict[str, Any] | None:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text())
            section = dict(parser[profile])
            keys: dict[str, Any] = {name: section[there] for name, there in _FILE_KEYS.items()}
        except (OSError, configparser.Error, KeyError):
            return None
        keys["token"] = section.get("aws_session_token")
        keys["expires_at"] = datetime.now(UTC) + timedelta(seconds=_FILE_KEYS_S)
        return keys

    def provide() -> dict[str, Any]:
        keys = read()
        if keys is None:
            raise ObjectStoreRefused(
                f"{path} has no keys of the profile {profile!r} any more: restore it, or set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY in the environment"
            )
        return keys

    return provide if read() is not None else None


# ---- a folder


def _folder_of(url: str) -> Path | None:
    """Return the folder that a path or a ``file:`` URL names; None for another URL."""
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", url):
        if not url:
            raise InvalidArchiveURL("the URL of the archive is empty: pass s3://BUCKET/PREFIX, or the path of a folder")
        return Path(url).absolute()
    parts = urlsplit(url)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidArchiveURL(
            f"{shown_url(url)!r:.300} is not the URL of a folder here: use file:///PATH, or the path"
        )
    return Path(unquote(parts.path))


_SCRATCH = ".scratch"
_SCRATCH_KEPT_S = 24 * 3600.0


class _Folder:
    """Objects as files. obstore's own folder would not sync what it writes, so that a power cut could leave an empty
    object under a name which the manifest already has.

    A file is written and synced under another name first, so that no reader finds part of it.
    """

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, root: Path) -> None:
        self._root = root
        self._is_swept = False

    def put(self, name: str, content: bytes | bytearray, *, create: bool) -> None:
        path, scratch = self._root / name, self._root / _SCRATCH / f"{os.getpid()}-{os.urandom(8).hex()}"
        self._make_folder(path.parent)
        self._make_folder(scratch.parent)
        self._sweep()
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            if create:
                path.hardlink_to(scratch)
            else:
                scratch.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                scratch.unlink()
        _sync_folder(path.parent)

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def range(self, name: str, begin: int, end: int) -> bytes:
        fd = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.pread(fd, end - begin, begin)
            while len(found) < end - begin and (more := os.pread(fd, end - begin - len(found), begin + len(found))):
                found += more
            return found
        finally:
            os.close(fd)

    def page(self, prefix: str, after: str | None) -> list[Listed]:
        """Return all objects at once."""
        if after is not None:
            return []
        found = []
        for folder, _, names in os.walk(self._root / prefix):
            within = Path(folder).relative_to(self._root)
            if within.parts[:1] == (_SCRATCH,):
                continue
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    status = Path(folder, name).stat()
                    found.append(Listed((within / name).as_posix(), status.st_size, status.st_mtime_ns // 10**6))
        return sorted(found, key=lambda each: each.name)

    def delete(self, name: str) -> None:
        path = self._root / name
        path.unlink()
        _sync_folder(path.parent)

    def may_pass(self, error: Exception) -> bool:
        """Return False: a disk that fails once is not tried again here."""
        return False

    def _make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents durably."""
        if path.is_dir():
            return
        self._make_folder(path.parent)
        try:
            path.mkdir(FOLDER_MODE, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, f"a file is where a folder belongs: {path}") from None
        _sync_folder(path.parent)

    def _sweep(self) -> None:
        """Remove, once, what writers left in the scratch folder that were killed more than a day ago."""
        if self._is_swept:
            return
        self._is_swept = True
        for path in (self._root / _SCRATCH).iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _SCRATCH_KEPT_S:
                    path.unlink()


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
