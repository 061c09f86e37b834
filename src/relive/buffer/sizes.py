"""How much memory an experience takes, for the limit on bytes and the statistics."""

import sys
from collections import deque
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)  # shared by all, and no part of an experience


def estimated_bytes(experience: Any) -> int:
    """Size of an object and of all that it holds, in bytes.

    Containers, msgspec structs, and the attributes and slots of any other object are followed. What it holds several
    times counts once; what it shares with other experiences counts in each.
    """
    seen: dict[int, Any] = {}  # by identity; holds what was made on the way, so that no identity is given again
    waiting = [experience]
    size = 0
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        size += sys.getsizeof(value)
        if type(value) in _PLAIN or isinstance(value, _CODE):
            continue
        if isinstance(value, np.ndarray):
            size += 0 if value.base is None else value.nbytes
            waiting += value.flat if value.dtype.hasobject else ()
        else:
            size += _beside(value)
            waiting += _held(value)
    return size


def _beside(value: Any) -> int:
    """Bytes of a tensor's or view's numbers, which lie outside of the object."""
    size = 0 if isinstance(value, np.generic) else getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _held(value: Any) -> list[Any]:
    """What an object holds."""
    held: list[Any] = []
    if isinstance(value, dict):
        held += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        held += value
    elif isinstance(value, msgspec.Struct):
        return [getattr(value, field) for field in value.__struct_fields__]
    if hasattr(value, "__dict__"):
        held.append(vars(value))
    for kind in type(value).__mro__:
        for member in vars(kind).values():
            if isinstance(member, MemberDescriptorType):
                try:
                    held.append(member.__get__(value))
                except AttributeError:
                    continue  # a slot that was never set
    return held
