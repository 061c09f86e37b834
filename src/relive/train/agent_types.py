"""Where to start for four kinds of agents: learning rates, and the model, temperature and batch that suit them.

The figures are those of article 001 (`docs/from-the-articles.md`); they are a start to measure from, not a result.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from relive.llm.comparison import Estimate, compare
from relive.llm.pricing import PriceTable

Kind = Literal["conversational", "decision_making", "exploration", "optimization"]
Tier = Literal["high_quality", "balanced", "low_cost"]
"""As `[tiers]` in the gateway's settings name them."""


class AgentType(msgspec.Struct, frozen=True, kw_only=True):
    """What suits a kind of agents.

    Attributes:
        initial: Learning rate at the start.
        minimum: Never less.
        maximum: Never more.
        decay: Factor on a plateau.
        patience: Updates without progress that make a plateau.
        tier: Recommended model tier.
        temperature: Recommended sampling temperature.
        batch_size: Recommended batch.
    """

    initial: float
    minimum: float
    maximum: float
    decay: float
    patience: int
    tier: Tier
    temperature: float
    batch_size: int


AGENT_TYPES: dict[Kind, AgentType] = {
    "conversational": AgentType(
        initial=1e-4, minimum=1e-5, maximum=1e-3, decay=0.95, patience=50,
        tier="low_cost", temperature=0.7, batch_size=64,
    ),
    "decision_making": AgentType(
        initial=1e-2, minimum=1e-4, maximum=1e-1, decay=0.9, patience=20,
        tier="high_quality", temperature=0.3, batch_size=16,
    ),
    "exploration": AgentType(
        initial=1e-3, minimum=1e-4, maximum=1e-2, decay=0.92, patience=30,
        tier="balanced", temperature=0.9, batch_size=32,
    ),
    "optimization": AgentType(
        initial=5e-4, minimum=5e-5, maximum=5e-3, decay=0.97, patience=100,
        tier="high_quality", temperature=0.2, batch_size=8,
    ),
}  # fmt: skip


def month_cost(
    models: Iterable[str],
    prices: PriceTable,
    *,
    tokens: int = 5_000,
    steps: int = 1_000,
    days: int = 30,
    answer_share: float = 0.25,
    base_url: str | None = None,
) -> list[Estimate]:
    """What an agent would cost in a month with one model or another, in the order given.

    Args:
        models: Their names.
        prices: What they cost.
        tokens: Tokens of a step, prompt and answer together.
        steps: Steps a day.
        days: Days of the month.
        answer_share: Which part of the tokens answers are, from 0 to 1.
        base_url: The endpoint's address, for prices that are known by it.
    """
    return compare(models, prices, tokens=tokens * steps * days, answer_share=answer_share, base_url=base_url)
