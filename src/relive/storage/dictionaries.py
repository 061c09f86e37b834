"""A zstandard dictionary for the payloads of one store, trained in the background once there are enough to learn from.

Payloads of one store repeat each other (system prompts, tool descriptions, phrases), which a frame of its own cannot
use. A dictionary is a row of the table ``dictionary`` and stays there as long as a payload needs it; what was written
before it is read as before. Processes that write to the same file share it: whoever finds one uses it.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import apsw
import zstandard

from relive.storage.codec import Compressor, Decompressor
from relive.storage.connection import fetch
from relive.storage.errors import StorageError
from relive.storage.schema import FIRST_DICTIONARY

TRAIN_AT = 3_000
"""Experiences a store must hold before its dictionary is trained."""

DICTIONARY_BYTES = 64 << 10
FORGOTTEN = "forgotten"
"""Setting that counts how often something was forgotten; a dictionary learnt from what was there before is not kept."""

_MOST_BYTES = 16 << 20  # of payloads to learn from
_LEAST_GAIN = 0.9  # of the size without a dictionary; above it, reading a dictionary at every start is not worth it
_TEST_EVERY = 10  # one payload in so many is kept out of the training, to measure the gain


def newest(connection: apsw.Connection) -> tuple[int, bytes] | None:
    """Codec number and bytes of the newest dictionary; ``None``: there is none."""
    rows = fetch(connection, "SELECT id, body FROM dictionary ORDER BY id DESC LIMIT 1")
    return rows[0] if rows else None


def forgotten(connection: apsw.Connection) -> int:
    """How often something was forgotten."""
    return int(connection.execute("SELECT value FROM setting WHERE name = ?", (FORGOTTEN,)).get or 0)


def add(connection: apsw.Connection, body: bytes, created_at: int) -> int:
    """Stores a dictionary inside a write transaction and returns its codec number."""
    # A number is never given twice: another process may still write with a dictionary that was removed since.
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'dictionary'").get
    number: int = max(FIRST_DICTIONARY, (last or 0) + 1)
    connection.execute("INSERT INTO dictionary VALUES (?, ?, ?)", (number, created_at, body))
    return number


def train(payloads: Sequence[bytes]) -> bytes | None:
    """A dictionary for payloads like these (JSON texts); ``None``: none would help."""
    held_out = payloads[::_TEST_EVERY]
    learnt: list[bytes | bytearray | memoryview] = [
        payload for number, payload in enumerate(payloads) if number % _TEST_EVERY
    ]
    try:
        body = zstandard.train_dictionary(DICTIONARY_BYTES, learnt).as_bytes()
    except zstandard.ZstdError:  # too little to learn from
        return None
    plain, trained = Compressor(), Compressor((FIRST_DICTIONARY, body))
    without = sum(len(plain(payload)[1]) for payload in held_out)
    return body if sum(len(trained(payload)[1]) for payload in held_out) < _LEAST_GAIN * without else None


def sample(connection: apsw.Connection, decompress: Decompressor, *, all_codecs: bool = False) -> list[bytes]:
    """Payloads to learn from: the newest, up to `TRAIN_AT` of them and 16 MB.

    Args:
        connection: Any connection.
        decompress: Knows the dictionaries of the payloads that are read.
        all_codecs: Also those that were written with a dictionary.
    """
    result: list[bytes] = []
    total = 0
    for codec, body in connection.execute(
        "SELECT codec, body FROM payload WHERE codec < ? ORDER BY id DESC LIMIT ?",
        (2**62 if all_codecs else FIRST_DICTIONARY, TRAIN_AT),
    ):
        text = decompress(codec, body)
        total += len(text)
        if total > _MOST_BYTES:
            break
        result.append(text)
    return result


class Trainer:
    """Trains a store's dictionary once, in a thread of its own.

    Args:
        reading: Gives a connection for reading.
        keep: Stores a new dictionary, so that the writer uses it from its next transaction on; also told how often
            something had been `forgotten` when its payloads were read.
    """

    def __init__(
        self, reading: Callable[[], AbstractContextManager[apsw.Connection]], keep: Callable[[bytes, int], Any]
    ) -> None:
        self._reading = reading
        self._keep = keep
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins, unless it has begun before; where the system has no room for a thread, a later call does."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="relive-dictionary", daemon=True)
            with suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def wait(self) -> None:
        """Returns once the training under way, if there is one, has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._reading() as connection:
                payloads, forgotten_before = sample(connection, Decompressor()), forgotten(connection)
            body = train(payloads)
            if body is not None:
                self._keep(body, forgotten_before)
        except (StorageError, apsw.Error):
            return  # the store was closed meanwhile, or cannot be read: then its users hear of it themselves
