"""The state of the draws over a store, as the bytes kept with the sampling index."""

import base64
from typing import Any

import msgspec
import numpy as np

from relive.buffer._core import Index
from relive.buffer.checks import keepable
from relive.buffer.rows import NO_IDS
from relive.storage.damage import damage_to
from relive.storage.errors import NewerStoreError
from relive.storage.sampling import SavedIndex

STATE_VERSION = 1
"""Version of the shape of `BufferState`."""

_ARRAY = "__array__"


class BufferState(msgspec.Struct, kw_only=True):
    """All that decides the next draws, beside the index itself.

    Attributes:
        version: Of this shape.
        capacity: Slots of the index.
        ring: Whether the index is a ring (see `relive.storage.rows`).
        free_rank: Rank of the slot freed last.
        free_bottom: The free slot without a rank that is taken last.
        next_id: No experience below has yet to come.
        random: Words of the random stream.
        followed: The change number up to which the index knows what happened.
        sampler: Name and state of the sampler.
        remover: Name and state of the remover.
        counters: What the buffer counts over its life.
        rule: What the priority rule knows beyond the experiences; ``None``: it was not saved, or there is no rule.
    """

    version: int = STATE_VERSION
    capacity: int
    ring: bool
    free_rank: int
    free_bottom: int
    next_id: int
    random: list[int]
    followed: int
    sampler: tuple[str, dict[str, Any]]
    remover: tuple[str, dict[str, Any]]
    counters: dict[str, int]
    rule: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """JSON text; arrays as type, shape and Base64."""
        return msgspec.json.encode(self, enc_hook=_encode)


def from_bytes(text: bytes) -> BufferState | None:
    """The state of what `BufferState.to_bytes` gave; ``None`` for empty bytes: nobody saved one.

    Raises:
        NewerStoreError: a newer Relive wrote it.
        DamagedStoreError: it is not what was saved.
    """
    if not text:
        return None
    with damage_to("The state of the sampler"):
        return _from_json(msgspec.json.decode(text))


def _from_json(data: Any) -> BufferState:
    if data["version"] != STATE_VERSION:
        raise NewerStoreError(
            f"The sampling index was saved in version {data['version']}, this Relive knows {STATE_VERSION}; "
            "install a newer Relive."
        )
    return msgspec.convert(_decode(data), BufferState)


def restore_index(index: Index, saved: SavedIndex, state: BufferState) -> bool:
    """Fills an empty index slot by slot; False, and the index is as it was: what was saved does not fit together."""
    taken = np.flatnonzero(saved.ids > 0)
    order = taken[np.argsort(saved.ids[taken])]
    ids, priorities = saved.ids[order], keepable(saved.priorities[order], index.alpha)
    if len(order) and order.max() >= index.capacity:
        return False
    free = NO_IDS
    if not state.ring:
        slots = np.zeros(index.capacity, np.int64)
        slots[: len(saved.ids)] = saved.ids[: index.capacity]
        ranked, unranked = np.flatnonzero(slots < 0), np.flatnonzero(slots == 0)
        unranked = unranked[np.argsort((state.free_bottom - unranked) % index.capacity)]
        free = np.concatenate([unranked, ranked[np.argsort(-slots[ranked])]])
    elif len(ids) and not (ids[-1] - ids[0] + 1 == len(ids) and np.array_equal(order, ids % index.capacity)):
        return False
    try:
        index.restore(ids, order, priorities.astype(np.float32), free, state.ring)
    except ValueError:
        return False
    index.update(ids, priorities)  # applies alpha
    index.skip_to(state.next_id)
    return True


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_ARRAY: value.dtype.str, "shape": value.shape, "data": data}
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be part of a saved state.")


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            flat = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value[_ARRAY]))
            return flat.reshape(value["shape"]).copy()
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return value
