"""Reward functions put together, made from settings, and evaluated wherever they are needed."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from relive.experience import Transition
from relive.rewards import answers
from relive.rewards.answers import Contains, ExactMatch, Format, JSONValid, LengthBand, Regex, RewardError
from relive.rewards.code import CodeLimits, CodePasses, CodePrints

RewardFunction = Callable[[Transition], float | None]
"""The shape of every reward function: a transition in, a reward out, ``None`` where it does not score."""

WEAK_PROXIES: tuple[RewardFunction, ...] = (answers.answer_quality,)
"""Rewards that look at form only: they may start an experiment, never prove that an agent got better."""


async def evaluate(reward: RewardFunction, transition: Transition) -> float | None:
    """Scores one transition without holding up the event loop (code that is run, a judge that is asked).

    Raises:
        RewardError: the function gave something that is no finite number and not ``None``.
    """
    awaitable: Callable[[Transition], Awaitable[float | None]] | None = getattr(reward, "evaluate", None)
    if awaitable is not None:
        return checked(await awaitable(transition))
    if isinstance(reward, CodePasses | CodePrints):
        return checked(await asyncio.to_thread(reward, transition))
    return checked(reward(transition))


def checked(value: Any) -> float | None:
    """A reward as it may be stored.

    Raises:
        RewardError: it is no finite number and not ``None``.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise RewardError(f"A reward function gave {value!r}; it must give a finite number, or None for not scored.")


def is_weak_proxy(reward: RewardFunction) -> bool:
    """Whether a reward looks at form only, or is partly made from one that does."""
    if isinstance(reward, Weighted):
        return any(is_weak_proxy(part) for part, _ in reward.parts.values())
    return any(reward is proxy for proxy in WEAK_PROXIES)


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """The weighted sum of other rewards, divided by the sum of the weights' sizes.

    Attributes:
        parts: By name, a reward function and its weight; a negative weight is a penalty.
        missing: What becomes of the whole where a part does not score: ``"unscored"`` as a whole, so that all rewards
            mean the same; or ``"skip"`` that part and its weight.
    """

    parts: Mapping[str, tuple[RewardFunction, float]]
    missing: Literal["unscored", "skip"] = "unscored"

    def __post_init__(self) -> None:
        weights = [weight for _, weight in self.parts.values()]
        if not weights or not all(math.isfinite(w) and w != 0 for w in weights):
            raise RewardError("Weighted needs at least one part, and each weight must be a number other than 0.")

    def __call__(self, transition: Transition) -> float | None:
        """Scores one transition."""
        return self._sum({name: checked(part(transition)) for name, (part, _) in self.parts.items()})

    async def evaluate(self, transition: Transition) -> float | None:
        """Scores one transition, its parts at the same time."""
        return self._sum(await self.components(transition))

    async def components(self, transition: Transition) -> dict[str, float | None]:
        """The reward of each part by its name."""
        values = await asyncio.gather(*(evaluate(part, transition) for part, _ in self.parts.values()))
        return dict(zip(self.parts, values, strict=True))

    def _sum(self, values: Mapping[str, float | None]) -> float | None:
        scored = [(value, self.parts[name][1]) for name, value in values.items() if value is not None]
        if not scored or (len(scored) < len(self.parts) and self.missing == "unscored"):
            return None
        return sum(value * weight for value, weight in scored) / sum(abs(weight) for _, weight in scored)


KINDS: dict[str, Callable[..., RewardFunction]] = {
    "exact_match": ExactMatch,
    "contains": Contains,
    "json_valid": JSONValid,
    "regex": Regex,
    "length_band": LengthBand,
    "format": Format,
    "code_passes": CodePasses,
    "code_prints": CodePrints,
    "answer_quality": lambda: answers.answer_quality,
}
"""What a settings file may name as the ``kind`` of a reward."""


def from_settings(settings: Mapping[str, Any]) -> RewardFunction:
    """Makes a reward function from a table of a settings file.

    ``{"kind": "contains", "texts": ["refund"]}`` is `Contains` with those arguments; ``{"kind": "weighted", "parts":
    [{"name": "short", "weight": 0.3, "kind": "length_band", "maximum": 400}, …]}`` is `Weighted`.

    Raises:
        RewardError: the kind is unknown, or an argument is; the known kinds are listed.
    """
    arguments = dict(settings)
    kind = arguments.pop("kind", None)
    if kind == "weighted":
        return _weighted(arguments)
    if kind not in KINDS:
        raise RewardError(f"There is no reward of the kind {kind!r}; there are {', '.join([*KINDS, 'weighted'])}.")
    if isinstance(arguments.get("limits"), Mapping):
        arguments["limits"] = _made(CodeLimits, "limits", arguments["limits"])
    return cast("RewardFunction", _made(KINDS[kind], kind, arguments))


def _weighted(arguments: dict[str, Any]) -> Weighted:
    parts: dict[str, tuple[RewardFunction, float]] = {}
    for number, part in enumerate(arguments.pop("parts", ())):
        rest = dict(part)
        name, weight = rest.pop("name", f"{rest.get('kind')}_{number}"), rest.pop("weight", 1.0)
        if name in parts:
            raise RewardError(f"Two parts of a weighted reward are called {name!r}; give each its own name.")
        parts[name] = (from_settings(rest), weight)
    return cast("Weighted", _made(Weighted, "weighted", {"parts": parts, **arguments}))


def _made(make: Callable[..., Any], kind: str, arguments: Mapping[str, Any]) -> Any:
    try:
        return make(**arguments)
    except TypeError as error:
        raise RewardError(f"The reward {kind!r} does not take these settings: {error}.") from error
