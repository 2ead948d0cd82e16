from .archive.errors import CorruptLog as CorruptLog
from .archive.store import StoreOptions as StoreOptions
from .archive.store import read_store as read_store
from .errors import ArrowUnavailable as ArrowUnavailable
from .errors import DataLoss as DataLoss
from .errors import InvalidOption as InvalidOption
from .options import ArrowOptions as ArrowOptions
from .stream import ArrowStream as ArrowStream
