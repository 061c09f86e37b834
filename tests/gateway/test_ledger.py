"""Keys, budgets and snapshots: no key on disk, no budget passed together, everything kept across restarts."""

import multiprocessing
import os
import stat
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import apsw
import pytest

from relive.gateway.budget import Budget, BudgetExceededError, Budgets
from relive.gateway.keys import AccessKeyError, Keys
from relive.gateway.ledger import Ledger, LedgerError
from relive.gateway.snapshots import Snapshots

DOLLAR = 10**9


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.db")
    yield opened
    opened.close()


class Calendar:
    def __init__(self, now: str = "2026-05-31T12:00:00+00:00") -> None:
        self.now = datetime.fromisoformat(now)

    def __call__(self) -> datetime:
        return self.now


def budgets(ledger: Ledger, *limits: Budget, calendar: Calendar | None = None, zone: str = "UTC") -> Budgets:
    return Budgets(ledger, limits, zone=ZoneInfo(zone), now=calendar or Calendar())


# Budgets


def test_prx_10_calls_released_together_do_not_pass_the_budget_together(ledger: Ledger) -> None:
    one, other = (budgets(ledger, Budget(day=DOLLAR)) for _ in range(2))
    one.start_from("all", "day", 950_000_000)
    start, admitted, refused = threading.Barrier(10), [], []

    def call(number: int) -> None:
        mine = one if number % 2 else other
        start.wait()
        try:
            admitted.append((mine, mine.reserve([], 40_000_000)))
        except BudgetExceededError as error:
            refused.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(admitted), len(refused)) == (1, 9)
    mine, reservation = admitted[0]
    mine.settle(reservation, 30_000_000)
    assert one.spent("all", "day") == 980_000_000
    with pytest.raises(BudgetExceededError, match=r"\$1\.00 a day for all calls"):
        other.reserve([], 40_000_000)


def _reserve_in_a_process(path: str, admitted: "multiprocessing.SimpleQueue[int]") -> None:
    ledger = Ledger(Path(path))
    for _ in range(20):
        try:
            budgets(ledger, Budget(day=DOLLAR)).reserve([], 40_000_000)
            admitted.put(1)
        except BudgetExceededError:
            admitted.put(0)
    ledger.close()


def test_prx_10_two_processes_on_one_ledger_do_not_pass_the_budget_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    admitted = context.SimpleQueue()
    Ledger(tmp_path / "ledger.db").close()
    workers = [
        context.Process(target=_reserve_in_a_process, args=(str(tmp_path / "ledger.db"), admitted)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(admitted.get() for _ in range(40)) == 25, "25 times 0.04 is 1.00"


def test_prx_10_a_failed_call_gives_back_what_it_reserved(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=DOLLAR))
    for _ in range(50):
        limited.release(limited.reserve([], DOLLAR))
    assert limited.spent("all", "day") == 0


def test_prx_10_what_a_dead_gateway_reserved_expires(ledger: Ledger) -> None:
    calendar = Calendar()
    dead, limited = (
        budgets(ledger, Budget(month=DOLLAR), calendar=calendar, zone="Pacific/Honolulu") for _ in range(2)
    )
    dead.reserve([], DOLLAR)
    with pytest.raises(BudgetExceededError):
        limited.reserve([], 1)
    calendar.now += timedelta(minutes=5)
    limited.reserve([], DOLLAR)


def test_a_call_of_a_gateway_that_lives_is_booked_however_long_it_takes(ledger: Ledger) -> None:
    calendar, minutes = Calendar(), [0.0]
    limits = {"zone": ZoneInfo("UTC"), "now": calendar}
    lives = Budgets(ledger, [Budget(month=DOLLAR)], clock=lambda: 60 * minutes[0], **limits)  # type: ignore[arg-type]
    other = Budgets(ledger, [Budget(month=DOLLAR)], **limits)  # type: ignore[arg-type]
    long = lives.reserve([], 600_000_000)
    for _ in range(60):
        calendar.now += timedelta(minutes=1)
        minutes[0] += 1
        if lives.due:
            lives.flush()
        with pytest.raises(BudgetExceededError):
            other.reserve([], 500_000_000)
    lives.release(lives.reserve([], 400_000_000))
    with pytest.raises(BudgetExceededError):
        lives.reserve([], 500_000_000)
    lives.settle(long, 550_000_000)
    assert other.spent("all", "month") == 550_000_000
    assert not lives.in_use


def test_a_call_that_costs_nothing_for_certain_may_end_on_another_day(ledger: Ledger) -> None:
    calendar = Calendar()
    limited = budgets(ledger, Budget(day=DOLLAR), calendar=calendar)
    call = limited.reserve([], None)
    limited.flush()
    calendar.now += timedelta(days=1)
    limited.release(limited.reserve([], DOLLAR))
    limited.settle(call, 7)
    assert ledger.rows("SELECT amount FROM spend WHERE period = '2026-05-31'") == [(7,)]


def test_prx_10_an_amount_of_null_counts_as_nothing_spent(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(scope="key:7", day=DOLLAR))
    ledger.transaction(lambda c: c.execute("INSERT INTO spend VALUES ('key:7', '2026-05-31', NULL)").fetchall())
    assert limited.spent("key:7", "day") == 0
    limited.settle(limited.reserve(["key:7"], 40_000_000), 30_000_000)
    assert limited.spent("key:7", "day") == 30_000_000


def test_200_concurrent_calls_never_settle_above_their_budget(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=DOLLAR))
    start = threading.Barrier(20)

    def calls() -> None:
        start.wait()
        for _ in range(10):
            try:
                call = limited.reserve([], 40_000_000)
            except BudgetExceededError:
                continue
            limited.settle(call, 37_000_000)

    threads = [threading.Thread(target=calls) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 900_000_000 < limited.spent("all", "day") <= DOLLAR


def test_settling_twice_books_once(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=DOLLAR, month=5 * DOLLAR))
    call = limited.reserve([], 10)
    for _ in range(2):
        limited.settle(call, 7)
    limited.release(call)
    assert (limited.spent("all", "day"), limited.spent("all", "month")) == (7, 7)


def test_a_cost_that_is_not_known_is_booked_as_it_was_reserved(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=DOLLAR))
    limited.settle(limited.reserve([], 40), None)
    assert limited.spent("all", "day") == 40


def test_a_call_must_fit_into_every_budget_it_falls_under(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=100), Budget(scope="agent:a", day=10), Budget(scope="key:1", month=50))
    limited.reserve(["agent:a", "key:1"], 10)
    with pytest.raises(BudgetExceededError, match="agent 'a'"):
        limited.reserve(["agent:a"], 1)
    limited.reserve(["agent:b", "key:1"], 40)
    with pytest.raises(BudgetExceededError, match="key '1'"):
        limited.reserve(["key:1"], 1)
    limited.reserve([], 50)
    with pytest.raises(BudgetExceededError, match="all calls"):
        limited.reserve([], 1)


def test_a_refused_call_reserves_nothing_anywhere(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=100), Budget(scope="agent:a", day=10))
    with pytest.raises(BudgetExceededError):
        limited.reserve(["agent:a"], 50)
    limited.reserve([], 100)


def test_days_and_months_begin_at_midnight_where_the_user_lives(ledger: Ledger) -> None:
    calendar = Calendar("2026-05-31T14:59:00+00:00")  # 23:59 in Tokyo
    limited = budgets(ledger, Budget(day=10, month=15), calendar=calendar, zone="Asia/Tokyo")
    limited.settle(limited.reserve([], 10), 10)
    with pytest.raises(BudgetExceededError):
        limited.reserve([], 1)
    calendar.now += timedelta(minutes=2)  # June in Tokyo, May in London
    assert (limited.spent("all", "day"), limited.spent("all", "month")) == (0, 0)
    limited.settle(limited.reserve([], 10), 10)
    calendar.now += timedelta(days=1)
    limited.reserve([], 5)
    with pytest.raises(BudgetExceededError, match="month"):
        limited.reserve([], 1)


def test_no_limit_is_no_budget(ledger: Ledger) -> None:
    assert not budgets(ledger)
    assert not budgets(ledger, Budget(scope="agent:a"))
    assert budgets(ledger, Budget(day=0))
    with pytest.raises(BudgetExceededError):
        budgets(ledger, Budget(day=0)).reserve([], 0)


def test_what_was_spent_before_there_was_a_budget_counts_once(ledger: Ledger) -> None:
    limited = budgets(ledger, Budget(day=DOLLAR))
    limited.start_from("all", "day", 5)
    limited.settle(limited.reserve([], 1), 1)
    limited.start_from("all", "day", 5)
    assert limited.spent("all", "day") == 6


# Keys


def test_a_key_works_and_stands_nowhere_on_the_disk(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    text, key = Keys(ledger, tmp_path / "secret").create("laptop", ["call", "feedback"], agent="router")
    assert len(text) == len("rlv_") + 43, "256 bits"
    again = Keys(ledger, tmp_path / "secret")
    assert again.find(text) == key
    assert again.find(text + "x") is None
    assert (key.name, key.scopes, key.agent) == ("laptop", ("call", "feedback"), "router")
    assert key.shown == f"{text[:8]}…{text[-4:]}"
    assert key.may("call")
    assert not key.may("write")
    ledger.close()
    for file in tmp_path.iterdir():
        assert text.encode() not in file.read_bytes()
        assert text[4:20].encode() not in file.read_bytes()


def test_a_key_of_another_secret_does_not_work(ledger: Ledger, tmp_path: Path) -> None:
    text, _ = Keys(ledger, tmp_path / "secret").create("a", ["call"])
    assert Keys(ledger, tmp_path / "other").find(text) is None


def test_a_key_expires_and_can_be_revoked(ledger: Ledger, tmp_path: Path) -> None:
    now = [1_000.0]
    keys = Keys(ledger, tmp_path / "secret", now=lambda: now[0])
    brief, _ = keys.create("brief", ["call"], expires=1_500.0)
    text, key = keys.create("lasting", ["admin"])
    assert keys.find(brief) is not None
    assert keys.find(text).may("write")  # type: ignore[union-attr]
    other = Keys(ledger, tmp_path / "secret", now=lambda: now[0])
    assert other.find(text) is not None
    keys.revoke(key.id)
    assert keys.find(text) is None
    now[0] = 1_010.0
    assert other.find(text) is None, "another gateway sees it within ten seconds"
    now[0] = 1_500.0
    assert keys.find(brief) is None
    assert not keys.any_works()
    assert [k.name for k in keys.all()] == ["brief", "lasting"]


@pytest.mark.parametrize("scopes", [[], ["everything"], ["call", "fly"]])
def test_unknown_scopes_are_refused_with_the_known_ones(ledger: Ledger, tmp_path: Path, scopes: list[str]) -> None:
    with pytest.raises(AccessKeyError, match="call, feedback, read, write, admin"):
        Keys(ledger, tmp_path / "secret").create("a", scopes)


def test_revoking_a_key_that_is_not_there_says_so(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(AccessKeyError, match="no key 7"):
        Keys(ledger, tmp_path / "secret").revoke(7)


def test_the_secret_is_for_its_owner_alone(ledger: Ledger, tmp_path: Path) -> None:
    Keys(ledger, tmp_path / "secret")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ledger.db").stat().st_mode) == 0o600
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(AccessKeyError, match="chmod 600"):
        Keys(ledger, tmp_path / "secret")


# Snapshots and the file itself


def test_what_held_is_kept_once_under_its_hash(ledger: Ledger) -> None:
    snapshots = Snapshots(ledger)
    name = snapshots.keep({"a": 1, "b": [2]})
    assert snapshots.keep({"b": [2], "a": 1}) == name
    assert Snapshots(ledger).keep({"a": 1, "b": [2]}) == name
    assert snapshots.keep({"a": 2}) != name
    assert snapshots.find(name) == {"a": 1, "b": [2]}
    assert snapshots.find("nothing") is None
    assert len(ledger.rows("SELECT hash FROM snapshot")) == 2


def test_a_newer_or_damaged_file_is_refused_untouched(tmp_path: Path) -> None:
    newer = tmp_path / "newer.db"
    Ledger(newer).close()
    connection = apsw.Connection(str(newer))
    connection.execute("PRAGMA user_version = 99").fetchall()
    connection.close()
    with pytest.raises(LedgerError, match="newer Relive"):
        Ledger(newer)
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is no database" * 100)
    with pytest.raises(LedgerError, match="Move it away"):
        Ledger(damaged)
    assert damaged.read_bytes() == b"this is no database" * 100


def test_a_failure_inside_a_transaction_undoes_all_of_it(ledger: Ledger) -> None:
    def half(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO spend VALUES ('a', 'b', 1)").fetchall()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ledger.transaction(half)
    assert ledger.rows("SELECT * FROM spend") == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(LedgerError, match="file"):
            Ledger(tmp_path / "file" / "ledger.db")
        return
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match=str(tmp_path)):
        Ledger(tmp_path / "ledger.db")
