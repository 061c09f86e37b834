"""Files into a store and out again: nothing doubled, nothing lost, not a byte changed."""

import gzip
import json
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, TokenTrace, Transition, Usage
from relive.storage import Query, SqliteStorage
from relive.storage.exporter import ExportError, export_lines, replacing
from relive.storage.formats import Found, Source, read
from relive.storage.importer import ImportReport, import_file

TAU = Path(__file__).parents[1] / "data" / "tau_bench" / "gpt-4o-airline.json.zst"


def load(path: Path, store: Path, **options: Any) -> ImportReport:
    with SqliteStorage(store) as storage:
        return import_file(path, storage, **options)


def dump(store: Path, path: Path, query: Query | None = None) -> list[dict[str, Any]]:
    with SqliteStorage(store, readonly=True) as storage, path.open("wb") as file:
        count = export_lines(storage, file, query)
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert count == len(lines)
    return [json.loads(line, parse_int=integer) for line in lines]


def integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 4300 else digits


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def rich(number: int, **more: Any) -> Transition:
    """An experience with every field known."""
    return Transition(
        state={"text": f"state {number} é", "n": number},
        action=[number, None],
        next_state={"after": number},
        reward=0.1 * number,
        terminated=True,
        truncated=True,
        outcome="failure",
        agent="a",
        episode_id=f"episode {number // 2}",
        step=number % 2,
        group_id="g",
        tags=("t", "u"),
        policy="p",
        policy_version=3,
        usage=Usage(input_tokens=1, cached_tokens=0, output_tokens=2),
        cost=4,
        latency_ms=0.5,
        error="e",
        created_at=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(microseconds=number),
        tokens=TokenTrace(
            token_ids=np.array([5, 6, 7], np.int32),
            mask=np.array([0, 1, 1], np.uint8),
            logprobs=np.array([0.0, -0.1, -1e-9], np.float32),
            versions=np.array([1, 1, 2], np.int32),
            temperature=0.7,
            top_p=0.9,
            tokenizer="h",
        ),
        **more,
    )


def all_of(store: Path) -> list[Transition]:
    with SqliteStorage(store, readonly=True) as storage:
        return [stored.transition for stored in storage.query(limit=100_000)]


def test_what_was_recorded_comes_back_whole_from_an_export(tmp_path: Path) -> None:
    given = [rich(n) for n in range(20)] + [Transition(state=1, action=2)]
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append(given, priorities=[0.5 * n for n in range(21)])
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    report = load(tmp_path / "out.jsonl", tmp_path / "b.db")
    assert (report.format, report.imported, report.known, report.failed) == ("relive", 21, 0, 0)
    assert all_of(tmp_path / "b.db") == given
    with SqliteStorage(tmp_path / "b.db") as storage:
        assert [s.priority for s in storage.query(limit=100)] == [0.5 * n for n in range(21)]


EARLIEST, LATEST = (time.replace(tzinfo=UTC) for time in (datetime.min, datetime.max))


@pytest.mark.parametrize(
    "fields",
    [
        {"created_at": EARLIEST},
        {"created_at": LATEST},
        {"created_at": datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=-5, seconds=-28, microseconds=7)))},
        {"state": {1: "number", "1": "text"}},
        {"state": msgspec.Raw(b'{"a":1,"a":[{"b":1.10,"b":2}]}'), "info": msgspec.Raw(b'{"c":1,"c":1}')},
        {"state": msgspec.Raw(b'"\\ud83d"')},
        {"state": "\ud83d", "agent": "\ud83d", "tags": ("\ud83d", "\ud83d", ""), "error": ""},
        {"state": 10**5000, "action": -(10**5000), "next_state": [2**63, 2**64, -(2**63)]},
        {"state": msgspec.Raw(b"1" * 5000), "action": msgspec.Raw(b"[1e400,-0,1E5]")},
        {"state": {"uid": "u", "feedback": [], "schema_version": 99}},
        {"state": None, "action": None, "next_state": False, "info": {}},
        {"state": "nul \0", "episode_id": "a\0b", "agent": "", "policy": "", "group_id": ""},
        {"reward": True},
        {"reward": np.float32(0.1), "latency_ms": 1},
        {"reward": 5e-324, "latency_ms": 1.7e308},
        {"policy_version": -(2**63), "step": 2**63 - 1, "cost": 2**63 - 1},
        {"usage": Usage()},
        {"terminated": np.True_, "truncated": False},
        {"tokens": TokenTrace(token_ids=[], mask=[])},
        {"tokens": TokenTrace(token_ids=[1], mask=[1], logprobs=[-3e38], temperature=1, tokenizer="\ud83d")},
        {"state": np.ma.array([1, 2], mask=[False, True]), "action": {"set": {1}, "bytes": b"ab"}},
        {"state": "\r\n\u2028\x85", "tags": ("relive:cached",)},
        {"outcome": "failure", "state": float("nan"), "action": [float("inf")]},
    ],
)
def test_all_that_a_store_takes_comes_back_from_an_export(fields: dict[str, Any], tmp_path: Path) -> None:
    given = Transition(**{"state": "s", "action": "a", **fields})
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append([given], priorities=[0.5])
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    report = load(tmp_path / "out.jsonl", tmp_path / "b.db")
    assert (report.format, report.imported, report.problems) == ("relive", 1, [])
    with SqliteStorage(tmp_path / "a.db") as a, SqliteStorage(tmp_path / "b.db") as b:
        [before], [after] = a.query(), b.query()
        assert after.json() == before.json()
        assert (after.outline(), after.priority, after.recorded) == (before.outline(), before.priority, before.recorded)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("step", [-1, 2**63, True, None, 1.0]),
        ("cost", [-1, 2**63, 1.5]),
        ("parent", [2**63, "1"]),
        ("policy_version", [-(2**63) - 1, 10**5000, "1"]),
        ("latency_ms", [-1.0]),
        ("usage", [Usage(input_tokens=-1), Usage(output_tokens=2**63), {"input_tokens": 1}]),
        ("tokens", ["tokens", [1, 2]]),
        ("outcome", ["good", [], None]),
        ("terminated", [1, None, "no"]),
        ("truncated", [0]),
        ("tags", ["text", 5, (1,), None]),
        ("agent", [None, b"a"]),
        ("episode_id", [None, 5]),
        ("error", [5]),
        ("created_at", [None, "2020-01-01", datetime(2020, 1, 1), date(2020, 1, 1)]),
        ("created_at", [EARLIEST.replace(tzinfo=timezone(timedelta(hours=14)))]),
        ("created_at", [LATEST.replace(tzinfo=timezone(timedelta(hours=-14)))]),
        ("state", [object(), 1j, {None: 1}, msgspec.UNSET]),
    ],
)
def test_what_an_import_would_refuse_is_refused_at_the_write(field: str, values: list[Any], tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "s.db") as storage:
        for value in values:
            with pytest.raises(InvalidExperienceError, match=f"^{field} is "):
                storage.append([Transition(state=1, action=2), Transition(**{"state": 1, "action": 2, field: value})])
        assert len(storage) == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("experience_id", 2**63),
        ("source", 5),
        ("key", None),
        ("comment", b"c"),
        ("demonstration", msgspec.Raw(b"{")),
        ("demonstration", object()),
    ],
)
def test_feedback_that_cannot_be_kept_is_refused_by_the_name_of_its_field(field: str, value: Any, path: Path) -> None:
    with SqliteStorage(path, redact=None) as storage:
        with pytest.raises(InvalidExperienceError, match=f"^{field} is "):
            storage.feedback(Feedback(**{"experience_id": 1, "reward": 1.0, field: value}))
        assert storage.stats().feedback == 0


def test_importing_twice_adds_nothing_whatever_the_name_and_packing(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", *({"state": n // 2, "action": 1} for n in range(600)))
    assert load(file, tmp_path / "s.db").imported == 600
    again = load(file, tmp_path / "s.db")
    assert (again.imported, again.known) == (0, 600)
    (tmp_path / "b").write_bytes(gzip.compress(file.read_bytes()))
    again = load(tmp_path / "b", tmp_path / "s.db")
    assert (again.imported, again.known) == (0, 600)


def test_a_log_that_has_grown_adds_only_what_is_new(tmp_path: Path) -> None:
    records = [{"state": "same", "action": 1}] * 5 + [{"state": n, "action": 1} for n in range(5)]
    assert load(lines(tmp_path / "log", *records[:7]), tmp_path / "s.db").imported == 7
    grown = load(lines(tmp_path / "log", *records, records[0]), tmp_path / "s.db")
    assert (grown.imported, grown.known) == (4, 7)


def test_a_store_knows_its_own_experiences_when_they_come_back(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append([rich(n) for n in range(10)])
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    back = load(tmp_path / "out.jsonl", tmp_path / "a.db")
    assert (back.imported, back.known) == (0, 10)


def test_experiences_are_known_again_after_going_round_through_other_stores(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append([rich(n) for n in range(10)])
    dump(tmp_path / "a.db", tmp_path / "1")
    load(tmp_path / "1", tmp_path / "b.db")
    with SqliteStorage(tmp_path / "b.db") as storage:
        storage.append([rich(10)])
    dump(tmp_path / "b.db", tmp_path / "2")
    report = load(tmp_path / "2", tmp_path / "a.db")
    assert (report.imported, report.known) == (1, 10)
    dump(tmp_path / "a.db", tmp_path / "3")
    assert load(tmp_path / "3", tmp_path / "b.db").imported == 0


def test_what_was_removed_may_be_imported_again(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        ids = storage.append([rich(n) for n in range(3)])
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.delete([ids[1] or 0])
    for imported in (1, 0):
        assert load(tmp_path / "out.jsonl", tmp_path / "a.db").imported == imported


def test_attempts_stay_under_the_call_they_belong_to(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append([rich(n) for n in range(5)])
        [call] = storage.append([rich(5)])
        storage.append([rich(6, parent=call), rich(7, parent=call)])
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    with SqliteStorage(tmp_path / "b.db") as storage:
        storage.append([Transition(state=0, action=0)] * 100)  # so that ids differ
        import_file(tmp_path / "out.jsonl", storage)
        [call] = [s.id for s in storage.query(limit=1000) if s.transition.action == [5, None]]
        assert [s.transition.action for s in storage.query(parent=call)] == [[6, None], [7, None]]


def test_feedback_comes_along_and_goes_on_counting(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        first, second = storage.append([rich(0), rich(1)])
        storage.feedback(Feedback(experience_id=first, source="judge", reward=1.0, comment="fine"))
        storage.feedback(Feedback(experience_id=second, source="user", demonstration={"do": "this"}))
        storage.feedback(Feedback(episode_id="episode 0", source="test", reward=0.5))
    exported = dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    assert [record["reward"] for record in exported] == [0.75, 0.5]
    load(tmp_path / "out.jsonl", tmp_path / "b.db")
    with SqliteStorage(tmp_path / "a.db") as a, SqliteStorage(tmp_path / "b.db") as b:
        for storage in (a, b):
            assert [(s.reward, s.outcome) for s in storage.query()] == [(0.75, "success"), (0.5, "success")]
            assert [s.recorded for s in storage.query()] == [(0.0, "failure"), (0.1, "failure")]
        assert a.feedback_of(1) == b.feedback_of(1)
        assert a.feedback_of(2) == b.feedback_of(2)
        b.feedback(Feedback(experience_id=1, source="judge", reward=0.0))
        assert b.query()[0].reward == 0.25
    assert load(tmp_path / "out.jsonl", tmp_path / "b.db").known == 2
    with SqliteStorage(tmp_path / "b.db") as b:
        assert b.query()[0].reward == 0.25, "a second import leaves newer feedback alone"


def test_all_of_tau_bench_goes_through_a_store_and_back_to_the_byte(tmp_path: Path) -> None:
    report = load(TAU, tmp_path / "s.db", agent="airline", tags=["tau-bench"])
    assert (report.imported, report.failed, report.ignored) == (2454, 0, {})
    assert load(TAU, tmp_path / "s.db").imported == 0
    with SqliteStorage(tmp_path / "s.db", readonly=True) as storage:
        assert storage.stats().episodes == 200
        outcomes = {
            outcome: len({s.episode_id for s in storage.query(outcome=outcome, limit=10_000)})
            for outcome in ("success", "failure", "unknown")
        }
        assert outcomes == {"success": 84, "failure": 116, "unknown": 0}
        assert storage.count(Query(agent="airline", tag="tau-bench")) == 2454
    with SqliteStorage(tmp_path / "s.db") as storage, replacing(tmp_path / "out.jsonl") as file:
        export_lines(storage, file)
    load(tmp_path / "out.jsonl", tmp_path / "t.db")
    with Source(TAU) as source:
        given = [item.transition for item in read(source)[1] if isinstance(item, Found)]
    for store in ("s.db", "t.db"):
        with SqliteStorage(tmp_path / store) as storage:
            for stored, one in zip(storage.query(limit=10_000), given, strict=True):
                parts = [b'"state":' + bytes(one.state), b'"action":' + bytes(one.action)]
                if one.next_state is not None:
                    parts.append(b'"next_state":' + bytes(one.next_state))
                assert stored.json() == b"{" + b",".join(parts) + b"}"


def test_dsh_03_digits_are_the_same_in_store_export_and_a_second_store(tmp_path: Path) -> None:
    numbers = '{"price": 1.10,"most": 1e400, "id": [2512292042121000001,9007199254740993], "n": ' + "7" * 400 + "}"
    call = {"id": "c", "type": "function", "function": {"name": "buy", "arguments": numbers}}
    messages = [{"role": "user", "content": "buy"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    (tmp_path / "in.jsonl").write_text(f'{{"state":{numbers},"action":1}}\n')
    lines(tmp_path / "chat.jsonl", {"messages": messages})
    load(tmp_path / "in.jsonl", tmp_path / "a.db")
    load(tmp_path / "chat.jsonl", tmp_path / "a.db")
    for store, file in (("a.db", "1.jsonl"), ("b.db", "2.jsonl")):
        dump(tmp_path / store, tmp_path / file)
        raw, chat = (tmp_path / file).read_text().splitlines()
        assert f'"state":{numbers},' in raw
        assert json.loads(chat)["action"]["tool_calls"][0]["function"]["arguments"] == numbers
        load(tmp_path / file, tmp_path / "b.db")
    [state, _] = [t.state for t in all_of(tmp_path / "b.db")]
    assert state["n"] == int("7" * 400)
    assert state["most"] == float("inf")
    assert state["id"] == [2512292042121000001, 9007199254740993]


def test_an_integer_longer_than_python_converts_is_kept_to_the_digit(tmp_path: Path) -> None:
    line = b'{"state":{"n":%s},"action":1}' % (b"7" * 5000)
    (tmp_path / "in").write_bytes(line)
    assert load(tmp_path / "in", tmp_path / "s.db").imported == 1
    with SqliteStorage(tmp_path / "s.db") as storage:
        assert storage.query()[0].json() == line
        assert storage.query()[0].transition.state["n"] % 10**9 == 777_777_777


def test_sto_09_half_a_surrogate_pair_goes_out_as_valid_utf_8_and_comes_back_the_same(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append(
            [Transition(state="a\udc81b", action="nul \x00 kept"), Transition(state="😀" * 250_000, action=1)]
        )
    (tmp_path / "in.jsonl").write_bytes(b'{"state": "half \\ud83d", "action": 1}\n')
    assert load(tmp_path / "in.jsonl", tmp_path / "a.db").failed == 0
    dump(tmp_path / "a.db", tmp_path / "out.jsonl")
    assert len((tmp_path / "out.jsonl").read_bytes().decode("utf-8").split("\n")) == 4
    load(tmp_path / "out.jsonl", tmp_path / "b.db")
    for store in ("a.db", "b.db"):
        first, emoji, half = all_of(tmp_path / store)
        assert (first.state, first.action) == ("a\ufffdb", "nul \x00 kept")
        assert emoji.state == "😀" * 250_000
        assert half.state == "half \ufffd"


def test_bad_records_are_listed_and_the_rest_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text('{"state": 1, "action": 1}\noops\n{"state": 1, "action": 1, "step": 99999999999999999999999}\n')
    report = load(file, tmp_path / "s.db")
    assert (report.imported, report.failed) == (1, 2)
    assert [line for line, _ in report.problems] == [2, 3]


def test_labels_are_put_on_whatever_is_imported(tmp_path: Path) -> None:
    file = lines(tmp_path / "in", {"state": 1, "action": 2, "tags": ["old"], "agent": "other"})
    load(file, tmp_path / "s.db", agent="me", policy="m", tags=["new", "old"])
    [found] = all_of(tmp_path / "s.db")
    assert (found.agent, found.policy, found.tags) == ("me", "m", ("old", "new"))


def test_what_a_store_redacts_is_redacted_in_an_import_and_known_again_all_the_same(tmp_path: Path) -> None:
    file = lines(tmp_path / "in", {"state": "password=hunter2", "action": 1})
    with SqliteStorage(tmp_path / "s.db") as storage:
        assert import_file(file, storage).imported == 1
        assert storage.query()[0].transition.state == "password=[redacted:password]"
    assert load(file, tmp_path / "s.db").imported == 0


def test_an_import_that_was_interrupted_is_finished_by_a_second_one(tmp_path: Path) -> None:
    file = lines(tmp_path / "in", *({"state": n, "action": 1} for n in range(2_000)))

    class StopError(Exception):
        pass

    def stop(position: int, _size: int) -> None:
        if position > 0:
            raise StopError

    with SqliteStorage(tmp_path / "s.db") as storage, pytest.raises(StopError):
        import_file(file, storage, progress=stop)
    with SqliteStorage(tmp_path / "s.db") as storage:
        assert 0 < len(storage) < 2_000
    load(file, tmp_path / "s.db")
    assert Counter(t.state for t in all_of(tmp_path / "s.db")) == Counter(range(2_000))


def test_each_import_is_written_down(tmp_path: Path) -> None:
    file = lines(tmp_path / "in", {"state": 1, "action": 2}, {"state": 1})
    for _ in range(2):
        load(file, tmp_path / "s.db")
    with SqliteStorage(tmp_path / "s.db") as storage:
        entries = storage.audit(action="import")
    assert [(entry.target, entry.after) for entry in entries] == [
        (str(file), {"format": "relive", "imported": 1, "known": 0, "failed": 1}),
        (str(file), {"format": "relive", "imported": 0, "known": 1, "failed": 1}),
    ]


def test_progress_of_an_import_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    file = lines(tmp_path / "in", *({"state": "x" * 1000, "action": 1} for _ in range(1_000)))
    load(file, tmp_path / "s.db", progress=lambda position, size: seen.append((position, size)))
    assert [position for position, _ in seen] == sorted(position for position, _ in seen)
    assert seen[-1] == (file.stat().st_size, file.stat().st_size)


def test_an_export_holds_what_a_query_finds_and_nothing_appended_meanwhile(tmp_path: Path) -> None:
    class Growing(list[bytes]):
        def write(self, line: bytes) -> None:
            self.append(line)
            storage.append([Transition(state=0, action="late")])

    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.append([Transition(state=n, action=1, agent="ab"[n % 2]) for n in range(700)])
        out = Growing()
        assert export_lines(storage, out, Query(agent="a")) == 350  # type: ignore[arg-type]
        assert [json.loads(line)["state"] for line in out] == list(range(0, 700, 2))


def test_a_line_says_what_is_known_and_leaves_out_what_is_not(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.append([Transition(state=1, action=2, episode_id="e", created_at=datetime(2026, 1, 2, tzinfo=UTC))])
    [record] = dump(tmp_path / "s.db", tmp_path / "out.jsonl")
    uid = record.pop("uid")
    assert (len(uid), int(uid[16:], 16)) == (32, 1)
    assert record == {
        "schema_version": 1,
        "state": 1,
        "action": 2,
        "terminated": False,
        "truncated": False,
        "outcome": "unknown",
        "agent": "default",
        "episode_id": "e",
        "step": 0,
        "created_at": "2026-01-02T00:00:00Z",
    }


def test_a_payload_handed_over_with_line_breaks_stays_on_one_line(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.append([Transition(state=msgspec.Raw(b'{\r\n "a": "b c"\n}'), action=1)])
    [record] = dump(tmp_path / "s.db", tmp_path / "out.jsonl")
    assert record["state"] == {"a": "b c"}


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(TypeError), replacing(path) as file:
        file.write("half a file, then no bytes")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with replacing(path) as file:
        file.write(b"whole")
    with pytest.raises(ExportError, match=r"is there already; replace it with --force"), replacing(path):
        pass
    with replacing(path, force=True) as file:
        file.write(b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"new", [path])


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.jsonl.zst"])
def test_a_packed_export_can_be_imported(name: str, tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "a.db") as storage:
        storage.append([rich(n) for n in range(100)])
        with replacing(tmp_path / name) as file:
            export_lines(storage, file)
    assert load(tmp_path / name, tmp_path / "b.db").imported == 100
    assert all_of(tmp_path / "b.db") == [rich(n) for n in range(100)]


@pytest.mark.parametrize("path", ["nowhere/out", "."])
def test_where_nothing_can_be_written_is_said(path: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="folder"), replacing(tmp_path / path):
        pass


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from relive.storage.parquet import SCHEMA_COLUMNS, export_parquet

    given = [rich(n) for n in range(600)] + [Transition(state=1, action=2)]
    with SqliteStorage(tmp_path / "s.db") as storage:
        storage.append(given)
        storage.feedback(Feedback(experience_id=1, reward=1.0))
        assert export_parquet(storage, tmp_path / "out.parquet") == 601
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == list(SCHEMA_COLUMNS)
    assert table.schema.metadata[b"relive.schema_version"] == b"1"
    rows = table.to_pylist()
    for number in (1, 599):
        row, one = rows[number], given[number]
        assert json.loads(row["state"]) == one.state
        assert json.loads(row["next_state"]) == one.next_state
        assert (row["id"], row["cost_nano_usd"], row["input_tokens"], row["tags"]) == (number + 1, 4, 1, ["t", "u"])
        assert row["created_at"] == one.created_at
        assert (row["token_ids"], row["token_mask"], row["token_versions"]) == ([5, 6, 7], [0, 1, 1], [1, 1, 2])
        assert np.array_equal(np.float32(row["token_logprobs"]), np.float32([0.0, -0.1, -1e-9]))
        assert row["reward"] == one.reward
    assert (rows[0]["reward"], json.loads(rows[0]["feedback"])[0]["reward"]) == (1.0, 1.0)
    assert [rows[600][name] for name in ("reward", "cost_nano_usd", "token_ids", "next_state", "policy")] == [None] * 5


def test_without_pyarrow_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from relive.storage.parquet import export_parquet

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        SqliteStorage(tmp_path / "s.db") as storage,
        pytest.raises(ExportError, match=r"pip install .relive\[parquet\]"),
    ):
        export_parquet(storage, tmp_path / "out.parquet")
