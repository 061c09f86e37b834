"""What is saved of a damaged store, and that the report tells the truth about it."""

import hashlib
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import relive
from relive.experience import Feedback, TokenTrace, Transition
from relive.storage import DamagedStoreError, NotAStoreError, SqliteStorage, StoragePathError
from relive.storage.connection import PAGE_SIZE, connect
from relive.storage.pages import Pages
from relive.storage.recover import recover
from relive.storage.salvage import Salvage, shapes

WORDS = ["refund", "card", "order", "address", "ticket", "flight", "hotel", "late", "broken", "thanks", "please"]


def experience(number: int) -> Transition:
    """About 4 KB that compress badly, so that 500 of them fill many pages; every fifth has tokens."""
    chance = random.Random(number)
    text = " ".join(chance.choice(WORDS) + str(chance.getrandbits(40)) for _ in range(250))
    tokens = None
    if number % 5 == 0:
        tokens = TokenTrace(token_ids=np.arange(number, number + 3_000), mask=np.ones(3_000, np.uint8))
    return Transition(
        state={"messages": [{"role": "user", "content": text}]},
        action={"role": "assistant", "content": f"answer {number}"},
        reward=number / 2 if number % 2 else None,
        agent=f"agent {number % 3}",
        episode_id=f"episode {number // 4}",
        step=number % 4,
        tags=("odd",) if number % 2 else (),
        tokens=tokens,
        created_at=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 500 experiences, 40 of which were removed, and some feedback."""
    path = tmp_path_factory.mktemp("store") / "s.db"
    with SqliteStorage(path) as storage:
        for start in range(0, 540, 20):
            storage.append([experience(n) for n in range(start, start + 20)], priorities=[1.5] * 20)
        storage.delete(range(101, 141))
        for number in range(1, 60):
            storage.feedback(Feedback(experience_id=number, source="judge", reward=1.0, comment="good"))
    return path


@pytest.fixture
def store(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    shutil.copyfile(original, path)
    log = Path(f"{original}-wal")
    assert not log.exists() or not log.stat().st_size
    return path


def contents(path: Path) -> dict[int, Transition]:
    with SqliteStorage(path, readonly=True) as storage:
        return {stored.id: stored.transition for stored in storage.query(limit=10_000)}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def overwrite(path: Path, at: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(what)


def check_saved(store: Path, new: Path, original: Path) -> int:
    """That all that was saved is what it was and can be worked with; returns how much it is."""
    before, after = contents(original), contents(new)
    for number, transition in after.items():
        without_tokens = before[number].tokens is not None and transition.tokens is None
        assert without_tokens or transition == before[number]
    with SqliteStorage(new) as storage:
        assert storage.stats().experiences == len(after)
        if after:
            number = next(iter(after))
            word = after[number].state["messages"][0]["content"].split()[0]
            assert number in [found for found, _ in storage.search(word)]
        [fresh] = storage.append([experience(1)])
        assert fresh is not None
        assert fresh > max(before)
    connection = connect(new)
    assert connection.pragma("integrity_check") == "ok"
    connection.close()
    return len(after)


def test_a_healthy_store_is_saved_whole(store: Path, original: Path, tmp_path: Path) -> None:
    report = recover(store, tmp_path / "new.db")
    assert (report.saved, report.lost, report.damage) == (500, 0, [])
    assert report.complete
    with SqliteStorage(original) as a, SqliteStorage(tmp_path / "new.db") as b:
        ours, theirs = a.stats().to_dict(), b.stats().to_dict()
        for name in ("experiences", "episodes", "payload_bytes", "evicted", "feedback", "reward_mean", "outcomes"):
            assert ours[name] == theirs[name]
        assert a.store_id() == b.store_id()
        assert a.query(tag="odd", limit=999)[-1].id == b.query(tag="odd", limit=999)[-1].id
        assert all(np.array_equal(x, y) for x, y in zip(a.priorities(), b.priorities(), strict=True))
        assert a.feedback_of(7) == b.feedback_of(7)
    assert check_saved(store, tmp_path / "new.db", original) == 500


def test_sto_08_zeroed_bytes_are_reported_and_the_rest_is_saved(store: Path, original: Path, tmp_path: Path) -> None:
    overwrite(store, 8192, bytes(4096))
    before = digest(store)
    for number in range(2):  # a second start makes no further copies
        for opening in (SqliteStorage, relive.open):
            with pytest.raises(DamagedStoreError, match="relive recover"):
                opening(store)
        with pytest.raises(DamagedStoreError, match="relive recover"):
            SqliteStorage(store, readonly=True)
        report = recover(store, tmp_path / f"new{number}.db")
        assert report.saved == 500
        assert not report.complete
        assert check_saved(store, tmp_path / f"new{number}.db", original) == 500
    assert digest(store) == before


def test_a_table_whose_first_page_is_damaged_is_named_when_the_store_is_opened(store: Path, tmp_path: Path) -> None:
    connection = connect(store)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    found = "SELECT name, rootpage FROM sqlite_schema WHERE type = 'table' AND rootpage > 1"
    pages = connection.execute(found).fetchall()
    connection.close()
    assert len(pages) > 15
    for name, page in pages:
        damaged = tmp_path / f"{name}.db"
        shutil.copyfile(store, damaged)
        overwrite(damaged, (page - 1) * PAGE_SIZE, bytes(PAGE_SIZE))
        with pytest.raises(DamagedStoreError, match="relive recover"):
            SqliteStorage(damaged)
        damaged.unlink()


def test_a_store_without_its_id_is_damaged(store: Path) -> None:
    connection = connect(store)
    connection.execute("DELETE FROM setting WHERE name = 'store_id'")
    connection.close()
    with pytest.raises(DamagedStoreError, match="has lost its id"):
        SqliteStorage(store)


def test_sto_08_a_file_cut_to_60_percent_gives_what_it_still_holds(store: Path, original: Path, tmp_path: Path) -> None:
    with store.open("r+b") as file:
        file.truncate(store.stat().st_size * 6 // 10)
    before = digest(store)
    with pytest.raises(DamagedStoreError, match="cut short"):
        SqliteStorage(store)
    report = recover(store, tmp_path / "new.db")
    saved = check_saved(store, tmp_path / "new.db", original)
    assert report.saved == saved
    assert report.lost == 500 - saved
    assert 200 < saved < 500
    assert not report.complete
    assert digest(store) == before
    assert sorted(path.name for path in tmp_path.iterdir() if "new" not in path.name) == ["s.db"]


def test_sto_08_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    report = recover(tmp_path / "s.db", tmp_path / "new.db")
    assert report.complete
    assert contents(tmp_path / "new.db") == {}
    with SqliteStorage(tmp_path / "s.db") as storage:
        assert len(storage) == 0


@pytest.mark.parametrize("content", ["just some text\n", "just some text\n" * 5_000])
def test_sto_08_a_text_file_is_no_store(content: str, tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text(content)
    with pytest.raises(NotAStoreError):
        SqliteStorage(tmp_path / "s.db")
    with pytest.raises(NotAStoreError, match="no experience was found"):
        recover(tmp_path / "s.db", tmp_path / "new.db")
    assert [path.name for path in tmp_path.iterdir()] == ["s.db"]
    assert (tmp_path / "s.db").read_text() == content


def test_a_file_that_is_there_is_never_written_over(store: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("precious")
    with pytest.raises(StoragePathError, match="is there already"):
        recover(store, tmp_path / "new.db")
    assert (tmp_path / "new.db").read_text() == "precious"
    with pytest.raises(StoragePathError):
        recover(tmp_path / "nowhere.db", tmp_path / "other.db")


def test_a_store_without_its_first_page_is_saved_from_the_others(store: Path, original: Path, tmp_path: Path) -> None:
    overwrite(store, 0, bytes(PAGE_SIZE))
    report = recover(store, tmp_path / "new.db")
    assert report.lost is None
    assert not report.complete
    assert check_saved(store, tmp_path / "new.db", original) == report.saved == 500


def test_what_only_the_write_ahead_log_holds_is_saved(original: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    shutil.copyfile(original, store)
    with SqliteStorage(store) as storage:
        storage.append([experience(n) for n in range(540, 560)])
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{store}{suffix}", tmp_path / f"killed.db{suffix}")
    killed = tmp_path / "killed.db"
    overwrite(killed, 8192, bytes(4096))
    before = digest(killed), digest(tmp_path / "killed.db-wal")
    report = recover(killed, tmp_path / "new.db")
    assert report.saved == 520
    assert (digest(killed), digest(tmp_path / "killed.db-wal")) == before
    assert contents(tmp_path / "new.db")[560] == experience(559)
    assert not [path for path in tmp_path.iterdir() if "recover" in path.name or "unfinished" in path.name]


def test_wherever_a_page_is_lost_the_report_is_true(original: Path, tmp_path: Path) -> None:
    pages = original.stat().st_size // PAGE_SIZE
    chance = random.Random(5)
    for trial in range(12):
        store, new = tmp_path / f"{trial}.db", tmp_path / f"{trial}-new.db"
        shutil.copyfile(original, store)
        for page in chance.sample(range(1, pages), 1 + trial % 4):
            damage = bytes(PAGE_SIZE) if trial % 2 else chance.randbytes(PAGE_SIZE)
            overwrite(store, page * PAGE_SIZE, damage)
        report = recover(store, new)
        assert len(contents(new)) == report.saved >= 500 - 40
        assert report.lost in (None, 500 - report.saved)
        if report.complete:
            assert contents(new) == contents(original)
        check_saved(store, new, original)


def test_removed_experiences_do_not_come_back(store: Path, original: Path, tmp_path: Path) -> None:
    overwrite(store, 0, bytes(16))  # so that all is read page by page
    recover(store, tmp_path / "new.db")
    assert set(contents(tmp_path / "new.db")) == set(contents(original))


@pytest.mark.parametrize("table", ["experience", "payload", "token_trace", "feedback"])
def test_reading_pages_gives_what_sql_gives(table: str, original: Path) -> None:
    connection = connect(original, readonly=True)
    expected = connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608 - a name from above
    root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    shape = shapes(connection)[table]
    connection.close()
    assert expected
    with Pages(original, 512) as pages:
        leaves, whole = pages.tree(root)
        found = [(row.rowid, *row.values[1:]) for leaf in leaves for row in pages.rows(leaf)]
        assert whole
        assert all(shape.fits(row.values) for leaf in leaves for row in pages.rows(leaf))
    assert found == expected


def test_each_table_knows_its_own_rows(original: Path) -> None:
    connection = connect(original, readonly=True)
    known = shapes(connection)
    connection.close()
    with Pages(original, 512) as pages:
        salvage = Salvage(original, pages, known)
        names = ("experience", "payload", "token_trace", "feedback", "dictionary")  # a next state looks like a payload
        for name in names:
            for row in list(salvage.rows(known[name]))[:50]:
                values = (None, *row[1:])
                assert [other for other in names if known[other].fits(values)] == [name]
        salvage.close()
