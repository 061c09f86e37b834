"""Learning rates by kind of agents: the article's values, and what they do over a run of metrics."""

from decimal import Decimal

import pytest
import torch

from relive.llm.pricing import Price, PriceTable
from relive.train.agent_types import AGENT_TYPES, AgentType, month_cost
from relive.train.schedules import AdaptiveRate

ARTICLE = {  # initial, minimum, maximum, decay, patience; tier, temperature, batch
    "conversational": (1e-4, 1e-5, 1e-3, 0.95, 50, "low_cost", 0.7, 64),
    "decision_making": (1e-2, 1e-4, 1e-1, 0.9, 20, "high_quality", 0.3, 16),
    "exploration": (1e-3, 1e-4, 1e-2, 0.92, 30, "balanced", 0.9, 32),
    "optimization": (5e-4, 5e-5, 5e-3, 0.97, 100, "high_quality", 0.2, 8),
}
SMALL = AgentType(
    initial=0.1, minimum=0.03, maximum=0.2, decay=0.5, patience=2, tier="balanced", temperature=1.0, batch_size=1
)


def optimizer(rate=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rates(metrics, schedule):
    found = []
    for metric in metrics:
        schedule.step(metric)
        found.append(schedule.optimizer.param_groups[0]["lr"])
        assert schedule.get_last_lr() == [found[-1]]
    return [float(rate) for rate in found]


def test_each_kind_has_the_articles_values() -> None:
    assert set(AGENT_TYPES) == set(ARTICLE)
    for kind, (initial, minimum, maximum, decay, patience, tier, temperature, batch) in ARTICLE.items():
        found = AGENT_TYPES[kind]
        assert (found.tier, found.temperature, found.batch_size) == (tier, temperature, batch)
        schedule = AdaptiveRate(optimizer(), kind)
        plateau = [initial] * (patience + 1) + [initial * decay]
        assert rates([1.0] * (patience + 2), schedule) == pytest.approx(plateau)
        assert rates([0.0] * 100 * patience, schedule)[-1] == pytest.approx(minimum, rel=1e-3)
        assert rates(range(2, 200), schedule)[-1] == maximum


def test_three_better_rewards_in_a_row_raise_the_rate_by_half() -> None:
    better = rates([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], AdaptiveRate(optimizer(), SMALL))
    assert better == pytest.approx([0.1, 0.1, 0.1, 0.15, 0.15, 0.15, 0.2])  # 0.225 is above the maximum
    noisy = rates([0.0, 1.0, 2.0, 1.0, 3.0, 4.0, 3.0], AdaptiveRate(optimizer(), SMALL))
    assert noisy == pytest.approx([0.1] * 7), "no three in a row"


def test_a_loss_gets_better_as_it_falls() -> None:
    found = rates([4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0], AdaptiveRate(optimizer(), SMALL, mode="min"))
    assert found == pytest.approx([0.1, 0.1, 0.1, 0.15, 0.15, 0.15, 0.075])


def test_a_rate_that_an_optimizer_keeps_as_a_tensor_is_changed_in_place() -> None:
    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(1.0))
    kept = adam.param_groups[0]["lr"]
    schedule = AdaptiveRate(adam, SMALL)
    for metric in range(4):
        schedule.step(metric)
    assert adam.param_groups[0]["lr"] is kept
    assert kept.item() == pytest.approx(0.15)


def test_a_schedule_goes_on_where_it_was_saved() -> None:
    metrics = [0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 4.0, 5.0, 6.0]
    whole = rates(metrics, AdaptiveRate(optimizer(), SMALL))
    for stop in range(len(metrics)):
        first = AdaptiveRate(optimizer(), SMALL)
        begun = rates(metrics[:stop], first)
        second = AdaptiveRate(optimizer(), SMALL)
        second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.load_state_dict(first.state_dict())
        assert begun + rates(metrics[stop:], second) == whole


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="there are conversational, decision_making, exploration, optimization"):
        AdaptiveRate(optimizer(), "chatty")
    with pytest.raises(ValueError, match="at least 1"):
        AdaptiveRate(optimizer(), SMALL, growth=0.5)
    wrong = AgentType(
        initial=1.0, minimum=2.0, maximum=3.0, decay=0.5, patience=1, tier="balanced", temperature=1.0, batch_size=1
    )
    with pytest.raises(ValueError, match="in this order"):
        AdaptiveRate(optimizer(), wrong)


def test_a_months_cost_is_that_of_5000_tokens_a_step_and_1000_steps_a_day() -> None:
    prices = PriceTable({"plain": Price.of(8, 8), "apart": Price.of(1, 5)})
    plain, apart, unknown = month_cost(["plain", "apart", "unknown"], prices, answer_share=0.2)
    usd = Decimal(10**9)
    assert plain.input_tokens + plain.output_tokens == 150_000_000
    assert plain.cost / usd == 1_200
    assert apart.cost / usd == 120 + 150
    assert unknown.cost is None, "an unknown price is not 0"
    assert month_cost(["plain"], prices, tokens=100, steps=10, days=2)[0].cost / usd == Decimal("0.016")
