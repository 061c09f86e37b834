"""What can go wrong with a store; each message names the file and the next step."""

from relive.errors import ReliveError


class StorageError(ReliveError):
    """The base of every error of a store."""


class NotAStoreError(StorageError):
    """The file is no Relive store: no database at all, another program's, or not a file."""


class NewerStoreError(StorageError):
    """The file was written by a newer Relive; it was left untouched."""


class DamagedStoreError(StorageError):
    """The database inside the file is damaged."""


class StorageFullError(StorageError):
    """The disk, or the file's limit, is full. What was acknowledged before is kept; the failed write left nothing."""


class StorageBusyError(StorageError):
    """Another process held the file's write lock for longer than the busy timeout."""


class StoragePathError(StorageError):
    """The path cannot hold a store: no such folder, no permission, or a network file system."""


class ReadOnlyStoreError(StorageError):
    """Something tried to write through a store opened with ``readonly=True``."""


class ClosedStoreError(StorageError):
    """The store was used after it was closed."""


class IndexOwnedError(StorageError):
    """Another holder owns the sampling index of this store.

    Attributes:
        holder: Who holds it: ``pid``, ``host``, ``command``, ``since`` (ISO 8601), and ``url`` where it serves one.
    """

    def __init__(self, message: str, holder: dict[str, object]) -> None:
        super().__init__(message)
        self.holder = holder


class NotOwnerError(StorageError):
    """Only the owner of a store's sampling index draws, sets priorities and evicts."""
