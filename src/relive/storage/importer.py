"""Takes experiences from a file into a store: what can be taken is, what cannot is named by line and reason.

Each batch is one transaction in which experiences, what was fed back about them, and their identities are kept
together. So an import that was interrupted is finished by running it again, and running it a third time adds nothing.
"""

import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import msgspec

from relive.errors import InvalidExperienceError
from relive.experience import Feedback
from relive.storage import identity
from relive.storage.formats import Found, Problem, Source, read
from relive.storage.record import COLUMNS, Row, size
from relive.storage.sqlite import SqliteStorage
from relive.storage.transaction import Transaction

KEPT_PROBLEMS = 1_000
"""At most so many problems are listed in a report; all are counted."""

_BATCH_ROWS = 256
_BATCH_BYTES = 4 << 20
_IN_FLIGHT = 8
_PARENT = COLUMNS.index("parent")


class ImportReport(msgspec.Struct):
    """What became of a file.

    Attributes:
        source: The file.
        format: The format it was read as; ``"none"``: the file is empty.
        imported: Experiences added.
        known: Experiences that were in the store already.
        failed: Records that could not be taken.
        problems: Line and reason of each of them, the first `KEPT_PROBLEMS`.
        ignored: What was left out on purpose, and how often.
    """

    source: str
    format: str
    imported: int = 0
    known: int = 0
    failed: int = 0
    problems: list[tuple[int, str]] = []
    ignored: dict[str, int] = {}


class _Taken(NamedTuple):
    """An experience on its way into the store."""

    found: Found
    row: Row


def import_file(
    path: str | os.PathLike[str] | Source,
    storage: SqliteStorage,
    *,
    format: str | None = None,  # noqa: A002 - what it is called everywhere
    agent: str | None = None,
    policy: str | None = None,
    tags: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Imports a file of experiences; see `relive.storage.formats` for the formats.

    Args:
        path: The file, plain or packed by gzip or zstandard; ``-``: standard input; or a `Source` that is open.
        storage: The store; what it redacts is redacted here too.
        format: Name of the format; ``None``: it is told by the content.
        agent: Who acted, whatever the file says; ``None``: as the file says.
        policy: The policy or model that acted, whatever the file says.
        tags: Tags added to each experience.
        progress: Called now and then with the bytes read so far and the bytes of the file.

    Raises:
        SourceError: the file cannot be read, is not UTF-8, or has no known format. Nothing was imported.
        StorageFullError: no room left; what was imported before is kept, a second run adds the rest.
    """
    with nullcontext(path) if isinstance(path, Source) else Source(path) as source:
        name, items = read(source, format)
        report = ImportReport(source.name, name)
        ignored: Counter[str] = Counter()
        pending: deque[Future[tuple[int, int]]] = deque()

        def settle(until: int) -> None:
            while len(pending) > until:
                imported, known = pending.popleft().result()
                report.imported += imported
                report.known += known

        def fail(problem: Problem) -> None:
            report.failed += 1
            if len(report.problems) < KEPT_PROBLEMS:
                report.problems.append((problem.line, problem.reason))

        def taken() -> Iterator[_Taken]:
            for item in items:
                if isinstance(item, Found):
                    found = _labelled(item, agent, policy, tags)
                    try:
                        [row] = storage.encode([found.transition], priorities=[found.priority], uids=[found.uid])
                    except InvalidExperienceError as error:
                        fail(Problem(found.line, str(error)))
                        continue
                    yield _Taken(found, row)
                elif isinstance(item, Problem):
                    fail(item)
                else:
                    ignored[item.what] += 1

        try:
            for batch in _batches(taken()):
                pending.append(
                    storage.write(
                        _writing(batch, storage.encode_feedback), len(batch), sum(size(one.row) for one in batch)
                    )
                )
                settle(_IN_FLIGHT - 1)
                if progress is not None:
                    progress(source.position, source.size)
            settle(0)
        except BaseException:
            with suppress(Exception):  # the first error is the one to hear of
                settle(0)
                _note(storage, report)
            raise
        _note(storage, report)
        if progress is not None:
            progress(source.size, source.size)
        report.ignored = dict(ignored)
    return report


def _note(storage: SqliteStorage, report: ImportReport) -> None:
    """Writes down in the audit what was imported."""
    after = {name: getattr(report, name) for name in ("format", "imported", "known", "failed")}
    storage.write(lambda transaction: transaction.audit("import", target=report.source, after=after)).result()


def _labelled(found: Found, agent: str | None, policy: str | None, tags: Sequence[str]) -> Found:
    changes: dict[str, object] = {}
    if agent is not None:
        changes["agent"] = agent
    if policy is not None:
        changes["policy"] = policy
    if tags:
        changes["tags"] = tuple(dict.fromkeys([*found.transition.tags, *tags]))
    if not changes:
        return found
    return found._replace(transition=msgspec.structs.replace(found.transition, **changes))


def _batches(taken: Iterator[_Taken]) -> Iterator[list[_Taken]]:
    batch: list[_Taken] = []
    waiting = 0  # bytes
    for one in taken:
        batch.append(one)
        waiting += size(one.row)
        if len(batch) == _BATCH_ROWS or waiting >= _BATCH_BYTES:
            yield batch
            batch, waiting = [], 0
    if batch:
        yield batch


def _writing(
    batch: list[_Taken], encode_feedback: Callable[[Feedback], tuple[Any, ...]]
) -> Callable[[Transaction], tuple[int, int]]:
    """What adds a batch inside a transaction; it answers how many were added and how many were there already."""

    def act(transaction: Transaction) -> tuple[int, int]:
        prefix = identity.store_prefix(transaction.connection)
        known = 0
        added: list[tuple[int, Found]] = []
        waiting: list[_Taken] = []

        def append() -> None:
            nonlocal known
            ids = transaction.append([one.row for one in waiting])
            for number, one in zip(ids, waiting, strict=True):
                if number is None:
                    known += 1
                else:
                    added.append((number, one.found))
            waiting.clear()

        for one in batch:
            if _is_own(transaction, prefix, one.found.uid):
                known += 1
                continue
            if one.found.parent is not None:  # it may be among those that are still waiting
                append()
                parent = identity.find(transaction.connection, prefix, one.found.parent)
                columns = (*one.row.columns[:_PARENT], parent, *one.row.columns[_PARENT + 1 :])
                one = one._replace(row=one.row._replace(columns=columns))
            waiting.append(one)
        append()
        for number, found in added:
            for feedback in found.feedback:
                if feedback.episode_id is None:
                    feedback = msgspec.structs.replace(feedback, experience_id=number)
                transaction.feedback(encode_feedback(feedback))
        return len(added), known

    return act


def _is_own(transaction: Transaction, prefix: bytes, uid: bytes) -> bool:
    return identity.own_id(prefix, uid) is not None and identity.find(transaction.connection, prefix, uid) is not None
