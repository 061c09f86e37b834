"""What a payload and its tokens look like on disk: JSON compressed by zstandard, arrays raw; never a pickle.

How values survive, exactly:

- Whole numbers of any size keep every digit. Floating-point numbers come back as the same double; text such as
  ``1.10`` keeps its digits only inside a string (as a tool call's arguments are) or as `msgspec.Raw`, whose JSON text
  is checked, stored byte for byte and exported so.
- NaN and infinity have no JSON form and become ``null``.
- Text is kept code point by code point, NUL included. The two halves of a surrogate pair become the one character they
  mean; a lone half, which no UTF-8 can hold, becomes U+FFFD, here as in export and on pages.
- Tuples become lists, keys that are no text become text, NumPy arrays become lists, bytes become Base64 text.
"""

import json
import re
import threading
import zlib
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from relive.errors import InvalidExperienceError
from relive.experience import TokenTrace
from relive.storage._text import is_plain
from relive.storage.errors import DamagedStoreError

PLAIN = 0
"""Codec of a body that is the JSON text itself."""

ZSTD = 1
"""Codec of a body that is one zstandard frame, without a dictionary."""

LEVEL = 3
_SMALLEST_COMPRESSED = 64  # bytes; below, the frame's header outweighs what it saves
_FEW, _MANY = 4, 128  # texts: below the first one by one, from the second in two threads
MOST_NESTED = 200
"""Levels of lists and objects in one stored value: what is written can be read on any stack, by any program."""

_TOO_DEEP = "{} is nested too deeply to be stored as JSON."
_MOST_DIGITS = 4300  # Python refuses longer ones in int(): converting them is quadratic

_HAS_LOGPROBS, _HAS_VERSIONS = 1, 2
_CRC = 4  # bytes


class TraceRow(NamedTuple):
    """A `TokenTrace` as the columns of its table, without the id."""

    length: int
    parts: int
    temperature: float | None
    top_p: float | None
    tokenizer: str | None
    body: bytes


def clean_text(text: str) -> str:
    """`text` as UTF-8 can hold it: halves of a surrogate pair joined, a lone half replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode_json(value: Any, what: str = "The experience") -> bytes:
    """JSON text of any JSON value, in UTF-8.

    Args:
        value: The value.
        what: What it is, for error messages.

    Raises:
        InvalidExperienceError: an object in it has no JSON form, or it is nested too deeply.
    """
    try:
        try:
            return _ENCODER.encode(value)
        except (UnicodeEncodeError, ValueError, OverflowError):  # half a pair; more digits than Python prints
            return _ENCODER.encode(_clean(value))
    except RecursionError as error:
        raise InvalidExperienceError(_TOO_DEEP.format(what)) from error
    except (TypeError, NotImplementedError) as error:
        raise InvalidExperienceError(f"{what} is not made of JSON values: {error}") from error


def encode_payload(value: Any, what: str) -> bytes:
    """JSON text that is stored to be read again by anybody: what was handed over as text is checked, too.

    Args:
        value: Any JSON value.
        what: What it is, for error messages.

    Raises:
        InvalidExperienceError: it has no JSON form, holds text that is no JSON, or is nested more than `MOST_NESTED`
            levels deep.
    """
    text = encode_json(value, what)
    return text if is_plain(value, MOST_NESTED) else checked_json(text, what)


def checked_json(text: bytes, what: str) -> bytes:
    """JSON text, with lone halves of surrogate pairs replaced.

    Raises:
        InvalidExperienceError: it is no JSON in UTF-8, or nested more than `MOST_NESTED` levels deep.
    """
    try:
        try:
            _SKIMMER.decode(text)
        except msgspec.DecodeError:
            text = whole_escapes(text)
            _SKIMMER.decode(text)
        if not text.isascii():
            text.decode()  # the skimmer takes any bytes
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidExperienceError(f"{what} is no JSON text: {error}") from error
    except RecursionError as error:
        raise InvalidExperienceError(_TOO_DEEP.format(what)) from error
    if text.count(b"[") + text.count(b"{") > MOST_NESTED and _is_deep(text):
        raise InvalidExperienceError(_TOO_DEEP.format(what))
    return text


def whole_escapes(text: bytes) -> bytes:
    """JSON text in which each escape of half a surrogate pair that stands alone is that of U+FFFD."""
    if _HALF_ESCAPE.search(text) is None:
        return text
    return _ESCAPE.sub(lambda match: rb"\ufffd" if len(match[0]) == _HALF else match[0], text)


def _is_deep(text: bytes) -> bool:
    """Whether valid JSON text is nested more than `MOST_NESTED` levels deep."""
    brackets = _STRING.sub(b"", text).translate(_ROUND, _NO_BRACKETS)
    for _ in range(MOST_NESTED):
        if not brackets:
            return False
        brackets = brackets.replace(b"()", b"")  # takes away at least the innermost level
    return bool(brackets)


def decode_json(text: bytes) -> Any:
    """The value of JSON text that `encode_json` wrote."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:  # raw text may hold what only a lenient reader takes: 1e400, a lone surrogate's escape
        return json.loads(text, parse_int=_parse_int)


class Compressor:
    """Makes stored bodies; one thread at a time uses it."""

    def __init__(self, dictionary: tuple[int, bytes] | None = None) -> None:
        """Args: dictionary: its codec number and bytes, used from now on; ``None``: none is trained yet."""
        self.codec = ZSTD
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        if dictionary is not None:
            self.codec = dictionary[0]
            trained = zstandard.ZstdCompressionDict(dictionary[1])
            trained.precompute_compress(level=LEVEL)
            self._compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=trained, write_checksum=True)

    def many(self, texts: list[bytes]) -> list[tuple[int, bytes]]:
        """The codec number and the body of each text; the interpreter is let go of once, not once a text."""
        if len(texts) < _FEW:
            return [self(text) for text in texts]
        whole: list[bytes | bytearray | memoryview] = [*texts]
        made = self._compressor.multi_compress_to_buffer(whole, threads=2 if len(texts) >= _MANY else 0)
        bodies = [made[place].tobytes() for place in range(len(texts))]
        return [
            (self.codec, body) if len(text) >= _SMALLEST_COMPRESSED and len(body) < len(text) else (PLAIN, text)
            for text, body in zip(texts, bodies, strict=True)
        ]

    def __call__(self, text: bytes) -> tuple[int, bytes]:
        """The codec number and the body for a payload's JSON text."""
        if len(text) < _SMALLEST_COMPRESSED:
            return PLAIN, text
        body = self._compressor.compress(text)
        return (self.codec, body) if len(body) < len(text) else (PLAIN, text)


class Decompressor:
    """Reads stored bodies; any number of threads may use it."""

    def __init__(self) -> None:
        self._dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
        self._local = threading.local()  # a decompressor must not run in two threads at once

    def knows(self, codec: int) -> bool:
        """Whether bodies of this codec can be read without another dictionary."""
        return codec in (PLAIN, ZSTD) or codec in self._dictionaries

    def learn(self, codec: int, dictionary: bytes) -> None:
        """Adds the dictionary whose bodies have this codec."""
        self._dictionaries[codec] = zstandard.ZstdCompressionDict(dictionary)

    def __call__(self, codec: int, body: bytes) -> bytes:
        """The JSON text of a body."""
        if codec == PLAIN:
            return body
        readers: dict[int, zstandard.ZstdDecompressor] = self._local.__dict__.setdefault("readers", {})
        reader = readers.get(codec)
        if reader is None:
            reader = readers[codec] = zstandard.ZstdDecompressor(dict_data=self._dictionaries.get(codec))
        return reader.decompress(body)


def encode_trace(trace: TokenTrace) -> TraceRow:
    """The columns of a token trace; arrays are little-endian, versions run-length encoded as (version, count) pairs.

    The body ends with its own CRC-32: arrays look right whatever happened to their bytes.
    """
    parts = 0
    body = [trace.token_ids.astype("<i4").tobytes(), trace.mask.astype("u1").tobytes()]
    if trace.logprobs is not None:
        parts |= _HAS_LOGPROBS
        body.append(trace.logprobs.astype("<f4").tobytes())
    if trace.versions is not None:
        parts |= _HAS_VERSIONS
        starts = np.flatnonzero(np.diff(trace.versions, prepend=trace.versions[:1] - 1))
        counts = np.diff(starts, append=len(trace.versions))
        body.append(np.stack([trace.versions[starts], counts], axis=1).astype("<i4").tobytes())
    tokenizer = None if trace.tokenizer is None else clean_text(trace.tokenizer)
    joined = b"".join(body)
    joined += zlib.crc32(joined).to_bytes(_CRC, "little")
    return TraceRow(len(trace.token_ids), parts, trace.temperature, trace.top_p, tokenizer, joined)


def decode_trace(row: TraceRow) -> TokenTrace:
    """The token trace of its columns.

    Raises:
        DamagedStoreError: the body is not what was written.
    """
    content = row.body[:-_CRC]
    if zlib.crc32(content) != int.from_bytes(row.body[-_CRC:], "little"):
        raise DamagedStoreError("The tokens of an experience are damaged; `relive check` says what else is.")
    length, at = row.length, 5 * row.length
    logprobs = versions = None
    if row.parts & _HAS_LOGPROBS:
        logprobs = np.frombuffer(content, "<f4", length, at)
        at += 4 * length
    if row.parts & _HAS_VERSIONS:
        runs = np.frombuffer(content, "<i4", -1, at).reshape(-1, 2)
        versions = np.repeat(runs[:, 0], runs[:, 1])
    return TokenTrace(
        token_ids=np.frombuffer(content, "<i4", length),
        mask=np.frombuffer(content, "u1", length, 4 * length),
        logprobs=logprobs,
        versions=versions,
        temperature=row.temperature,
        top_p=row.top_p,
        tokenizer=row.tokenizer,
    )


def _json_form(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is not a JSON value")


def _clean(value: Any) -> Any:
    """The same value with text that UTF-8 can hold and integers of any length as raw digits."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return msgspec.Raw(f"{Decimal(value):f}".encode())
    return value


def _parse_int(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else int(Decimal(digits))


_ENCODER = msgspec.json.Encoder(enc_hook=_json_form)
_DECODER = msgspec.json.Decoder()
_SKIMMER = msgspec.json.Decoder(msgspec.Raw)  # looks at the grammar alone, two microseconds for 4 KB

_HALF_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a whole pair
    rb"|u[dD][89a-fA-F][0-9a-fA-F]{2}"  # half of one
    rb"|.)",
    re.DOTALL,
)
_HALF = len(rb"\ud83d")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ROUND = bytes.maketrans(b"[{]}", b"(())")
_NO_BRACKETS = bytes(code for code in range(256) if code not in b"[{]}")
