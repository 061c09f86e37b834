"""How values travel between a server and its clients: JSON for people, msgpack for programs, arrays as raw numbers.

In msgpack an array is an extension of type 1: the NumPy name of its dtype (``<i4``, ``|u1``, ``<f4`` …), a zero byte,
and its numbers. In JSON it is a list. What was cut out of JSON text byte for byte travels as values.
"""

from typing import Any, Final, Literal

import msgspec
import numpy as np

from relive.errors import InvalidExperienceError
from relive.experience import Transition
from relive.storage.codec import decode_json, encode_json

Form = Literal["application/msgpack", "application/json"]
MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
_ARRAY = 1
_DTYPES = frozenset({"<i4", "<i8", "<f4", "<f8", "|u1"})


def form_of(content_type: str | None) -> Form:
    """The form that a header names; JSON unless it is msgpack."""
    name = (content_type or "").partition(";")[0].strip().lower()
    return MSGPACK if name in (MSGPACK, "application/x-msgpack", "application/vnd.msgpack") else JSON


def pack(value: Any, form: Form) -> bytes:
    """A value in a form."""
    return _PACK.encode(_plain(value)) if form == MSGPACK else encode_json(value)


def unpack(data: bytes, form: Form) -> Any:
    """The value of data in a form; empty data is ``None``.

    Raises:
        InvalidExperienceError: the data is not of that form.
    """
    if not data:
        return None
    try:
        return _UNPACK.decode(data) if form == MSGPACK else decode_json(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidExperienceError(f"The body is no {'msgpack' if form == MSGPACK else 'JSON'}: {error}") from error


def transition_fields(transition: Transition) -> dict[str, Any]:
    """A transition as values that `pack` takes: its fields, with the arrays of its tokens as they are."""
    fields = {name: getattr(transition, name) for name in transition.__struct_fields__}
    if transition.tokens is not None:
        fields["tokens"] = {name: getattr(transition.tokens, name) for name in transition.tokens.__struct_fields__}
    return fields


def _plain(value: Any) -> Any:
    """The value without raw JSON text, which msgpack would take for bytes."""
    if isinstance(value, msgspec.Raw):
        return decode_json(bytes(value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<")))
        return msgspec.msgpack.Ext(_ARRAY, little.dtype.str.encode() + b"\0" + little.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no form on the wire")


def _extension(code: int, data: memoryview) -> Any:
    name, _, numbers = bytes(data).partition(b"\0")
    dtype = name.decode(errors="replace")
    if code != _ARRAY or dtype not in _DTYPES:
        raise ValueError(f"unknown extension {code}")
    return np.frombuffer(numbers, dtype)


_PACK = msgspec.msgpack.Encoder(enc_hook=_array)
_UNPACK = msgspec.msgpack.Decoder(ext_hook=_extension)
