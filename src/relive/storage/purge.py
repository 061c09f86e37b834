"""What a deleted row leaves behind, and how it is taken away: freed pages, the log, the text index, dictionaries.

A dictionary that payloads are compressed with is made of pieces of them, so what was deleted lives on in it as readable
text. Whose pieces they were cannot be told afterwards; hence another is made of what is left.
"""

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw

from relive.storage import dictionaries
from relive.storage.codec import Compressor, Decompressor
from relive.storage.connection import connect, errors_of, fetch, immediate
from relive.storage.errors import StorageBusyError
from relive.storage.reading import int64
from relive.storage.sqlite import SqliteStorage
from relive.storage.transaction import Transaction

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: not known)."""

_BODIES = ("payload", "next_state")  # tables of compressed bodies
_PART = 1000  # bodies written anew in one transaction
_PART_BYTES = 16 << 20
_PATIENCE = 3.0  # seconds for another's checkpoint; for readers SQLite has waited by itself
_PAUSE = 0.02


def overwrite_deleted(transaction: Transaction) -> None:
    """Has whatever is deleted or replaced in this transaction overwritten with zeros."""
    connection = transaction.connection
    connection.pragma("secure_delete", 1)
    transaction.on_end(lambda _committed: connection.pragma("secure_delete", 0))


def every_dictionary(connection: apsw.Connection) -> Decompressor:
    """A decompressor that knows all dictionaries of a store."""
    decompress = Decompressor()
    for number, body in fetch(connection, "SELECT id, body FROM dictionary"):
        decompress.learn(number, body)
    return decompress


def replace_dictionaries(store: SqliteStorage, tell: Progress) -> int:
    """Makes a dictionary of what is stored now and writes everything anew that needed an older one.

    A piece at a time, so that others can write in between. Ended early, it can be done again.

    Args:
        store: The store, open for writing.
        tell: Told how far it has come.

    Returns:
        How many payloads and next states were written anew.
    """
    with errors_of(store.path), closing(connect(store.path, readonly=True)) as connection:
        connection.execute("BEGIN")
        old = [row[0] for row in fetch(connection, "SELECT id FROM dictionary")]
        if not old:
            return 0
        decompress = every_dictionary(connection)
        payloads = dictionaries.sample(connection, decompress, all_codecs=True)
        whole = connection.execute("SELECT (SELECT rows FROM total) + (SELECT count(*) FROM next_state)").get
    body = dictionaries.train(payloads)
    new: tuple[int, bytes] | None = None
    if body is not None:
        new = store.write(partial(_add, body=body)).result(), body
    rewrite = partial(_rewrite, old=old, decompress=decompress, compress=Compressor(new))
    rewritten = 0
    for table in _BODIES:
        part = _Part(0, 0)
        while (part := store.write(partial(rewrite, table=table, after=part.last)).result()).rows:
            rewritten += part.rows
            tell("writing payloads anew", rewritten, whole)
    return rewritten + int(store.write(partial(_drop, old=old, rewrite=rewrite)).result())


def purge(connection: apsw.Connection, path: Path) -> None:
    """Leaves nothing in the file and its log but what is stored; must run outside a transaction.

    Raises:
        StorageBusyError: another process keeps an older view open.
    """
    connection.pragma("secure_delete", 1)
    connection.pragma("temp_store", 1)  # a copy of the whole store may be larger than the memory
    try:
        with immediate(connection):
            connection.execute("INSERT INTO state_text(state_text) VALUES ('optimize')")
            connection.execute("INSERT INTO lesson_text(lesson_text) VALUES ('optimize')")
        connection.execute("VACUUM")
        cut = _cut_log(connection)
    finally:
        connection.pragma("temp_store", 2)
        connection.pragma("secure_delete", 0)
    if not cut:
        raise StorageBusyError(
            f"It is deleted, but somebody keeps an older view of {path} open, which its log still holds; end that and "
            "forget again, to finish."
        )


def _cut_log(connection: apsw.Connection) -> bool:
    """Moves the log into the file and cuts it to nothing; False: somebody reads what is only in the log."""
    started = time.monotonic()
    while fetch(connection, "PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:  # also while another moves it
        if time.monotonic() - started > _PATIENCE:
            return False
        time.sleep(_PAUSE)
    return True


class _Part(NamedTuple):
    rows: int
    last: int


def _add(transaction: Transaction, *, body: bytes) -> int:
    return dictionaries.add(transaction.connection, body, time.time_ns() // 1000)


def _rewrite(
    transaction: Transaction, *, table: str, after: int, old: list[int], decompress: Decompressor, compress: Compressor
) -> _Part:
    """Writes some bodies anew that were written with an old dictionary; returns how many, and the id of the last."""
    overwrite_deleted(transaction)
    bodies: list[tuple[int, bytes, int]] = []
    differences: list[tuple[int, int]] = []
    size = 0
    for number, codec, body in transaction.connection.execute(
        f"""SELECT id, codec, body FROM {table} WHERE id > ? AND codec IN (SELECT value FROM carray(?))
        ORDER BY id LIMIT ?""",  # noqa: S608 - one of `_BODIES`
        (after, apsw.carray(int64(old)), _PART),
    ):
        new_codec, new_body = compress(decompress(codec, body))
        bodies.append((new_codec, new_body, number))
        differences.append((len(new_body) - len(body), number))
        size += len(new_body)
        if size > _PART_BYTES:
            break
    if not bodies:
        return _Part(0, after)
    run = transaction.connection.executemany
    run(f"UPDATE {table} SET codec = ?, body = ? WHERE id = ?", bodies)  # noqa: S608 - one of `_BODIES`
    run("UPDATE experience SET bytes = bytes + ? WHERE id = ?", differences)
    transaction.note_bytes(sum(difference for difference, _ in differences))
    return _Part(len(bodies), bodies[-1][2])


def _drop(transaction: Transaction, *, old: list[int], rewrite: Callable[..., _Part]) -> int:
    """Removes the old dictionaries, once what was written with them in the meantime is written anew too."""
    rewritten = 0
    for table in _BODIES:
        part = _Part(0, 0)
        while (part := rewrite(transaction, table=table, after=part.last)).rows:
            rewritten += part.rows
    connection = transaction.connection
    connection.execute("DELETE FROM dictionary WHERE id IN (SELECT value FROM carray(?))", (apsw.carray(int64(old)),))
    return rewritten
