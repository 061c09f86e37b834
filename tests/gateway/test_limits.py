"""What the gateway refuses itself: what no budget has room for, what is too large or too much, what names no model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gateway_calls import CHAT, PRICES
from loopback import ANSWER, QUESTION, Request, Rig, model, one_dollar, reply, run, two_models

from relive.gateway.proxy import Limits
from relive.llm.pricing import Price, PriceTable


def test_prx_10_a_budget_admits_what_fits_and_refuses_the_rest_without_calling(tmp_path: Path) -> None:
    prices = PriceTable({"m-1": Price.of(0, 20_000)}, known=False)  # 0.02 USD a token of the answer

    async def body(rig: Rig) -> None:
        budgets = rig.gateway.budgets
        assert budgets is not None
        budgets.start_from("all", "day", 950_000_000)
        cheap = {**ANSWER, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}  # 0.02; two tokens are reserved: 0.04
        rig.upstream.answers(reply(cheap))
        answers = await asyncio.gather(*(rig.post(CHAT, {**QUESTION, "max_tokens": 2}) for _ in range(10)))
        statuses = sorted(status for status, _, _ in answers)
        assert statuses == [200] + [429] * 9
        assert len(rig.upstream.requests) == 1
        assert budgets.spent("all", "day") == 970_000_000
        refused = next(headers for status, headers, _ in answers if status == 429)
        assert refused["x-should-retry"] == "false"
        kinds = [transition.info.get("error_kind") for transition in rig.rows()]
        assert kinds.count("budget_exceeded") == 9

    run(tmp_path, body, prices=prices, budgets=one_dollar)


def test_prx_10_a_failed_call_gives_its_reservation_back(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        rig.upstream.answers(reply(b"no", 500))
        for _ in range(3):
            await rig.post(CHAT, {**QUESTION, "max_tokens": 400_000})  # 0.80
        assert len(rig.upstream.requests) == 9
        rig.upstream.answers(reply(ANSWER))
        assert (await rig.post(CHAT, {**QUESTION, "max_tokens": 400_000}))[0] == 200

    run(tmp_path, body, prices=PRICES, budgets=one_dollar)


def test_a_request_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        status, _, got = await rig.post(CHAT, b"x" * 2_000)
        assert (status, json.loads(got)["error"]["code"]) == (413, "request_too_large")

        async def endless() -> Any:
            while True:
                yield b"x" * 500

        async with rig.client.post(rig.url + CHAT, data=endless()) as answer:
            assert answer.status == 413

    run(tmp_path, body, limits=Limits(request_bytes=1_000))


def test_more_calls_at_a_time_than_allowed_are_refused_for_the_moment(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.2)
            await reply(ANSWER)(request, writer)

        rig.upstream.answers(slow)
        answers = await asyncio.gather(*(rig.post(CHAT, QUESTION) for _ in range(5)))
        assert sorted(status for status, _, _ in answers) == [200, 200, 503, 503, 503]
        refused = next(headers for status, headers, _ in answers if status == 503)
        assert refused["retry-after"] == "1"

    run(tmp_path, body, limits=Limits(concurrent=2))


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code"),
    [
        (CHAT, b"{", {}, 400, "invalid_json"),
        (CHAT, b"[]", {}, 400, "invalid_json"),
        (CHAT, QUESTION, {"x-relive-step": "x"}, 400, "identity"),
        (CHAT, {**QUESTION, "model": "nobody"}, {}, 404, "model_not_found"),
        ("/v1/messages", {**QUESTION, "model": "nobody"}, {}, 404, "model_not_found"),
    ],
)
def test_what_is_wrong_before_any_upstream_is_said_in_the_clients_own_form(
    tmp_path: Path, path: str, body: Any, headers: dict[str, str], status: int, code: str
) -> None:
    async def check(rig: Rig) -> None:
        answered, _, got = await rig.post(path, body, headers)
        value = json.loads(got)
        assert (answered, value["error"]["code"]) == (status, code)
        assert value.get("type") == ("error" if path == "/v1/messages" else None)
        assert rig.upstream.requests == []

    run(tmp_path, check, models=lambda rig: [model("a", rig.upstream, model="a-1")])


def test_models_and_tiers_are_listed(tmp_path: Path) -> None:
    async def body(rig: Rig) -> None:
        async with rig.client.get(rig.url + "/v1/models") as answer:
            listed = await answer.json()
        assert [entry["id"] for entry in listed["data"]] == ["a", "b", "balanced"]

    run(tmp_path, body, models=two_models, tiers={"balanced": ["a"]})
