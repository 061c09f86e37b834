"""How values travel between a server and its clients: JSON for people, msgpack for programs, arrays as raw numbers.

In msgpack two things are extensions:

- type 1, an array: the NumPy name of its dtype (``<i4``, ``|u1``, ``<f4`` …), a zero byte, and its numbers;
- type 2, a JSON text: a payload's numbers of any size and the order of its keys travel as they are stored.

In JSON an array is a list, and a JSON text the value that it is.
"""

from typing import Any, Final, Literal

import msgspec
import numpy as np

from relive.errors import InvalidExperienceError
from relive.experience import Transition
from relive.storage.codec import checked_json, decode_json, encode_json

Form = Literal["application/msgpack", "application/json"]
MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
_ARRAY, _JSON_TEXT = 1, 2
_DTYPES = frozenset({"<i4", "<i8", "<f4", "<f8", "|u1", "|b1"})


def form_of(content_type: str | None) -> Form:
    """The form that a header names; JSON unless it is msgpack."""
    name = (content_type or "").partition(";")[0].strip().lower()
    return MSGPACK if name in (MSGPACK, "application/x-msgpack", "application/vnd.msgpack") else JSON


def pack(value: Any, form: Form) -> bytes:
    """A value in a form.

    Raises:
        InvalidExperienceError: the form has no place for it.
    """
    if form == JSON:
        return encode_json(value)
    try:
        return _PACK.encode(_packable(value))
    except (TypeError, OverflowError, NotImplementedError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidExperienceError(f"A value cannot be sent: {error}") from error


def unpack(data: bytes, form: Form) -> Any:
    """The value of data in a form; empty data is ``None``. A JSON text inside it is a `msgspec.Raw`, known to be valid.

    Raises:
        InvalidExperienceError: the data is not of that form.
    """
    if not data:
        return None
    try:
        return _UNPACK.decode(data) if form == MSGPACK else decode_json(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidExperienceError(f"The body is no {'msgpack' if form == MSGPACK else 'JSON'}: {error}") from error


def json_text(value: Any) -> msgspec.Raw:
    """A JSON value as its text, which travels as it is.

    Raises:
        InvalidExperienceError: it is no JSON value.
    """
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(encode_json(value))


def transition_fields(transition: Transition) -> dict[str, Any]:
    """A transition as values that `pack` takes: its fields, with the arrays of its tokens as they are."""
    fields = {name: getattr(transition, name) for name in transition.__struct_fields__}
    if transition.tokens is not None:
        fields["tokens"] = {name: getattr(transition.tokens, name) for name in transition.tokens.__struct_fields__}
    return fields


def _packable(value: Any) -> Any:
    """The value with its JSON texts as extensions: the encoder would copy them as if they were msgpack."""
    if isinstance(value, msgspec.Raw):
        return msgspec.msgpack.Ext(_JSON_TEXT, bytes(value))
    if isinstance(value, dict):
        return {key: _packable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packable(item) for item in value]
    return value


def _array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<")))
        return msgspec.msgpack.Ext(_ARRAY, little.dtype.str.encode() + b"\0" + little.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no form on the wire")


def _extension(code: int, data: memoryview) -> Any:
    if code == _JSON_TEXT:
        return _checked_json(bytes(data))
    name, _, numbers = bytes(data).partition(b"\0")
    dtype = name.decode(errors="replace")
    if code != _ARRAY or dtype not in _DTYPES:
        raise ValueError(f"unknown extension {code}")
    return np.frombuffer(numbers, dtype).copy()  # a view of bytes could not be written to


def _checked_json(text: bytes) -> msgspec.Raw:
    """JSON text from outside, on one line."""
    checked = checked_json(text, "A JSON text")
    return msgspec.Raw(msgspec.json.format(checked, indent=-1) if b"\n" in checked else checked)


_PACK = msgspec.msgpack.Encoder(enc_hook=_array)
_UNPACK = msgspec.msgpack.Decoder(ext_hook=_extension)
