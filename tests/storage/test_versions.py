"""Stores of every earlier schema version open, lose nothing, and become what a new store is.

``versions/N.db.zst`` is a store that the Relive with schema version N wrote, with `CONTENT` in it. When the schema gets
a new version, run this file as a program before changing `SCHEMA_VERSION`'s tables any further: it writes the store of
the present version. A file that is there is never made again: it is what users have.
"""

import hashlib
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import apsw
import numpy as np
import pytest
import zstandard

from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.playbook.book import Playbook
from relive.storage import NewerStoreError, SqliteStorage
from relive.storage.check import check
from relive.storage.connection import connect
from relive.storage.recover import recover
from relive.storage.schema import SCHEMA_VERSION
from relive.train.gate import Gate
from relive.train.paired import differences

FOLDER = Path(__file__).parent / "versions"
VERSIONS = range(1, SCHEMA_VERSION + 1)
TIME = datetime(2026, 11, 30, 12, tzinfo=UTC)
CONTENT = [
    Transition(
        state={"messages": [{"role": "user", "content": f"Where is parcel {number}?"}]},
        action={"role": "assistant", "content": "On its way. " * 20},
        next_state={"number": 12345678901234567890123} if number else None,
        reward=0.25 * number,
        terminated=number == 3,
        outcome="failure",
        agent="support",
        episode_id="one",
        step=number,
        group_id="group",
        tags=("first", "é"),
        policy="model",
        policy_version=2,
        usage=Usage(input_tokens=10, output_tokens=number),
        cost=1_500,
        latency_ms=12.5,
        error=None if number else "late",
        created_at=TIME,
        tokens=TokenTrace(token_ids=np.arange(5), mask=np.ones(5, np.uint8), logprobs=np.full(5, -0.5, np.float32)),
    )
    for number in range(4)
]


def make(path: Path) -> None:
    """Writes a store with `CONTENT`, a removed experience, and feedback that makes the last one a success."""
    with SqliteStorage(path) as storage:
        ids = storage.append(
            [*CONTENT, CONTENT[0]], priorities=[1.0, 2.0, 3.0, 4.0, 5.0], uids=[b"u" * 16, *[None] * 4]
        )
        storage.delete([ids[-1] or 0])
        storage.feedback(Feedback(experience_id=ids[3], source="user", reward=1.0, demonstration={"do": "this"}))
        book = Playbook(storage, author="ann")
        book.add("Name the day of delivery", when="somebody asks where a parcel is", evidence=[ids[3] or 0])
        book.approve(1)
        gate = Gate(storage, "support", author="ann")
        gate.check(gate.propose("weights/1").id, differences([f"task {n}" for n in range(40)], [1] * 40, [0] * 40))


def unpacked(version: int, folder: Path) -> Path:
    path = folder / f"{version}.db"
    with (FOLDER / f"{version}.db.zst").open("rb") as file, path.open("wb") as out:
        zstandard.ZstdDecompressor().copy_stream(file, out)
    return path


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(connect(path, readonly=True)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_every_version_opens_with_all_it_held(version: int, tmp_path: Path) -> None:
    path = unpacked(version, tmp_path)
    with SqliteStorage(path) as storage:
        found = storage.query(limit=10)
        assert [s.id for s in found] == [1, 2, 3, 4]
        assert [s.transition for s in found[:3]] == CONTENT[:3]
        assert (found[3].reward, found[3].outcome, found[3].recorded) == (1.0, "success", (0.75, "failure"))
        assert found[0].uid == b"u" * 16
        assert [f.demonstration for f in storage.feedback_of(4)] == [{"do": "this"}]
        assert next(number for number, _ in storage.search("parcel 2")) == 3
        assert len(storage.query(tag="é")) == 4
        assert storage.append([CONTENT[0]]) == [6], "no id is given out again"
    assert check(path).problems == []


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 2])
def test_lessons_of_every_version_are_there_and_found(version: int, tmp_path: Path) -> None:
    with SqliteStorage(unpacked(version, tmp_path)) as storage:
        book = Playbook(storage)
        (found,) = book.search("where is my parcel")
        assert found.lesson.text.do == "Name the day of delivery"
        assert (found.lesson.status, found.lesson.support) == ("active", 1)
        assert [(one.change, one.who) for one in book.history(1)] == [("add", "ann"), ("approve", "ann")]


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 4])
def test_policy_versions_of_every_version_are_there_with_their_evidence(version: int, tmp_path: Path) -> None:
    with SqliteStorage(unpacked(version, tmp_path)) as storage:
        gate = Gate(storage, "support")
        (policy,) = gate.versions()
        assert (policy.name, policy.status, policy.share) == ("weights/1", "trial", 0.05)
        assert gate.serving().trial == policy
        (check_made,) = gate.checks(policy.id)
        assert (check_made.who, check_made.found.held_out.tasks, check_made.found.held_out.mean) == ("ann", 40, 1.0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_every_version_becomes_what_a_new_store_is(version: int, tmp_path: Path) -> None:
    path = unpacked(version, tmp_path)
    with SqliteStorage(path), SqliteStorage(tmp_path / "new.db"):
        pass
    assert schema(path) == schema(tmp_path / "new.db")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_every_version_can_be_recovered(version: int, tmp_path: Path) -> None:
    report = recover(unpacked(version, tmp_path), tmp_path / "new.db")
    assert report.complete
    with SqliteStorage(tmp_path / "new.db") as storage:
        assert [s.transition for s in storage.query(limit=3)] == CONTENT[:3]


@pytest.mark.parametrize("version", VERSIONS)
def test_sto_03_a_store_of_a_newer_version_is_refused_untouched(version: int, tmp_path: Path) -> None:
    path = unpacked(version, tmp_path)
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("ALTER TABLE experience ADD COLUMN mood TEXT NOT NULL DEFAULT 'good'")
        connection.pragma("user_version", SCHEMA_VERSION + 1)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    attempts = (
        lambda: SqliteStorage(path),
        lambda: SqliteStorage(path, readonly=True),
        lambda: check(path),
        lambda: recover(path, tmp_path / "new.db"),
    )
    for attempt in attempts:
        with pytest.raises(NewerStoreError, match=rf"{path}.*version {SCHEMA_VERSION + 1}.*to {SCHEMA_VERSION}"):
            attempt()
        assert hashlib.sha256(path.read_bytes()).hexdigest() == before
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


if __name__ == "__main__":
    target = FOLDER / f"{SCHEMA_VERSION}.db.zst"
    if target.exists():
        sys.exit(f"{target.name} is there already: it is what users have.")
    store = FOLDER / "unfinished.db"
    make(store)
    target.write_bytes(zstandard.ZstdCompressor(level=22).compress(store.read_bytes()))
    for suffix in ("", "-wal", "-shm"):
        Path(f"{store}{suffix}").unlink(missing_ok=True)
