from .frames import ScanOptions as ScanOptions
from .frames import scan as scan
from .frames import scan_store as scan_store
