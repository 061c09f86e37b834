"""Relive JSONL: one experience a line, as `relive export` writes it; all fields but state and action may be left out.

Beside the fields of a `Transition` a line may have ``schema_version``, ``uid`` (its identity, 32 hexadecimal digits),
``parent_uid`` (that of the experience it belongs under), ``priority``, and ``feedback`` with the reward and outcome
from before it (``recorded_reward``, ``recorded_outcome``). What a store keeps to itself (``id``) is passed over, so is
a ``parent`` that is an id of another store.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from relive.experience import SCHEMA_VERSION, Feedback
from relive.storage.formats.found import Found, Identity, Ignored, Item, each, transition, with_payload
from relive.storage.formats.jsontext import BadRecordError, Json
from relive.storage.formats.source import Source

NAME = "relive"
EXAMPLE = '{"state": ..., "action": ..., "reward": 1.0}'


class _Payload(msgspec.Struct):
    state: msgspec.Raw
    action: msgspec.Raw
    next_state: msgspec.Raw = msgspec.Raw(b"null")
    info: msgspec.Raw = msgspec.Raw(b"null")


PAYLOAD = frozenset(_Payload.__struct_fields__)
"""Fields that are stored as the text they are, whatever it says."""

_SETTLED = ("reward", "outcome")  # what feedback decides


def matches(record: dict[str, Any]) -> bool:
    """Whether a record looks like one of this format."""
    return "state" in record and "action" in record


def read(source: Source) -> Iterator[Item]:
    """The experiences of a file."""
    identity = Identity()

    def convert(line: int, record: Json) -> Iterator[Item]:
        fields = dict(record.value)
        version = fields.pop("schema_version", SCHEMA_VERSION)
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise BadRecordError(
                f"it has schema version {version}, but this Relive knows versions up to {SCHEMA_VERSION}"
            )
        missing = [name for name in ("state", "action") if name not in fields]
        if missing:
            raise BadRecordError(f"it has no {' and no '.join(missing)}")
        given = fields.pop("uid", None)
        uid = _uid(given, "uid")
        parent = _uid(fields.pop("parent_uid", None), "parent_uid")
        priority = fields.pop("priority", None)
        if not (priority is None or (isinstance(priority, int | float) and 0 <= priority < float("inf"))):
            raise BadRecordError(f"its priority is {priority!r}; it must be a number of at least 0")
        feedback = _feedback(fields)
        fields.pop("id", None)
        foreign_parent = fields.pop("parent", None) is not None and parent is None
        for name in PAYLOAD:
            fields.pop(name, None)
        record_id = uid or identity(record.text)
        if "episode_id" not in fields:  # by itself an episode of its own, and the same one in every import
            fields["episode_id"] = record_id.hex()
        base = transition(fields, source)
        payload = msgspec.json.decode(record.text, type=_Payload)
        if foreign_parent:
            yield Ignored("parent (an id of another store)")
        yield Found(
            line,
            record_id,
            with_payload(
                base,
                state=bytes(payload.state),
                action=bytes(payload.action),
                next_state=_or_none(payload.next_state),
                info=None if _or_none(payload.info) is None else payload.info,
            ),
            priority=None if priority is None else float(priority),
            parent=parent,
            feedback=feedback,
        )

    return each(source, convert, PAYLOAD)


def _feedback(fields: dict[str, Any]) -> tuple[Feedback, ...]:
    """What the line says was fed back; reward and outcome become those from before, since feedback settles them anew.

    Raises:
        BadRecordError: it is no list of feedback.
        InvalidExperienceError: one of it is not valid.
    """
    recorded = {name: fields.pop(f"recorded_{name}") for name in _SETTLED if f"recorded_{name}" in fields}
    said = fields.pop("feedback", None)
    if said is None:
        return ()
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise BadRecordError("its feedback is no list of objects")
    for name in _SETTLED:
        if name in recorded:
            fields[name] = recorded[name]
    return tuple(Feedback.from_dict(one if "episode_id" in one else {**one, "experience_id": 0}) for one in said)


def _or_none(raw: msgspec.Raw) -> bytes | None:
    text = bytes(raw)
    return None if text == b"null" else text


def _uid(text: object, name: str) -> bytes | None:
    if text is None:
        return None
    try:
        uid = bytes.fromhex(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        uid = b""
    if len(uid) != 16:
        raise BadRecordError(f"its {name} is {text!r}; it must be 32 hexadecimal digits")
    return uid
