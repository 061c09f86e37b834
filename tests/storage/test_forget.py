"""What was forgotten is nowhere: not in the file, not beside it, not in a compressed payload, not in a dictionary."""

import json
import threading
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import numpy as np
import pytest

import relive
from relive.experience import Feedback, TokenTrace, Transition
from relive.storage import SqliteStorage, dictionaries, forget
from relive.storage.connection import connect
from relive.storage.errors import StorageBusyError
from relive.storage.forget import Forgotten, NothingToForgetError, Selection
from relive.storage.purge import every_dictionary

NAME = "Quaxlington"
ROWS = 700


def said(number: int, name: str) -> Transition:
    text = f"Dear team, this is {name} of Flimwell Road {number}: my card number {number * 7919} has not come yet. " * 2
    return Transition(
        state={"messages": [{"role": "system", "content": "You help customers of a bank. " * 5}, {"content": text}]},
        action={"content": f"Good day {name}, your card {number} is on its way.", "tool": json.dumps({"name": name})},
        agent="support",
        episode_id=f"call-{number}",
        tags=("card", f"number-{number}"),
    )


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file())


def pieces(body: bytes) -> list[bytes]:
    """Every 16 bytes of a body, save the first of the frame, which all have alike."""
    return [body[at : at + 16] for at in range(16, len(body) - 16, 16)]


@pytest.fixture
def _small_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dictionaries, "TRAIN_AT", ROWS - 100)


def filled(store: SqliteStorage) -> list[int]:
    """A store in which every second experience is about the one to be forgotten, who is in the dictionary too."""
    store.append([said(n, NAME if n % 2 else "Smith") for n in range(ROWS - 100)])
    store.append([said(ROWS, "Smith")])
    store._trainer.wait()
    store.flush()
    ids = store.append([said(n, NAME if n % 2 else "Smith") for n in range(ROWS - 100, ROWS)])
    assert [entry for entry in ids if entry is None] == []
    return [number for number in ids if number is not None]


@pytest.mark.usefixtures("_small_dictionaries")
def test_a_byte_search_finds_nothing_of_what_was_forgotten(store: SqliteStorage, path: Path) -> None:
    ids = filled(store)
    trace = TokenTrace(token_ids=np.arange(77_000_000, 77_000_100), mask=np.ones(100), tokenizer=f"of {NAME}")
    [late, failed] = store.append(
        [
            Transition(state="plain", action=1, agent=f"for {NAME}", tokens=trace, tags=(f"vip-{NAME}",)),
            Transition(state="plain", action=2, error=f"{NAME} was refused", group_id=f"group of {NAME}"),
        ]
    )
    assert late is not None
    assert failed is not None
    store.set_next_state(late, {"messages": f"later {NAME} called again"})
    rated, untouched = ids[0], ids[2]
    store.feedback(Feedback(experience_id=rated, source="boss", comment=f"{NAME} was happy", reward=1.0))
    store.feedback(Feedback(experience_id=untouched, source="judge", demonstration={"say": "sorry"}))
    store.feedback(Feedback(episode_id="yet to come", comment=f"waiting for {NAME}"))

    with closing(connect(path, readonly=True)) as connection:
        bodies = dict(connection.execute("SELECT id, body FROM payload").fetchall())
        assert any(NAME.encode() in body for (body,) in connection.execute("SELECT body FROM dictionary"))
    selection = Selection(match=NAME.lower())
    gone = forget.find(store, selection)
    left = [number for number in bodies if number not in gone]
    kept = store.get(left)
    everything = bytes_in(path.parent)
    assert NAME.encode() in everything
    assert NAME.lower().encode() in everything, "the text index holds words in small letters"
    assert trace.token_ids.astype("<i4").tobytes()[:40] in everything

    report = forget.forget(store, selection)

    assert report.experiences == len(gone) == ROWS // 2 + 3
    assert report.feedback == 2
    assert report.token_traces == 1
    assert report.rewritten > 0
    everything = bytes_in(path.parent)
    assert NAME.lower().encode() not in everything.lower()
    assert trace.token_ids.astype("<i4").tobytes()[:40] not in everything
    left_bodies = b"".join(body for number, body in bodies.items() if number not in gone)
    there = {everything[at : at + 16] for at in range(len(everything) - 15)}
    for number in gone:
        for piece in pieces(bodies[number]):
            assert piece not in there or piece in left_bodies
    with closing(connect(path, readonly=True)) as connection:
        decompress = every_dictionary(connection)
        for codec, body in connection.execute(
            "SELECT codec, body FROM payload UNION ALL SELECT codec, body FROM next_state"
        ):
            assert NAME.encode() not in decompress(codec, body)
        assert connection.pragma("integrity_check") == "ok"
        assert connection.execute("SELECT total.bytes = (SELECT sum(bytes) FROM experience) FROM total").get == 1

    assert store.get(left) == kept, "all else is as it was"
    assert store.search(NAME) == []
    assert len(store.search("Smith", limit=1000)) > 0
    assert [f.source for f in store.feedback_of(untouched)] == ["judge"]
    store.append([said(1, "Smith")])
    store.close()
    assert NAME.lower().encode() not in bytes_in(path.parent).lower(), "nor after closing"


@pytest.mark.usefixtures("_small_dictionaries")
def test_what_was_evicted_before_leaves_the_dictionary_too(store: SqliteStorage, path: Path) -> None:
    filled(store)
    store.delete(forget.find(store, Selection(match=NAME)))
    store.flush()
    assert NAME.encode() in bytes_in(path.parent), "deleting is not forgetting"
    report = forget.forget(store, Selection(match=NAME))
    assert report.experiences == 0
    assert NAME.lower().encode() not in bytes_in(path.parent).lower()


@pytest.mark.usefixtures("_small_dictionaries")
def test_a_dictionary_that_learnt_while_something_was_forgotten_is_not_kept(store: SqliteStorage) -> None:
    store.append([said(n, NAME) for n in range(10)])
    with store._pool.reading() as connection:
        before = dictionaries.forgotten(connection)
    forget.forget(store, Selection(match=NAME))
    store._keep_dictionary(f"made of {NAME}".encode(), before)
    store.flush()
    with store._pool.reading() as connection:
        assert dictionaries.newest(connection) is None


def test_one_of_many_leaves_the_text_index_too(store: SqliteStorage, path: Path) -> None:
    """So few deletions the index would keep for a long time, as marks beside the words."""
    for number in range(0, 400, 20):
        store.append([said(n, "Smith") for n in range(number, number + 20)])
    [number] = store.append([said(400, f"{NAME} of Zzyzx")])
    assert number is not None
    store.append([said(n, "Smith") for n in range(401, 420)])
    assert b"zzyzx" in bytes_in(path.parent)
    forget.forget(store, Selection(episode="call-400"))
    assert b"zzyzx" not in bytes_in(path.parent).lower()
    assert b"quaxlington" not in bytes_in(path.parent).lower()


def test_an_agent_or_an_episode_is_forgotten_and_no_other(store: SqliteStorage) -> None:
    def one(agent: str, episode: str) -> Transition:
        return Transition(state=f"{agent} in {episode}", action="a", agent=agent, episode_id=episode)

    store.append([one(agent, episode) for agent in ("red", "blue") for episode in ("north", "south", "south")])
    store.feedback(Feedback(episode_id="south", reward=1.0))
    assert [forget.find(store, s) for s in (Selection(agent="red"), Selection(episode="south"))] == [
        [1, 2, 3],
        [2, 3, 5, 6],
    ]
    both = Selection(agent="red", episode="south")
    report = forget.forget(store, both)
    assert (report.experiences, report.episodes, report.feedback) == (2, 1, 0)
    assert [s.id for s in store.query()] == [1, 4, 5, 6]
    assert forget.forget(store, Selection(episode="south")).feedback == 1
    assert forget.forget(store, Selection(agent="red")).experiences == 1
    assert [s.id for s in store.query()] == [4]
    assert forget.forget(store, Selection(agent="nobody")).experiences == 0


@pytest.mark.parametrize(
    "match",
    [
        'say "no" to\nus',
        "Zoë Ångström",
        "zoë",
        "😀 smile",
        "back\\slash",
        "a/b",
        "IN NESTED",
        "a tag",
        "the key",
        "the source",
    ],
)
def test_a_text_is_found_however_json_writes_it(store: SqliteStorage, match: str) -> None:
    nested = json.dumps(
        {"inner": json.dumps({"text": 'say "no" to\nus, Zoë Ångström 😀 smile back\\slash a/b in nested'})}
    )
    store.append(
        [Transition(state={"arguments": nested}, action=None, tags=("a tag",)), Transition(state="x", action=None)]
    )
    store.feedback(Feedback(experience_id=1, source="the source", key="the key", reward=1.0))
    assert forget.find(store, Selection(match=match)) == [1]


_RAW = rb'{"m":"I am O\u0027Brien, alice\u002Bwork\u0040x.com, caf\u00C9, a\/b, \ud83d\uDE00 and \"x\""}'


@pytest.mark.parametrize("nested", range(5))
@pytest.mark.parametrize("match", ["O'Brien", "alice+work@x.com", "café", "a/b", '\U0001f600 and "x"'])
def test_a_text_is_found_however_others_escaped_it(store: SqliteStorage, match: str, nested: int) -> None:
    text = _RAW
    for _ in range(nested):
        text = json.dumps({"arguments": "said: " + text.decode()}).encode()
    store.append([Transition(state=msgspec.Raw(text), action=None), Transition(state=r"C:\users/café", action="a\\/c")])
    assert forget.find(store, Selection(match=match)) == ([1, 2] if match == "café" else [1])


def test_a_name_that_was_redacted_is_found_by_the_name(store: SqliteStorage) -> None:
    secret = "sk-test-AAAABBBBCCCCDDDD"
    store.append([Transition(state="s", action="a", agent=secret), Transition(state="s", action="a")])
    assert forget.forget(store, Selection(agent=secret)).experiences == 1


def test_forgetting_is_written_down_without_what_was_forgotten(store: SqliteStorage, path: Path) -> None:
    store.append([said(1, NAME)])
    forget.forget(store, Selection(match=NAME, agent="support"), who="ann")
    [entry] = store.audit(action="forget")
    assert entry.who == "ann"
    assert entry.before == {"experiences": 1, "feedback": 0}
    assert entry.target.startswith("agent #")
    assert NAME.lower().encode() not in bytes_in(path.parent).lower()


def test_the_report_names_copies_that_may_hold_it_still_and_authors_in_the_audit(
    store: SqliteStorage, path: Path
) -> None:
    def copy(kind: str, to: str) -> None:
        store.write(lambda transaction: transaction.audit(kind, target=to)).result()

    copy("backup", "/backups/monday.db")
    store.append([said(1, NAME)])
    copy("backup", "/backups/tuesday.db")
    copy("export", "/out/all.jsonl")
    store.feedback(Feedback(experience_id=1, source=f"judge {NAME}", reward=1.0))
    (path.parent / f"{path.name}.gateway").mkdir()
    (path.parent / "other.db").touch()
    report = forget.forget(store, Selection(match=NAME))
    assert report.beside == [f"{path}.gateway"]
    assert [(c.kind, c.path) for c in report.copies] == [
        ("backup", "/backups/tuesday.db"),
        ("export", "/out/all.jsonl"),
    ]
    assert report.named_in_audit == 0
    assert forget.forget(store, Selection(match="nothing like it")).copies == []


def test_sources_and_keys_in_the_audit_become_hashes_and_entries_stay(store: SqliteStorage, path: Path) -> None:
    store.append([said(1, NAME), said(2, "Smith")])
    store.feedback(Feedback(experience_id=1, source=f"judge {NAME}", key=f"liked by {NAME}", reward=1.0))
    store.feedback(Feedback(experience_id=2, source="boss", reward=0.5))
    store.write(lambda transaction: transaction.audit("export", target=f"/out/{NAME}.jsonl")).result()
    before = store.audit()
    report = forget.forget(store, Selection(match=NAME.upper()))
    after = store.audit()
    assert report.named_in_audit == 1, "the export's path"
    assert [entry.number for entry in after] == [1, 2, 3, 4]
    assert after[0].who.startswith("#")
    assert after[0].target.startswith("experience 1: #")
    assert (after[0].at, after[0].before, after[0].after) == (before[0].at, before[0].before, before[0].after)
    assert after[1:3] == before[1:3]
    assert b"judge q" not in bytes_in(path.parent).lower()
    assert b"liked by q" not in bytes_in(path.parent).lower()
    with closing(connect(path)) as connection, pytest.raises(apsw.ConstraintError, match="only ever added to"):
        connection.execute("UPDATE audit SET who = 'nobody'")


def test_a_reader_that_keeps_an_older_view_is_named_and_a_second_run_finishes(path: Path) -> None:
    with SqliteStorage(path, busy_timeout=0.2) as store:
        store.append([said(1, NAME), said(2, "Smith")])
        other = connect(path, readonly=True)
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM experience").get == 2
        with pytest.raises(StorageBusyError, match="forget again"):
            forget.forget(store, Selection(match=NAME))
        assert len(store) == 1
        other.close()
        assert forget.forget(store, Selection(match=NAME)).experiences == 0
        assert NAME.lower().encode() not in bytes_in(path.parent).lower()


@pytest.mark.usefixtures("_small_dictionaries")
def test_one_that_was_cut_short_is_finished_by_the_next(
    store: SqliteStorage, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store)

    def die(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(forget, "replace_dictionaries", die)
        with pytest.raises(KeyboardInterrupt):
            forget.forget(store, Selection(match=NAME))
    assert NAME.encode() in bytes_in(path.parent)
    forget.forget(store, Selection(episode="of nobody"))
    assert NAME.lower().encode() not in bytes_in(path.parent).lower()


@pytest.mark.usefixtures("_small_dictionaries")
def test_others_may_write_meanwhile_and_nothing_of_theirs_is_lost(store: SqliteStorage, path: Path) -> None:
    filled(store)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        with SqliteStorage(path) as other:
            while not stop.is_set():
                number = len(written)
                [id_] = other.append([said(number, "Jones")])
                assert id_ is not None
                other.set_next_state(id_, {"then": number})
                written.append(id_)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for match in (NAME, "Smith", "nobody"):
            forget.forget(store, Selection(match=match))
    finally:
        stop.set()
        thread.join()
    assert len(written) > 0
    found = store.get(written)
    assert [t.next_state for t in found if t is not None] == [{"then": n} for n in range(len(written))]
    assert [s.transition.state for s in store.query(limit=10_000)] == [
        said(n, "Jones").state for n in range(len(written))
    ]


def test_nothing_is_forgotten_without_being_told_what(store: SqliteStorage) -> None:
    store.append([said(1, NAME)])
    for selection in (Selection(), Selection(agent=""), Selection(match="")):
        with pytest.raises(NothingToForgetError):
            forget.forget(store, selection)
    assert len(store) == 1


def test_a_forgotten_id_is_not_given_again_and_followers_hear_of_it(store: SqliteStorage) -> None:
    store.append([said(1, NAME), said(2, "Smith")])
    before = store.change_number()
    report = forget.forget(store, Selection(match=NAME))
    assert isinstance(report, Forgotten)
    assert store.changes(before).removed == [1]
    assert store.append([said(3, "Smith")]) == [3]


def test_a_memory_forgets_and_draws_no_more_of_it(path: Path) -> None:
    with relive.open(path) as memory:
        memory.add_batch([said(n, NAME if n < 5 else "Smith") for n in range(10)])
        report = memory.forget(match=NAME)
        assert report.experiences == 5
        assert len(memory) == 5
        drawn = memory.sample(200)
        assert set(drawn.ids.tolist()) == {6, 7, 8, 9, 10}
        assert NAME not in repr([transition.state for transition in drawn.experiences])
