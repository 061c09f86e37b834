"""Bounds on how old a policy may be whose experiences are trained on.

Two bounds, because there are two kinds of rows. A *fresh* row is one that has not been drawn yet: it stands for the
present policy, and `max_staleness` says how many versions it may lie back. A *replayed* row is trained on again on
purpose, with log-probabilities recomputed by the present policy; `max_replay_age` bounds it. A row is replayed from its
second draw on, or from its first when it is tagged ``replay`` (or has ``source`` "replay").

What has passed its bound can never come back within it, since versions only grow; so it leaves the buffer before the
draw. `check` asserts the same again where training begins.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.errors import BufferSettingError, StaleExperienceError
from relive.buffer.fields import field, rows
from relive.buffer.rows import NO_IDS, Ids
from relive.buffer.slot_array import SlotArray

_NEVER = 2**62


class Staleness:
    """The two bounds, and what they apply to, by slot.

    Args:
        max_staleness: Most versions that a fresh row may lie back; ``None``: any number.
        max_replay_age: The same for a replayed row.

    Raises:
        BufferSettingError: a bound is negative.
    """

    def __init__(self, max_staleness: int | None = None, max_replay_age: int | None = None) -> None:
        for name, bound in (("max_staleness", max_staleness), ("max_replay_age", max_replay_age)):
            if bound is not None and bound < 0:
                raise BufferSettingError(f"{name} is {bound}; it must be at least 0.")
        self.max_staleness = max_staleness
        self.max_replay_age = max_replay_age
        self._current: int | None = None
        self._version = SlotArray(np.int64, _NEVER)
        self._replayed = SlotArray(np.bool_, False)
        self._perhaps = False  # whether any row may lie beyond its bound

    @property
    def current(self) -> int | None:
        """The present policy's version; ``None``: nobody has said, and nothing is bounded yet."""
        return self._current

    @current.setter
    def current(self, version: int) -> None:
        if self._current is not None and version < self._current:
            raise BufferSettingError(f"The policy version is {self._current} and cannot go back to {version}.")
        self._current = version
        self._perhaps = True

    def check_new(self, experiences: Any) -> None:
        """Refuses new rows whose policy version is not known.

        Raises:
            StaleExperienceError: there is one.
        """
        for place, version in enumerate(versions_of(experiences)):
            if version is None:
                raise StaleExperienceError(
                    f"New experience {place} has no policy_version, so its staleness cannot be bounded; record the "
                    "version that acted, or leave max_staleness and max_replay_age out."
                )

    def join(self, slots: Ids, experiences: Any) -> None:
        """New rows live in these slots."""
        self._version[slots] = [_NEVER if version is None else version for version in versions_of(experiences)]
        self._replayed[slots] = [_is_replay(experience) for experience in rows(experiences)]
        self._perhaps = self._perhaps or bool(self._beyond(slots).any())

    def leave(self, slots: Ids) -> None:
        """What lived in these slots leaves."""
        self._version[slots] = _NEVER

    def drawn(self, slots: Ids) -> npt.NDArray[np.bool_]:
        """These rows are drawn now; which of them are replayed. An id drawn twice in one batch is fresh in both."""
        replayed = self._replayed[slots]
        self._replayed[slots] = True
        self._perhaps = self._perhaps or bool(self._beyond(slots).any())
        return replayed

    def too_old(self) -> Ids:
        """The slots of all rows beyond their bound. O(1) while none can be, else O(N)."""
        if not self._perhaps:
            return NO_IDS
        gone = np.flatnonzero(self._beyond(np.arange(len(self._version.all()), dtype=np.int64))).astype(np.int64)
        self._perhaps = bool(len(gone))  # until they have left
        return gone

    def _beyond(self, slots: Ids) -> npt.NDArray[np.bool_]:
        if self._current is None:
            return np.zeros(len(slots), dtype=np.bool_)
        bounds = np.where(self._replayed[slots], _bound(self.max_replay_age), _bound(self.max_staleness))
        return np.asarray(self._current - self._version[slots] > bounds, dtype=np.bool_)

    def state_dict(self, slots: Ids) -> dict[str, Any]:
        """Versions and kinds of the rows in these slots."""
        return {"current": self._current, "versions": self._version[slots], "replayed": self._replayed[slots]}

    def load_state_dict(self, state: dict[str, Any], slots: Ids) -> None:
        """Takes them back."""
        self._current = state["current"]
        self._perhaps = True
        self._version[slots] = state["versions"]
        self._replayed[slots] = state["replayed"]


def versions_of(experiences: Any) -> list[int | None]:
    """The policy version of each experience: of a token trace with versions the oldest sampled one, else its own."""
    return [_version(experience) for experience in rows(experiences)]


def check(
    experiences: Any,
    current: int,
    *,
    max_staleness: int | None = None,
    max_replay_age: int | None = None,
    replayed: npt.ArrayLike | None = None,
) -> None:
    """Asserts, where training begins, that no row is older than its bound.

    Args:
        experiences: The rows of a batch.
        current: The present policy's version.
        max_staleness: Bound of fresh rows; ``None``: none.
        max_replay_age: Bound of replayed rows; ``None``: none.
        replayed: bool ``[B]`` (``batch.replayed``); ``None``: all are fresh.

    Raises:
        StaleExperienceError: a row is too old, or of an unknown version while its kind is bounded.
    """
    versions = versions_of(experiences)
    kinds = [False] * len(versions) if replayed is None else np.asarray(replayed, dtype=np.bool_).tolist()
    for place, (version, is_replay) in enumerate(zip(versions, kinds, strict=True)):
        bound = max_replay_age if is_replay else max_staleness
        if bound is not None and (version is None or current - version > bound):
            kind, name = ("replayed", "max_replay_age") if is_replay else ("fresh", "max_staleness")
            raise StaleExperienceError(
                f"Row {place} is {kind} and of policy version {version}; now it is {current} and {name} is {bound}."
            )


def _version(experience: Any) -> int | None:
    trace = field(experience, "tokens")
    versions = getattr(trace, "versions", None)
    if versions is not None and len(versions):
        sampled = versions[np.asarray(trace.mask) == 1]
        if len(sampled):
            return int(sampled.min())
    version = field(experience, "policy_version")
    return None if version is None else int(version)


def _is_replay(experience: Any) -> bool:
    return "replay" in (field(experience, "tags") or ()) or field(experience, "source") == "replay"


def _bound(value: int | None) -> int:
    return _NEVER if value is None else value
