"""The durable store: experiences in one SQLite file, safe from many threads and processes."""

from relive.storage.audit import AuditEntry
from relive.storage.errors import (
    ClosedStoreError,
    DamagedStoreError,
    IndexOwnedError,
    NewerStoreError,
    NotAStoreError,
    NotOwnerError,
    ReadOnlyStoreError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StoragePathError,
)
from relive.storage.protocol import Changes, Storage, StoreStats, WriteView
from relive.storage.reading import Query
from relive.storage.redaction import Redactor
from relive.storage.sampling import IndexChange, SavedIndex
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored

__all__ = [
    "AuditEntry",
    "Changes",
    "ClosedStoreError",
    "DamagedStoreError",
    "IndexChange",
    "IndexOwnedError",
    "NewerStoreError",
    "NotAStoreError",
    "NotOwnerError",
    "Query",
    "ReadOnlyStoreError",
    "Redactor",
    "SavedIndex",
    "SqliteStorage",
    "Storage",
    "StorageBusyError",
    "StorageError",
    "StorageFullError",
    "StoragePathError",
    "StoreStats",
    "Stored",
    "WriteView",
]
