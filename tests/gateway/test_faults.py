"""What breaks around the gateway: the disk under the store, the budget's database, the gateway itself."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from gateway_calls import CHAT, QUESTION, delta, sse
from loopback import Request, Rig, reply, run, stream

from relive.experience import Transition
from relive.gateway import budget
from relive.gateway.budget import Budget, Budgets
from relive.gateway.ledger import Ledger, LedgerError
from relive.gateway.proxy import Limits
from relive.llm.pricing import Price, PriceTable
from relive.storage import SqliteStorage
from relive.storage.errors import StorageFullError

DOLLAR = 10**9


def answer(words: str = "In Leeds.", prompt: int = 50, completion: int = 200) -> dict[str, Any]:
    message = {"role": "assistant", "content": words}
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "c1", "model": "m-1", "choices": [{"index": 0, "message": message}], "usage": usage}


async def pages(storage: SqliteStorage, most: int) -> None:
    """Limits how large the store's file may become."""
    await asyncio.wrap_future(storage.alone(lambda c: c.execute(f"PRAGMA max_page_count = {most}").fetchall()))


def test_sto_06_a_full_store_stops_no_call_and_recording_resumes_by_itself(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(answer()))
        kept: list[int] = []
        await pages(rig.storage, 256)  # of 8 KB: 2 MB
        episode = Transition(state={"text": _noise(64_000)}, action="a")
        refusal: BaseException | None = None
        while refusal is None and len(kept) < 1_000:
            writing = asyncio.wrap_future(rig.storage.append_soon([episode]))
            await asyncio.wait([writing])
            refusal = writing.exception()
            kept += [] if refusal else [number for number in writing.result() if number is not None]
        assert isinstance(refusal, StorageFullError)
        assert "store.db" in str(refusal)
        assert len(kept) > 5
        for number in range(5):
            status, headers, got = await rig.post(CHAT, {**QUESTION, "padding": _noise(64_000), "n": number})
            assert (status, json.loads(got)) == (200, answer())
            assert headers["x-relive-recorded"] == "pending"
        assert rig.gateway.recorder.stats.pending == 5
        assert rig.gateway.recorder.stuck
        assert all(stored is not None for stored in rig.storage.get(kept))
        await pages(rig.storage, 1 << 30)
        for _ in range(1_000):
            if len(rig.storage) == len(kept) + 5:
                break
            await asyncio.sleep(0.01)
        assert len(rig.storage) == len(kept) + 5
        _, headers, _ = await rig.post(CHAT, QUESTION)
        assert "x-relive-recorded" not in headers
        assert rig.gateway.recorder.stats.lost == 0

    run(tmp_path, body)
    with SqliteStorage(tmp_path / "store.db", readonly=True) as storage:
        assert len(storage.query(limit=1_000)) == len(storage)


def _noise(length: int) -> str:
    """Text that does not get shorter when it is packed."""
    import random

    return random.Random(length).randbytes(length // 2).hex()


def test_200_concurrent_calls_against_a_dollar_never_settle_above_it(tmp_path: Path) -> None:
    prices = PriceTable({"m-1": Price.of(0, 100)}, known=False)  # 100 tokens of the answer cost one cent

    def limits(ledger: Ledger) -> Budgets:
        return Budgets(ledger, [Budget(day=DOLLAR)], zone=UTC, now=lambda: datetime.now(UTC))

    async def body(rig: Rig) -> None:
        async def script(request: Request, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.01 * (len(request.body) % 3))
            if request.json()["stream"]:
                usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 60, "total_tokens": 61}}
                await stream([sse(delta("x" * 240), usage)])(request, writer)
            else:
                await reply(answer(completion=90))(request, writer)

        rig.upstream.answers(script)
        spent: list[int] = []
        budgets = rig.gateway.budgets
        assert budgets is not None

        async def call(number: int) -> int:
            asked = {**QUESTION, "model": "m-1", "max_tokens": 100, "stream": number % 2 == 0, "x": "x" * number}
            status, _, _ = await rig.post(CHAT, asked)
            spent.append(budgets.spent("all", "day"))
            return status

        statuses = await asyncio.gather(*(call(number) for number in range(200)))
        assert set(statuses) == {200, 429}
        assert max(spent) <= DOLLAR
        assert budgets.spent("all", "day") == sum(row.cost or 0 for row in rig.rows())
        assert 80 <= statuses.count(200) <= 166, "as many as fit: 0.01 is reserved for each, 0.009 and 0.006 are used"

    run(tmp_path, body, prices=prices, budgets=limits)


def test_a_broken_ledger_stops_no_agent_and_what_was_spent_is_booked_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "PATIENCE", 0.0)
    prices = PriceTable({"m-1": Price.of(0, 100)}, known=False)
    broken = False
    real = Ledger.transaction

    def transaction(self: Ledger, act: Any) -> Any:
        if broken:
            raise LedgerError("No room.")
        return real(self, act)

    def limits(ledger: Ledger) -> Budgets:
        return Budgets(ledger, [Budget(day=DOLLAR)], zone=UTC, now=lambda: datetime.now(UTC))

    async def body(rig: Rig) -> None:
        nonlocal broken
        rig.upstream.answers(reply(answer(completion=1_000)))  # 0.10
        asked = {**QUESTION, "model": "m-1", "max_tokens": 1_000}
        assert (await rig.post(CHAT, asked))[0] == 200
        await asyncio.sleep(0.2)
        broken = True
        statuses = [(await rig.post(CHAT, asked))[0] for _ in range(12)]
        assert statuses == [200] * 9 + [429] * 3, "within what was left when the ledger could be read"
        broken = False
        budgets = rig.gateway.budgets
        assert budgets is not None
        budgets.flush()
        rows = rig.ledger.rows("SELECT amount FROM spend WHERE scope = 'all'")
        assert rows == [(DOLLAR,)]

    monkeypatch.setattr(Ledger, "transaction", transaction)
    run(tmp_path, body, prices=prices, budgets=limits)


def test_a_lease_is_given_back_when_no_call_is_under_way(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    one, other = (Budgets(ledger, [Budget(day=DOLLAR)], zone=UTC, now=lambda: datetime.now(UTC)) for _ in range(2))
    calls = [one.reserve([], 10_000_000) for _ in range(20)]
    leased = ledger.rows("SELECT sum(amount) FROM reservation")[0][0]
    assert 200_000_000 <= leased < 400_000_000, "what is needed, and a little for the next"
    for call in calls:
        one.book(call, 9_000_000)
    assert one.unbooked
    one.flush()
    assert not one.unbooked
    assert ledger.rows("SELECT * FROM reservation") == []
    assert ledger.rows("SELECT amount FROM spend") == [(180_000_000,)]
    other.release(other.reserve([], 820_000_000))
    ledger.close()


def test_a_fault_of_the_gateway_itself_is_answered_and_recorded_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    async def body(rig: Rig) -> None:
        monkeypatch.setattr("relive.gateway.upstreams.Attempt.start", broken)
        status, _, got = await rig.post(CHAT, QUESTION)
        assert (status, json.loads(got)["error"]["code"]) == (500, "gateway_error")
        (row,) = await rig.until_recorded()
        assert row.info["status"] == "failed"
        assert row.error == "The gateway itself failed: RuntimeError."

    run(tmp_path, body)


def test_a_client_that_leaves_while_its_call_waits_for_another_try_is_recorded_as_gone(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"busy", 503, {"retry-after": "20"}))
        with pytest.raises(TimeoutError):
            await rig.client.post(rig.url + CHAT, json=QUESTION, timeout=aiohttp.ClientTimeout(total=0.3))
        (row,) = await rig.until_recorded()
        assert row.info["status"] == "client_disconnected"
        assert len(rig.upstream.requests) == 1

    run(tmp_path, body, limits=Limits())


def test_prx_12_an_answer_that_talks_about_context_windows_is_no_error(tmp_path: Path) -> None:
    words = "This model's maximum context length is 8192 tokens; reduce the length of the messages."

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(answer(words)))
        status, _, _ = await rig.post(CHAT, QUESTION)
        (row,) = rig.rows()
        assert (status, row.info["status"], row.error) == (200, "complete", None)
        assert row.action["content"] == words

    run(tmp_path, body)
