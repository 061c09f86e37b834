"""One file for a buffer's state, without pickle: nothing that is read can run.

Layout: 8 bytes ``RELIVEB1``, the length of the header (uint64), the header in MessagePack, the arrays, and the CRC-32
(uint32) of all before it. Arrays begin at multiples of 64 bytes; in the header an array is its type, its shape and its
offset from the first one. Numbers are little-endian. The file gets its name only once it is whole and on the disk.

Kept exactly: None, bool, int of any size, float, str, bytes, list, tuple, dict, NumPy arrays and scalars of fixed size,
and `Transition`.
"""

import math
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.errors import BufferStateError
from relive.errors import InvalidExperienceError
from relive.experience import Transition

_MAGIC = b"RELIVEB1"
_ALIGN = 64
_INTEGERS = range(-(2**63), 2**63)
_MOST_NESTED = 220  # levels; reading takes more of the stack than writing, and what is written must be readable

# Codes of what MessagePack has no type for.
_ARRAY, _SCALAR, _TUPLE, _INTEGER, _MAP, _TRANSITION, _TEXT = range(1, 8)


def write_state(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Writes a state; an earlier file of that name is replaced at once or not at all.

    Raises:
        BufferStateError: something in it cannot be kept; the message says where and what.
        OSError: the file cannot be written.
    """
    packer = _Packer()
    try:
        header = msgspec.msgpack.encode(packer.pack(state, ""))
    except RecursionError as error:
        raise BufferStateError("An experience is nested too deeply to be kept in a file.") from error
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with unfinished.open("xb") as file:
            checksum = 0
            for part in _parts(header, packer.arrays):
                checksum = zlib.crc32(part, checksum)
                file.write(part)
            file.write(checksum.to_bytes(4, "little"))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)  # the new name, too, shall survive a loss of power
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a state back.

    Raises:
        BufferStateError: the file is not one of a buffer, or is damaged, or of a newer version.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    with Path(path).open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise BufferStateError(f"{name} is not a saved buffer; it must come from ReplayBuffer.save.")
    data: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
    if len(data) < 20 or zlib.crc32(data[:-4].data) != int.from_bytes(bytes(data[-4:]), "little"):
        raise BufferStateError(f"{name} is damaged: its checksum does not match; take an earlier one.")
    end = 16 + int.from_bytes(bytes(data[8:16]), "little")
    unpack = _Unpacker(data[end + -end % _ALIGN :])
    try:
        state: dict[str, Any] = unpack.decode(bytes(data[16:end]))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise BufferStateError(f"{name} was written by a newer Relive; load it with that one.") from error
    return state


def transition_fields(transition: Transition, place: str) -> dict[str, Any]:
    """The fields of a transition as JSON values that make it again; `place` says where it is, for errors.

    Raises:
        BufferStateError: a field has a value that no transition may have.
    """
    try:
        fields = transition.to_dict()
        Transition.from_dict(fields)
    except RecursionError as error:
        raise BufferStateError(f"state{place} is nested too deeply to be kept.") from error
    except (InvalidExperienceError, NotImplementedError) as error:
        raise BufferStateError(f"state{place} cannot be kept: {error}") from error
    return fields


def _parts(header: bytes, arrays: list[npt.NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """The file's content up to the checksum."""
    yield _MAGIC + len(header).to_bytes(8, "little") + header
    written = 16 + len(header)
    for array in arrays:
        yield bytes(-written % _ALIGN)
        if array.nbytes:
            yield array.reshape(-1).view(np.uint8).data
        written = array.nbytes


class _Packer:
    """Turns values into MessagePack's types and takes the arrays out."""

    def __init__(self) -> None:
        self.arrays: list[npt.NDArray[Any]] = []
        self._offset = 0

    def pack(self, value: Any, place: str, level: int = 0) -> Any:
        """The value in MessagePack's types; `place` says where it is, for errors, `level` how deep."""
        if level > _MOST_NESTED:
            raise RecursionError
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is str:
            return value if _is_unicode(value) else _extension(_TEXT, value.encode("utf-8", "surrogatepass"))
        if kind is int:
            return value if value in _INTEGERS else _extension(_INTEGER, hex(value))
        if kind is dict:
            pairs = [(key, self.pack(item, f"{place}[{key!r}]", level + 1)) for key, item in value.items()]
            if all(type(key) is str and _is_unicode(key) for key in value):
                return dict(pairs)
            return _extension(_MAP, [[self.pack(key, place, level + 1), item] for key, item in pairs])
        if kind in (list, tuple):
            items = [self.pack(item, f"{place}[{position}]", level + 1) for position, item in enumerate(value)]
            return items if kind is list else _extension(_TUPLE, items)
        if kind is Transition:
            return _extension(_TRANSITION, self.pack(transition_fields(value, place), place, level))
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject and value.dtype.names is None:
            return _extension(_ARRAY if isinstance(value, np.ndarray) else _SCALAR, self._array(np.asarray(value)))
        raise BufferStateError(
            f"state{place} is a {kind.__module__}.{kind.__qualname__}, which a file cannot hold without pickle; keep "
            "JSON values, arrays or Transition, or use relive.open for a durable memory."
        )

    def _array(self, value: npt.NDArray[Any]) -> list[Any]:
        dtype = value.dtype.newbyteorder("<")
        self.arrays.append(np.ascontiguousarray(value, dtype=dtype))
        offset = self._offset
        self._offset += value.nbytes + -value.nbytes % _ALIGN
        return [dtype.str, list(value.shape), offset]


class _Unpacker:
    """Turns MessagePack's types back into values.

    Args:
        data: The file's bytes from the first array on.
    """

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._data = data

    def decode(self, content: bytes | memoryview) -> Any:
        """The value that was packed."""
        return msgspec.msgpack.decode(content, ext_hook=self._extension)

    def _extension(self, code: int, content: memoryview) -> Any:
        value = self.decode(content)
        if code == _ARRAY:
            return self._array(*value)
        if code == _SCALAR:
            return self._array(*value)[()]
        if code == _TUPLE:
            return tuple(value)
        if code == _INTEGER:
            return int(value, 0)
        if code == _MAP:
            return {key: item for key, item in value}  # noqa: C416  (a list of lists)
        if code == _TRANSITION:
            return Transition.from_dict(value)
        if code == _TEXT:
            return str(value, "utf-8", "surrogatepass")
        raise ValueError(f"Unknown kind of value {code}.")

    def _array(self, name: str, shape: list[int], offset: int) -> npt.NDArray[Any]:
        dtype = np.dtype(name)
        size = dtype.itemsize * math.prod(shape)
        return np.array(self._data[offset : offset + size].view(dtype).reshape(shape))


def _is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode; half of a surrogate pair (a cut emoji) is not, and UTF-8 has no bytes for it."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _extension(code: int, content: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))
