"""The fields of rows of arrays: their types and shapes, and what is said when a value does not have them."""

from collections.abc import Mapping, Sequence
from math import prod
from operator import index
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relive.buffer.blocks import RESERVED, Field
from relive.buffer.errors import BufferSettingError, SchemaError

FieldSpec = npt.DTypeLike | tuple[npt.DTypeLike, int | Sequence[int]]
"""Type of a field, or its type and shape."""

KINDS = "biufc"
"""NumPy's kinds of types that a field may have."""

LARGEST = 2**46
"""Most bytes that all rows may take: below what an address can name, so that no size can wrap around."""


class Schema:
    """The fields of a row, in order. It does not know the rows.

    Args:
        fields: Type, or type and shape, of each field.

    Raises:
        BufferSettingError: a field holds no numbers, or has a name that a batch needs for itself; the message names it.
    """

    def __init__(self, fields: Mapping[str, FieldSpec]) -> None:
        self.fields: list[Field] = [(name, *_read_spec(name, spec)) for name, spec in fields.items()]
        self.names = [name for name, _, _ in self.fields]
        if not self.fields:
            raise BufferSettingError("ArrayStorage needs at least one field.")

    def mapping(self, experience: Any) -> dict[str, Any]:
        """An experience, or columns, as a dictionary.

        Raises:
            SchemaError: it is no mapping.
        """
        if type(experience) is dict:
            return experience
        if isinstance(experience, Mapping):
            return dict(experience)
        raise SchemaError(
            f"An experience of type {type(experience).__name__} has no fields; pass a mapping of {self._wanted()}."
        )

    def value(self, field: int, value: Any, column: bool) -> npt.NDArray[Any]:
        """A value (or a column of them) in the field's type and shape.

        Raises:
            SchemaError: it has another shape, or the type cannot hold what it says; the message names the field.
        """
        name, kind, shape = self.fields[field]
        if has_masked(value):
            raise SchemaError(f"Field {name!r} has masked values, which rows cannot hold; fill them first.")
        given = _as_array(name, value)
        if not _can_become(given, kind):
            raise SchemaError(f"Field {name!r} is {kind}; values of type {given.dtype} would lose what they say.")
        wanted = ("N", *shape) if column else shape
        if given.ndim != len(wanted) or given.shape[given.ndim - len(shape) :] != shape:
            raise SchemaError(
                f"Field {name!r} has shape {_shape_text(wanted)}; the value has {_shape_text(given.shape)}."
            )
        if given.dtype.kind in "iu" and kind.kind in "iu" and not _fits(given, kind):
            raise SchemaError(f"Field {name!r} is {kind}; a value lies outside its range.")
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(given, dtype=kind).reshape(given.shape)
        if kind.kind in "fc" and not np.array_equal(np.isinf(array), np.isinf(given)):
            raise SchemaError(f"Field {name!r} is {kind}; a value lies outside its range.")
        return array

    def convert(self, field: int, value: Any, column: bool) -> npt.NDArray[np.uint8]:
        """The same as bytes, for the native rows."""
        return self.value(field, value, column).reshape(-1).view(np.uint8)

    def refuse(self, values: Mapping[str, Any]) -> NoReturn:
        """Says what is wrong with values that have other fields, or columns of unequal lengths.

        Raises:
            SchemaError: always.
        """
        missing = [name for name in self.names if name not in values]
        unknown = [name for name in values if name not in self.names]
        if missing:
            raise SchemaError(f"Field {missing[0]!r} is missing; an experience has {self._wanted()}.")
        if unknown:
            raise SchemaError(f"Field {unknown[0]!r} is not one of this buffer's fields; it has {self._wanted()}.")
        lengths = ", ".join(f"{name!r} {len(values[name])}" for name in self.names)
        raise SchemaError(f"The fields have different numbers of rows: {lengths}.")

    def _wanted(self) -> str:
        return ", ".join(repr(name) for name in self.names)


def _read_spec(name: str, spec: FieldSpec) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if not isinstance(name, str) or not name:
        raise BufferSettingError(f"A field's name is {name!r}; it must be text.")
    if name in RESERVED:
        taken = ", ".join(sorted(RESERVED))
        raise BufferSettingError(f"A field cannot be called {name!r}: a batch has {taken} itself.")
    kind: Any
    shape: Any
    kind, shape = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, ())
    try:
        dtype = np.dtype(kind)
        sizes = tuple(index(size) for size in ((shape,) if isinstance(shape, int) else shape))
    except (TypeError, ValueError) as error:
        raise BufferSettingError(
            f"Field {name!r} is {spec!r}; give a NumPy type, or a tuple of type and shape."
        ) from error
    if dtype.kind not in KINDS:  # NumPy cuts texts to the type's length and rounds times without a word
        raise BufferSettingError(
            f"Field {name!r} is of type {dtype}; arrays hold bool, integers, floats and complex numbers. "
            "Use storage=None."
        )
    if any(size < 1 for size in sizes):
        raise BufferSettingError(f"Field {name!r} has shape {sizes}; each size must be at least 1.")
    if dtype.itemsize * prod(sizes) > LARGEST:
        raise BufferSettingError(
            f"Field {name!r} has shape {sizes}, more than this machine can address; make it smaller."
        )
    return dtype.newbyteorder("="), sizes


def has_masked(value: Any) -> bool:
    """Whether an array, or one in a list, has entries that `numpy.ma` masks: as a plain array they would be data."""
    if isinstance(value, list | tuple):
        return any(map(_is_masked, value))
    return _is_masked(value)


def _is_masked(value: Any) -> bool:
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def _as_array(name: str, value: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"Field {name!r} cannot be made into an array: {error}") from error


def _can_become(values: npt.NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether values keep their meaning in another type, apart from its range and precision."""
    given = values.dtype.kind
    if given in "iu" and kind.kind in "iu":
        return True
    if given in "iuf" and kind.kind == "b":
        return bool(((values == 0) | (values == 1)).all())
    return given != "O" and np.can_cast(values.dtype, kind, "same_kind")


def _fits(values: npt.NDArray[Any], kind: np.dtype[Any]) -> bool:
    """Whether integers survive a change of type."""
    if values.size == 0:
        return True
    limits = np.iinfo(kind)
    return int(values.min()) >= limits.min and int(values.max()) <= limits.max


def _shape_text(shape: tuple[object, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
