"""What can go wrong between a client and its server; what went wrong in the memory has the memory's own classes."""

from relive.buffer.errors import BufferSettingError, InvalidPriorityError, NotEnoughExperiencesError
from relive.errors import InvalidExperienceError, ReliveError
from relive.storage.errors import NotOwnerError, StorageBusyError, StorageError, StorageFullError
from relive.storage.forget import NothingToForgetError


class RemoteError(StorageError):
    """A server refused something, or did not answer as one of Relive's does."""


class UnreachableError(RemoteError):
    """The server could not be reached, or gave no answer in time."""


class AccessRefusedError(RemoteError):
    """The server asks for a key, or the key may not do this."""


class NotThereError(InvalidExperienceError):
    """The server knows no such experience."""


_CLASSES: dict[str, type[ReliveError]] = {
    "not_found": NotThereError,
    "not_owner": NotOwnerError,
    "not_enough": NotEnoughExperiencesError,
    "store_busy": StorageBusyError,
    "store_full": StorageFullError,
    "invalid": InvalidExperienceError,
    "invalid_priority": InvalidPriorityError,
    "invalid_setting": BufferSettingError,
    "nothing_to_forget": NothingToForgetError,
}


def refusal(status: int, answer: object, where: str) -> ReliveError:
    """The error that a server's refusal stands for: the class that a memory in this process would raise.

    Args:
        status: Of the answer.
        answer: Its body, parsed.
        where: The server's address.
    """
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if not isinstance(message, str):
        return RemoteError(f"{where} answered with status {status}, and not as a Relive server does.")
    if status in (401, 403):
        return AccessRefusedError(f"{where} refused: {message} Give it as key=, or in RELIVE_KEY.")
    return _CLASSES.get(str(code), RemoteError)(message)
