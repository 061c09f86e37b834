"""What workers and trainers anywhere do with the memory: add, draw, set priorities, look; `relive.client` asks for it.

Everything a `relive.Memory` takes and gives crosses the wire whole (see `relive.storage.travel`). An addition may name
its experiences by uids, so that one whose answer was lost can be sent again and is not kept twice. Whatever takes long
runs in a thread, so that no call through the gateway waits for it.
"""

import asyncio
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.checks import LARGEST_PRIORITY, floats_of, refusal
from relive.errors import InvalidExperienceError
from relive.experience import Transition
from relive.memory import Memory
from relive.storage.forget import Selection
from relive.storage.reading import Query
from relive.storage.travel import batch_fields, stored_fields

MOST_DRAWN = 65_536
MOST_LISTED = 1_000
_PAGE = frozenset({"after", "limit", "newest_first"})
_TIMES = ("since", "until")


class Workers:
    """The memory's side of the routes.

    Args:
        memory: The server's.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def add(self, body: Any) -> dict[str, Any]:
        """Adds experiences, all or none; those whose uids are stored already are not added again."""
        given = field(body, "experiences", list)
        experiences = await asyncio.to_thread(lambda: list(map(Transition.from_dict, given)))
        priorities = body.get("priorities")
        if priorities is not None and (not isinstance(priorities, list | np.ndarray) or len(priorities) != len(given)):
            raise InvalidExperienceError("priorities must be a list with one number for each experience.")
        if priorities is not None:
            _check_priorities(floats_of("priorities", priorities))
        if body.get("uids") is None:
            ids = await asyncio.to_thread(self._memory.add_batch, experiences, priorities)
        else:
            uids = _uids(body["uids"], len(given))
            ids = await asyncio.to_thread(self._add_once, experiences, priorities, uids)
        return {"ids": np.asarray(ids)}

    async def get(self, body: Any) -> dict[str, Any]:
        """Experiences by id; null where there is none."""
        ids = numbers(body, "ids", np.int64)
        if len(ids) > MOST_LISTED:
            raise InvalidExperienceError(f"Ask for at most {MOST_LISTED} ids at a time.")

        def look() -> list[Any]:
            return [None if one is None else stored_fields(one) for one in self._memory.storage.read(ids)]

        return {"experiences": await asyncio.to_thread(look)}

    async def query(self, body: Any) -> dict[str, Any]:
        """One page of experiences, by all conditions of `Memory.query`."""
        given = {} if body is None else body
        if not isinstance(given, dict):
            raise InvalidExperienceError("The body is an object with conditions.")
        known = {*Query.__struct_fields__, *_PAGE}
        unknown = sorted(str(name) for name in given.keys() - known)
        if unknown:
            raise InvalidExperienceError(
                f"There is no condition {', '.join(unknown)}; there are {', '.join(sorted(known))}."
            )
        conditions = {name: value for name, value in given.items() if value is not None and name not in _PAGE}
        try:
            checked = msgspec.structs.asdict(msgspec.convert(conditions, Query))
        except msgspec.ValidationError as error:
            raise InvalidExperienceError(f"A condition is not right: {error}") from error
        for name in _TIMES:
            if checked[name] is not None and checked[name].tzinfo is None:
                raise InvalidExperienceError(f"{name} must say its time zone.")
        after, limit = _whole(given, "after"), _whole(given, "limit")
        page = {
            "after": after,
            "limit": min(20 if limit is None else limit, MOST_LISTED),
            "newest_first": given.get("newest_first") is True,
        }
        found = await asyncio.to_thread(lambda: list(map(stored_fields, self._memory.query(**checked, **page))))
        return {"experiences": found}

    async def sample(self, body: Any) -> dict[str, Any]:
        """Draws experiences."""
        size = field(body, "batch_size", int)
        if not 0 < size <= MOST_DRAWN:
            raise InvalidExperienceError(f"batch_size must be between 1 and {MOST_DRAWN}.")
        strict = body.get("strict", False) is True
        return await asyncio.to_thread(lambda: batch_fields(self._memory.sample(size, strict=strict)))

    async def update_priorities(self, body: Any) -> dict[str, Any]:
        """Sets priorities."""
        ids = numbers(body, "ids", np.int64)
        given = [name for name in ("priorities", "td_errors") if isinstance(body, dict) and body.get(name) is not None]
        if len(given) != 1:
            raise InvalidExperienceError("Give either priorities or td_errors.")
        values = {given[0]: numbers(body, given[0], np.float64)}
        if len(values[given[0]]) != len(ids):
            raise InvalidExperienceError(f"There are {len(ids)} ids and {len(values[given[0]])} {given[0]}.")
        changed = await asyncio.to_thread(lambda: self._memory.update_priorities(ids, **values))
        return {"changed": changed}

    async def remove(self, body: Any) -> dict[str, Any]:
        """Takes experiences out."""
        ids = numbers(body, "ids", np.int64)
        return {"removed": await asyncio.to_thread(self._memory.remove, ids)}

    async def forget(self, body: Any) -> Any:
        """Takes experiences out so that no byte of them is left in the file.

        A field that is not known is refused: what it was to narrow down would be forgotten whole.
        """
        known = Selection.__struct_fields__
        if not isinstance(body, dict) or not body.keys() <= set(known):
            raise InvalidExperienceError(f"The body is an object with some of {', '.join(known)}.")
        try:
            selection = msgspec.convert(body, Selection)
        except msgspec.ValidationError as error:
            raise InvalidExperienceError(f"What to forget is not right: {error}.") from error
        named = msgspec.structs.asdict(selection)
        return msgspec.to_builtins(await asyncio.to_thread(lambda: self._memory.forget(**named)))

    async def stats(self) -> dict[str, Any]:
        """Figures of the memory."""

        def look() -> dict[str, Any]:
            if self._memory.storage.owns_index:
                self._memory.follow()  # what the gateway recorded counts too
            return self._memory.stats().to_dict()

        return await asyncio.to_thread(look)

    def _add_once(self, experiences: list[Transition], priorities: Any, uids: list[bytes]) -> npt.NDArray[np.int64]:
        storage = self._memory.storage
        given = None if priorities is None else np.asarray(priorities, np.float64).tolist()
        ids = storage.append(experiences, priorities=given, uids=uids)
        known = iter(storage.ids_of([uid for uid, number in zip(uids, ids, strict=True) if number is None]))
        whole = [next(known) if number is None else number for number in ids]
        if storage.owns_index:
            self._memory.follow()  # so that limits hold and rules give priorities at once
        return np.array([-1 if number is None else number for number in whole], np.int64)


def field(body: Any, name: str, kind: type) -> Any:
    """A field of a body, of this kind.

    Raises:
        InvalidExperienceError: it is not there.
    """
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidExperienceError(f"The body is an object with {name} ({kind.__name__}).")
    return value


def numbers(body: Any, name: str, dtype: Any) -> npt.NDArray[Any]:
    """A list or array of numbers in a body, as an array of `dtype`.

    Raises:
        InvalidExperienceError: it is none.
    """
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, list | np.ndarray):
        raise InvalidExperienceError(f"The body is an object with {name}, a list of numbers.")
    try:
        given = np.asarray(value)
        array = given.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidExperienceError(f"{name} is no list of numbers: {error}.") from error
    wrong_kind = given.size and given.dtype.kind not in "iuf"
    if array.ndim != 1 or wrong_kind or (dtype is np.int64 and given.size and not np.array_equal(array, given)):
        raise InvalidExperienceError(f"{name} is no list of {'whole ' if dtype is np.int64 else ''}numbers.")
    return array


def _check_priorities(values: npt.NDArray[np.float64]) -> None:
    bad = np.flatnonzero(~((values >= 0) & (values <= LARGEST_PRIORITY)))
    if len(bad):
        raise refusal(f"experience {bad[0]} of the new ones", values[bad[0]])


def _uids(given: Any, count: int) -> list[bytes]:
    """16 bytes each, in hexadecimal digits."""
    try:
        uids = [bytes.fromhex(text) for text in given]
    except (TypeError, ValueError) as error:
        raise InvalidExperienceError("uids are texts of 32 hexadecimal digits.") from error
    if len(uids) != count or any(len(uid) != 16 for uid in uids) or len(set(uids)) != count:
        raise InvalidExperienceError("There must be one uid of 32 hexadecimal digits for each experience, all unlike.")
    return uids


def _whole(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None or (type(value) is int and 0 <= value < 2**63):
        return value
    raise InvalidExperienceError(f"{name} is a whole number from 0.")
