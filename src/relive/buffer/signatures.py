"""64-bit signatures whose Hamming distance tells how different two experiences are.

Near-copies differ in a few bits; what has nothing in common differs in about 32.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.fields import field

Signatures = npt.NDArray[np.uint64]

NGRAM = 5
"""Bytes in a row that count as one feature of a text."""

LONGEST_TEXT = 65_536
"""Bytes of a text that are looked at: its first and last halves, when it is longer."""

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def simhash(text: bytes) -> np.uint64:
    """SimHash of the n-grams of a text (Charikar 2002, "Similarity estimation techniques from rounding algorithms").

    Each different n-gram is hashed to 64 bits; bit k of the signature is what most of the hashes have there.
    """
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT // 2] + text[-LONGEST_TEXT // 2 :]
    padded = np.frombuffer(text.ljust(NGRAM, b"\0"), dtype=np.uint8)
    grams = np.zeros(len(padded) - NGRAM + 1, dtype=np.uint64)
    for place in range(NGRAM):
        grams = (grams << np.uint64(8)) | padded[place : len(padded) - NGRAM + 1 + place]
    hashes = _mix(np.unique(grams))
    ones = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0, dtype=np.int64)
    return _packed(2 * ones > len(hashes))


def projection_signs(vector: npt.NDArray[Any]) -> np.uint64:
    """Signs of 64 random projections of a vector (the same paper): the distance grows with the angle between vectors.

    The projections are fixed: the same length gives the same ones always.
    """
    flat = np.asarray(vector, dtype=np.float64).reshape(-1)
    return _packed(_projections(len(flat)) @ flat > 0)


def signature(value: Any) -> np.uint64:
    """Signature of anything: numeric arrays and lists of numbers by projections, text and JSON values by n-grams."""
    if isinstance(value, bytes):
        return simhash(value)
    if isinstance(value, str):
        return simhash(value.encode("utf-8", "replace"))
    if isinstance(value, np.ndarray | list | tuple):
        array = np.asarray(value) if _is_flat(value) else None
        if array is not None and array.dtype.kind in "fiub" and array.size > 1:
            return projection_signs(array)
    return simhash(msgspec.json.encode(value, enc_hook=_as_json, order="sorted"))


def of_experience(experience: Any, features: Callable[[Any], Any] | None = None) -> np.uint64:
    """Signature of one experience.

    Args:
        experience: A record, a mapping or anything else.
        features: What to compare: a text, a vector, a JSON value, or a ready 64-bit number. ``None``: state and action
            of what has them, the observation (``"obs"``) of a row of arrays, else the whole.
    """
    if features is not None:
        value = features(experience)
        ready = isinstance(value, int | np.integer) and not isinstance(value, bool) and 0 <= int(value) < 2**64
        return np.uint64(value) if ready else signature(value)
    state = field(experience, "state")
    if state is not None:
        if isinstance(state, np.ndarray):
            return signature(state)
        return signature([state, field(experience, "action")])
    observation = field(experience, "obs")
    return signature(experience if observation is None else observation)


def distances(signatures: Signatures, one: np.uint64) -> npt.NDArray[np.float64]:
    """How different each is from one: 0 for equal, 1 for unrelated (32 differing bits and more)."""
    differing: npt.NDArray[np.uint8] = np.bitwise_count(signatures ^ one)
    return np.minimum(differing.astype(np.float64) / 32.0, 1.0)


def _mix(values: Signatures) -> Signatures:
    """Splitmix64's finaliser: every bit of the input moves every bit of the output."""
    with np.errstate(over="ignore"):
        z = values + _STEP
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        return np.asarray(z ^ (z >> np.uint64(31)), dtype=np.uint64)


_PROJECTIONS: dict[int, npt.NDArray[np.float64]] = {}


def _projections(length: int) -> npt.NDArray[np.float64]:
    """64 directions of +1 and -1 (which keep angles as Gaussian ones do: Achlioptas 2003)."""
    if length not in _PROJECTIONS:
        bits = np.unpackbits(_mix(np.arange(length, dtype=np.uint64)).view(np.uint8).reshape(-1, 8), axis=1)
        _PROJECTIONS[length] = 2.0 * bits.T.astype(np.float64) - 1.0
    return _PROJECTIONS[length]


def _packed(bits: npt.NDArray[np.bool_]) -> np.uint64:
    return np.uint64(np.packbits(bits).view(np.uint64)[0])


def _is_flat(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return all(isinstance(item, int | float | np.number) for item in value)


def _as_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)
