"""What calls through the gateway cost, and what their budgets count."""

from pathlib import Path
from typing import Any

import pytest
from gateway_calls import CHAT, QUESTION, capture, pass_through, record
from loopback import Rig, model, reply, rig_run

from relive.gateway.capture import Upstream
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

    rig_run(tmp_path, body, models=models, prices=PriceTable())
