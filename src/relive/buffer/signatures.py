"""64-bit signatures whose Hamming distance tells how different two experiences are.

Near-copies differ in a few bits; what has nothing in common differs in about 32.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from relive.buffer.fields import field, rows

Signatures = npt.NDArray[np.uint64]

NGRAM = 5
"""Bytes in a row that count as one feature of a text."""

LONGEST_TEXT = 65_536
"""Bytes of a text that are looked at: its first and last halves, when it is longer."""

_AT_ONCE = 16_384

_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)


def simhash(texts: Sequence[bytes]) -> Signatures:
    """SimHash of the n-grams of each text (Charikar 2002, "Similarity estimation techniques from rounding algorithms").

    Each n-gram is hashed to 64 bits; bit k of a signature is what most of its text's hashes have there.

    Returns:
        uint64 ``[len(texts)]``.
    """
    signatures = np.empty(len(texts), dtype=np.uint64)
    start = 0
    while start < len(texts):  # so many at a time that their hashes' bits fit into the cache
        stop, size = start, 0
        while stop < len(texts) and (stop == start or size + len(texts[stop]) <= _AT_ONCE):
            size += len(texts[stop])
            stop += 1
        signatures[start:stop] = _simhash(texts[start:stop])
        start = stop
    return signatures


def _simhash(texts: Sequence[bytes]) -> Signatures:
    cut = [
        text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT // 2] + text[-LONGEST_TEXT // 2 :] for text in texts
    ]
    padded = [text.ljust(NGRAM, b"\0") for text in cut]
    letters = np.frombuffer(b"".join(padded), dtype=np.uint8)
    grams = np.zeros(len(letters) - NGRAM + 1, dtype=np.uint64)
    for place in range(NGRAM):
        grams = (grams << np.uint64(8)) | letters[place : len(letters) - NGRAM + 1 + place]
    lengths = np.array([len(text) for text in padded])
    starts = np.cumsum(lengths) - lengths
    bits = np.unpackbits(_mix(grams).view(np.uint8).reshape(-1, 8), axis=1)
    # The grams of a text are those that begin in it and do not reach into the next one.
    edges = np.stack([starts, starts + lengths - NGRAM + 1], axis=1).reshape(-1)
    ones = np.add.reduceat(np.concatenate([bits, np.zeros((1, 64), np.uint8)]), edges, axis=0, dtype=np.int64)[::2]
    return np.packbits(2 * ones > (lengths - NGRAM + 1)[:, None], axis=1).view(np.uint64).reshape(-1)


def projection_signs(vector: npt.NDArray[Any]) -> np.uint64:
    """Signs of 64 random projections of a vector (the same paper): the distance grows with the angle between vectors.

    The projections are fixed: the same length gives the same ones always.
    """
    flat = np.asarray(vector, dtype=np.float64).reshape(-1)
    return _packed(_projections(len(flat)) @ flat > 0)


def of_experiences(experiences: Any, features: Callable[[Any], Any] | None = None) -> Signatures:
    """Signature of each experience: numbers by projections, text and JSON values by n-grams.

    Args:
        experiences: Records, mappings or anything else.
        features: What to compare: a text, a vector, a JSON value, or a ready 64-bit number. ``None``: state and action
            of what has them, the observation (``"obs"``) of a row of arrays, else the whole.
    """
    items = rows(experiences)
    signatures = np.empty(len(items), dtype=np.uint64)
    texts: list[bytes] = []
    places: list[int] = []
    for place, item in enumerate(items):
        value = _compared(item) if features is None else features(item)
        if features is not None and isinstance(value, int | np.integer) and not isinstance(value, bool):
            signatures[place] = np.uint64(value)
        elif _is_vector(value):
            signatures[place] = projection_signs(np.asarray(value))
        else:
            texts.append(_as_bytes(value))
            places.append(place)
    if texts:
        signatures[places] = simhash(texts)
    return signatures


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


def _compared(experience: Any) -> Any:
    state = field(experience, "state")
    if state is not None:
        return state if isinstance(state, np.ndarray) else [state, field(experience, "action")]
    observation = field(experience, "obs")
    return experience if observation is None else observation


def _is_vector(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.size > 1 and value.dtype.kind in "fiub"
    return (
        isinstance(value, list | tuple)
        and len(value) > 1
        and all(isinstance(item, int | float | np.number) and not isinstance(item, bool) for item in value)
    )


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return msgspec.json.encode(value, enc_hook=_as_json, order="sorted")


def _as_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else repr(value)
