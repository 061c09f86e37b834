"""What calls through the gateway cost, and what their budgets count."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from gateway_calls import CHAT, COMPLETIONS, QUESTION, capture, delta, pass_through, record, sse
from loopback import Rig, model, one_dollar, raw, reply, reset, run, stream, until

from relive.gateway import proxy
from relive.gateway.budget import Budget, Budgets
from relive.gateway.capture import Upstream
from relive.gateway.ledger import Ledger
from relive.gateway.request import CallRequest
from relive.llm.pricing import Price, PriceTable

OPENAI = "https://api.openai.com/v1"
MILLION = {"prompt_tokens": 1_000_000, "completion_tokens": 1_000_000, "total_tokens": 2_000_000}


def answer(name: str, usage: dict[str, int] = MILLION) -> dict[str, Any]:
    message = {"role": "assistant", "content": "In Leeds."}
    return {"id": "c1", "model": name, "choices": [{"index": 0, "message": message}], "usage": usage}


# Whose price it is


def priced(*, route: str, named: str, answered: str, price: Price | None = None, base_url: str = OPENAI) -> int | None:
    """What a million tokens each way cost by this route, in nano-USD."""
    seen = capture({**QUESTION, "model": route})
    seen.forwarded(Upstream(name=route, model=named, base_url=base_url, shown=base_url, price=price))
    pass_through(seen, [str(answer(answered)).replace("'", '"').encode()], content_type="application/json")
    return record(seen, prices=PriceTable()).cost


@pytest.mark.parametrize("route", ["gpt-4", "o1", "cheap"])
@pytest.mark.parametrize("answered", ["gpt-4o-mini-2024-07-18", "gpt-4o-mini", "deployment-7"])
def test_what_a_route_is_called_here_has_no_price(route: str, answered: str) -> None:
    cost = priced(route=route, named="gpt-4o-mini", answered=answered)
    assert cost == 750_000_000, "0.15 USD for the prompt and 0.60 for the answer"


def test_a_name_that_only_the_client_uses_is_never_looked_up() -> None:
    assert priced(route="gpt-4", named="deployment-7", answered="deployment-7") is None


def test_a_routes_own_price_stands_over_the_list_whatever_it_answers_as() -> None:
    assert priced(route="a", named="gpt-4o", answered="gpt-4o-2024-08-06", price=Price.of(1, 2)) == 3_000_000_000


def test_a_routes_own_price_holds_for_no_other_route_to_the_same_model(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        for upstream in (rig.upstream, rig.second):
            upstream.answers(reply(answer("gpt-4o", usage)))
        for name in ("hosted", "gpt-4o"):
            await rig.post(CHAT, {**QUESTION, "model": name})
        assert [row.cost for row in rig.rows()] == [10 * 1_000 + 2_000, None]

    def models(rig: Rig) -> Any:
        own = {"model": "gpt-4o", "price": Price.of(1, 2)}
        return [model("hosted", rig.upstream, **own), model("gpt-4o", rig.second, model="gpt-4o")]

    run(tmp_path, body, models=models, prices=PriceTable())


# What is reserved, and what is booked


def one_cent(ledger: Ledger) -> Budgets:
    return Budgets(ledger, [Budget(day=10_000_000)], zone=UTC, now=lambda: datetime.now(UTC))


def spent(rig: Rig) -> int:
    assert rig.gateway.budgets is not None
    return rig.gateway.budgets.spent("all", "day")


DEAR = PriceTable({"m": Price.of(0, 100)}, known=False)  # 100 tokens of the answer cost one cent


def test_a_call_is_reserved_at_the_price_of_the_dearest_model_that_may_answer(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"{}", 402))
        rig.second.answers(reply(answer("dear", {"prompt_tokens": 1, "completion_tokens": 50, "total_tokens": 51})))
        asked = {**QUESTION, "model": "cheap", "max_tokens": 50}
        answers = await asyncio.gather(*(rig.post(CHAT, asked) for _ in range(20)))
        assert [status for status, _, _ in answers].count(200) == 2, "each 0.005 USD"
        assert spent(rig) == 10_000_000

    def models(rig: Rig) -> Any:
        dear = model("dear", rig.second, model="dear", price=Price.of(0, 100))
        return [model("cheap", rig.upstream, "dear", model="cheap", price=Price.of(0, 0)), dear]

    run(tmp_path, body, models=models, prices=DEAR, budgets=one_cent)


@pytest.mark.parametrize(
    ("path", "fields", "answers"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 50}, 50),
        (CHAT, {"n": None}, 1),
        (CHAT, {"n": True}, 1),
        (CHAT, {"n": -3}, 1),
        (COMPLETIONS, {"prompt": "a", "n": 2, "best_of": 5}, 5),
        (COMPLETIONS, {"prompt": ["a", "b", "c"], "n": 2}, 6),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, 2),
        (COMPLETIONS, {"prompt": []}, 1),
    ],
)
def test_each_answer_that_is_asked_for_counts(path: str, fields: dict[str, Any], answers: int) -> None:
    assert CallRequest(path, json.dumps({"model": "m", **fields}).encode()).answers() == answers


def test_many_answers_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(answer("m", {"prompt_tokens": 1, "completion_tokens": 100, "total_tokens": 101})))
        assert (await rig.post(CHAT, {**QUESTION, "n": 11, "max_tokens": 10}))[0] == 429
        assert rig.upstream.requests == []
        assert (await rig.post(CHAT, {**QUESTION, "n": 10, "max_tokens": 10}))[0] == 200

    run(tmp_path, body, prices=DEAR, budgets=one_cent)


@pytest.mark.parametrize(
    ("script", "booked"),
    [
        (reply(b"not what was expected", headers={"content-encoding": "zpaq"}), 5_000_000),
        (reply({"error": {"message": "No room", "code": 503}}), 0),
        (reply(b"{}", 400), 0),
        (reset, 0),
        (reply(answer("m", {"prompt_tokens": 1, "completion_tokens": 20, "total_tokens": 21})), 2_000_000),
        (stream([sse(delta("x"), {"error": {"message": "No room"}}, end=b"")]), 100_000),
    ],
    ids=["cannot be read", "an error in a 200", "refused", "no answer", "counted", "an error in mid-answer"],
)
def test_only_what_was_refused_or_never_answered_is_free(tmp_path: Path, script: Any, booked: int) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(script)
        await rig.post(CHAT, {**QUESTION, "max_tokens": 50})
        assert spent(rig) == booked

    run(tmp_path, body, prices=DEAR, budgets=one_cent)


def test_an_answer_of_an_api_that_is_not_understood_is_booked_as_it_was_reserved(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"{}"))
        assert (await rig.post("/v1/audio/speech", {"model": "m"}))[0] == 200
        assert spent(rig) == 10_000_000

    price = PriceTable({"m": Price.of(0, 10_000_000 / 2_048 / 1_000)}, known=False)
    run(tmp_path, body, prices=price, budgets=one_cent)


@pytest.mark.parametrize("path", ["/v1//chat/completions", "/v1/chat/completions/", "/v1/./Chat/Completions"])
def test_another_spelling_of_a_path_is_the_same_call(tmp_path: Path, path: str) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(answer("m", {"prompt_tokens": 1, "completion_tokens": 20, "total_tokens": 21})))
        assert b"200" in await raw(rig, "POST", path, json.dumps(QUESTION).encode())
        assert [request.target for request in rig.upstream.requests] == [CHAT]
        assert spent(rig) == 2_000_000
        assert rig.rows()[0].info["api"] == "chat"

    run(tmp_path, body, prices=PriceTable({"m": Price.of(0, 100)}, known=False), budgets=one_dollar)


def test_costs_are_booked_however_much_there_is_to_do_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_BACKGROUND", 0)

    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(answer("m", {"prompt_tokens": 1, "completion_tokens": 20, "total_tokens": 21})))
        for count in (1, 2):
            await rig.post(CHAT, QUESTION)
            await until(lambda: rig.ledger.rows("SELECT amount FROM spend") == [(count * 2_000_000,)])  # noqa: B023
        assert rig.gateway.budgets is not None
        await until(lambda: not rig.gateway.budgets.in_use)  # type: ignore[union-attr]
        assert rig.ledger.rows("SELECT * FROM reservation") == []

    run(tmp_path, body, prices=DEAR, budgets=one_dollar)
