"""What selectors choose, checked before anything is done with it.

Anybody may write a selector. What it chooses decides which memory is read and which experience leaves, so a mistake in
it must end in an error that names its class, never in wrong memory or a buffer above its capacity.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.buffer.errors import BufferSettingError, SelectorError
from relive.buffer.fields import count_of
from relive.buffer.rows import Ids
from relive.buffer.selector import Selection, Selector


def choose(selector: Selector, count: int) -> Selection:
    """Lets a selector choose `count` experiences of the buffer it is bound to.

    Raises:
        SelectorError: it chose what is not stored, more than it was asked for, or arrays that do not fit together.
    """
    selection = selector.select(count)
    if not isinstance(selection, Selection):
        raise SelectorError(f"{selector.kind} must choose a Selection, not {selection!r:.80}.")
    ids = selection.ids = _stored(selector, selection.ids, "chose")
    lengths, n_step = selection.lengths, selection.n_step
    if selector.row_by_row and (lengths is not None or n_step is not None):
        raise SelectorError(f"{selector.kind} gives lengths or n_step; its class must say row_by_row = False.")
    beside: dict[str, npt.NDArray[Any] | None] = {
        "probabilities": selection.probabilities,
        "weights": selection.weights,
    }
    if n_step is not None:
        n_step.last_ids = _stored(selector, n_step.last_ids, "looked ahead to")
        beside |= {name: getattr(n_step, name) for name in ("rewards", "discounts", "steps", "last_ids")}
    for name, array in beside.items():
        if array is not None and np.shape(array) != ids.shape:
            raise SelectorError(f"{selector.kind} chose {len(ids)} experiences with {np.shape(array)} {name}.")
    if lengths is not None and (np.any(np.asarray(lengths) < 1) or int(np.sum(lengths)) != len(ids)):
        raise SelectorError(
            f"{selector.kind} chose {len(ids)} rows in sequences of {np.asarray(lengths).tolist()!r:.80}."
        )
    if selection.count > count:
        raise SelectorError(f"{selector.kind} was asked for {count} and chose {selection.count}.")
    return selection


def victims_of(selector: Selector, count: int) -> Ids:
    """Lets a selector choose who leaves: `count` different stored ids, at most as many as are stored.

    Raises:
        SelectorError: it chose another number, one twice, or one that is not stored.
    """
    victims = _different(selector, selector.victims(count))
    if len(victims) != count:
        raise SelectorError(f"{selector.kind} was asked for {count} to leave and chose {len(victims)}.")
    return victims


def admission_of(selector: Selector, experiences: Sequence[Any], room: int) -> tuple[list[int], Ids] | None:
    """Lets a remover decide who of the newcomers is added and who leaves for them; see `Selector.admit`.

    Raises:
        SelectorError: the places are not increasing ones of newcomers, or too few leave.
    """
    admitted = selector.admit(experiences, room)
    if admitted is None:
        return None
    places, victims = list(admitted[0]), _different(selector, admitted[1])
    in_order = places == sorted(set(places))
    if not in_order or (places and not 0 <= places[0] <= places[-1] < count_of(experiences)):
        raise SelectorError(f"{selector.kind} must admit increasing places of {count_of(experiences)} newcomers.")
    if len(places) - len(victims) > room:
        raise SelectorError(
            f"{selector.kind} admitted {len(places)} newcomers into room for {room} and let {len(victims)} go."
        )
    return places, victims


def check_row_by_row(outer: str, inner: Selector) -> None:
    """Refuses an inner selector whose choices hold more than `outer` can pass on.

    Raises:
        BufferSettingError: it gives sequences or n-step returns.
    """
    if not inner.row_by_row:
        raise BufferSettingError(
            f"{outer} chooses single rows and would lose what {inner.kind} adds to them; put it the other way round, "
            f"with {outer} as the inner sampler."
        )


def _stored(selector: Selector, ids: Any, verb: str) -> Ids:
    """These ids, if all are stored."""
    if not (isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1):
        raise SelectorError(f"{selector.kind} must give ids as an int64 array of one dimension, not {ids!r:.80}.")
    given: Ids = np.ascontiguousarray(ids)
    missing = given[selector.view.index.find(given) < 0]
    if len(missing):
        raise SelectorError(f"{selector.kind} {verb} experience {missing[0]}, which is not stored.")
    return given


def _different(selector: Selector, ids: Any) -> Ids:
    """These ids, if all are stored and none comes twice."""
    stored = _stored(selector, ids, "let go")
    if len(set(stored.tolist())) < len(stored):
        raise SelectorError(f"{selector.kind} let the same experience go twice.")
    return stored
