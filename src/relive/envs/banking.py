"""Routing what customers of an online bank write: 16 intents of Banking77, told only whether the route was right.

The messages and their labels are data by PolyAI under CC BY 4.0 (Casanueva et al. 2020, arXiv 2003.04807); the notice
is beside them in ``data/NOTICE.md``. A label is compared with the answer and leaves this file in no other way.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np
import zstandard

from relive.envs.single import SingleAnswer

Split = Literal["train", "test"]

INTENTS = (
    "card_arrival",
    "lost_or_stolen_card",
    "exchange_rate",
    "top_up_failed",
    "change_pin",
    "age_limit",
    "terminate_account",
    "atm_support",
    "apple_pay_or_google_pay",
    "cash_withdrawal_charge",
    "country_support",
    "edit_personal_details",
    "getting_virtual_card",
    "passcode_forgotten",
    "request_refund",
    "transfer_timing",
)
"""The 16 of the 77 intents whose messages are shipped."""

INSTRUCTION = "Route the customer's message to the right intent."
"""All that the agent is told. The intents themselves are the environment's allowed actions."""


def messages(split: Split = "train") -> list[tuple[str, str]]:
    """The shipped messages as (text, intent): 1,972 for training, or 640 held out for tests."""
    return [(text, intent) for text, intent in _data()[split]]


class Banking77(SingleAnswer):
    """A stream of customers' messages, each to be routed to one of `INTENTS`. Reward 1 for the right one, else 0.

    Args:
        split: ``"train"`` or the held-out ``"test"``.
        count: How many messages; ``None``: all.
        seed: Seed of their order.
        start: Position of the first message shown, to go on after an interruption.
        instruction: What the agent is told before each message.
        shuffled_rewards: Gives each message the label of another one, so that there is nothing to learn: a control.

    Raises:
        ValueError: `count` is not between 1 and the number of messages, or there is no message at `start`.
    """

    def __init__(
        self,
        split: Split = "train",
        *,
        count: int | None = None,
        seed: int = 0,
        start: int = 0,
        instruction: str = INSTRUCTION,
        shuffled_rewards: bool = False,
    ) -> None:
        available = messages(split)
        if count is not None and not 1 <= count <= len(available):
            raise ValueError(f"count is {count}; it must be from 1 to {len(available)}.")
        rng = np.random.default_rng(seed)
        chosen = [available[i] for i in rng.permutation(len(available))[:count]]
        labels = [intent for _, intent in chosen]
        if shuffled_rewards:
            labels = [labels[i] for i in rng.permutation(len(labels))]
        self.texts = tuple(text for text, _ in chosen)
        questions = [
            [{"role": "system", "content": instruction}, {"role": "user", "content": text}] for text in self.texts
        ]
        super().__init__(questions, lambda index, action: float(action == labels[index]), actions=INTENTS, start=start)


@cache
def _data() -> dict[str, list[list[str]]]:
    packed = files("relive.envs").joinpath("data", "banking77.json.zst").read_bytes()
    data: dict[str, list[list[str]]] = json.loads(zstandard.ZstdDecompressor().decompress(packed))
    return data
