"""Stored experiences and drawn batches as values for the wire, and back; what arrives is what was sent.

Payloads travel as the JSON text that is stored, arrays as raw numbers, all else by the names of the public records, so
that server and client need not be of the same version of the tables on disk.
"""

from typing import Any

import msgspec
import numpy as np

from relive.buffer import Batch, NStepReturns, Selection
from relive.errors import InvalidExperienceError
from relive.experience import Transition
from relive.storage import codec, record
from relive.storage.record import COLUMNS, OUTCOME_NUMBERS
from relive.storage.rows import Experiences
from relive.storage.stored import Stored
from relive.storage.wire import json_text, transition_fields

PAYLOAD = ("state", "action", "next_state", "info")
"""Fields of a transition that are JSON values of any kind."""

_BESIDE = ("id", "uid", "priority", "bytes", "recorded_reward", "recorded_outcome")
_REWARD, _OUTCOME = COLUMNS.index("recorded_reward"), COLUMNS.index("recorded_outcome")
_AS_IT_IS = codec.Decompressor()


def new_fields(transition: Transition) -> dict[str, Any]:
    """A new transition for the wire.

    Raises:
        InvalidExperienceError: it is not made of JSON values.
    """
    fields = transition_fields(transition)
    return {**fields, **{name: json_text(fields[name]) for name in PAYLOAD if fields[name] is not None}}


def stored_fields(stored: Stored) -> dict[str, Any]:
    """A stored experience for the wire."""
    fields = transition_fields(stored.outline())
    payload = msgspec.json.decode(stored.json(), type=dict[str, msgspec.Raw])
    reward, outcome = stored.recorded
    return {
        **fields,
        **{name: payload.get(name) for name in PAYLOAD},
        "id": stored.id,
        "uid": None if stored.uid is None else stored.uid.hex(),
        "priority": stored.priority,
        "bytes": stored.bytes,
        "recorded_reward": reward,
        "recorded_outcome": outcome,
    }


def stored_of(fields: Any) -> Stored:
    """A stored experience as it arrived.

    Raises:
        InvalidExperienceError: it is none.
    """
    if not isinstance(fields, dict) or not all(name in fields for name in _BESIDE):
        raise InvalidExperienceError("An experience that arrived lacks fields; are server and client of one version?")
    transition = Transition.from_dict({name: value for name, value in fields.items() if name not in _BESIDE})
    row = record.encode(transition, with_text=False)
    columns = list(row.columns)
    columns[_REWARD], columns[_OUTCOME] = fields["recorded_reward"], OUTCOME_NUMBERS[fields["recorded_outcome"]]
    uid = None if fields["uid"] is None else bytes.fromhex(fields["uid"])
    beside = (fields["id"], fields["priority"], uid, fields["bytes"], codec.PLAIN, row.payload)
    return Stored((*columns, *beside), _AS_IT_IS, row.trace)


def batch_fields(batch: Batch) -> dict[str, Any]:
    """A batch of stored experiences for the wire."""
    n_step = batch.n_step
    following: dict[str, Any] | None = None
    if n_step is not None:
        following = {name: getattr(n_step, name) for name in ("rewards", "discounts", "steps", "last_ids")}
        following["last"] = None if n_step.last is None else _list(n_step.last)
    return {
        "requested": batch.requested,
        "newest": int(batch.ids[0] + batch.ages[0]) if len(batch) else 0,
        "ids": np.asarray(batch.ids),
        "weights": np.asarray(batch.weights),
        "probabilities": np.asarray(batch.probabilities),
        "lengths": batch.lengths,
        "replayed": batch.replayed,
        "n_step": following,
        "experiences": _list(batch.experiences),
    }


def batch_of(fields: Any) -> Batch:
    """A batch as it arrived.

    Raises:
        InvalidExperienceError: it is none.
    """
    try:
        following = fields["n_step"]
        n_step = None
        if following is not None:
            last = following["last"]
            n_step = NStepReturns(**{**following, "last": None if last is None else _experiences(last)})
        selection = Selection(
            ids=fields["ids"],
            probabilities=fields["probabilities"],
            weights=fields["weights"],
            lengths=fields["lengths"],
            n_step=n_step,
        )
        batch = Batch(selection, _experiences(fields["experiences"]), fields["requested"], fields["newest"])
        batch.replayed = fields["replayed"]
    except (KeyError, TypeError) as error:
        raise InvalidExperienceError(
            f"A batch that arrived lacks {error}; are server and client of one version?"
        ) from error
    return batch


def _list(experiences: Any) -> list[dict[str, Any]]:
    """Experiences drawn from a store."""
    stored: Experiences = experiences
    return [stored_fields(one) for one in stored.stored]


def _experiences(fields: Any) -> Experiences:
    return Experiences([stored_of(one) for one in fields])
