"""`PromptHook`: injection for a gateway, which knows lessons only through a hook.

The hook gets a request before it is forwarded and gives back a request and facts for the record. It changes the text of
one message, and what an experiment changes; every other byte of the body stays. Whatever goes wrong in the memory, the
request goes on as it came, and the facts say so. Chat completions and Anthropic's messages are given lessons; what has
no ``messages`` goes on as it is.
"""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from relive.playbook.injection import Injection, Plan, last_user, with_block
from relive.playbook.recall import instructed

HEADER = "x-relive-inject"
"""A request's header: ``on``, ``dry-run`` (the record says what the prompt would be given) or anything else for off."""

Mode = Literal["off", "dry-run", "on"]
_MODES: tuple[Mode, ...] = ("off", "dry-run", "on")


class Request(Protocol):
    """What is needed of a gateway's request."""

    path: str
    fields: dict[str, msgspec.Raw]

    def __init__(self, path: str, body: bytes) -> None: ...

    def value(self, name: str) -> Any:
        """A top-level field's value; ``None``: there is none."""


R = TypeVar("R", bound=Request)


class PromptHook:
    """Puts lessons and past successes into the prompts of a gateway's requests.

    Args:
        injection: Chooses what a prompt is given.
        mode: The most that is done; a request's header may ask for less.
    """

    def __init__(self, injection: Injection, *, mode: Mode = "on") -> None:
        self.injection = injection
        self.mode = mode

    async def __call__(
        self, request: R, agent: str, episode: str, headers: Mapping[str, str]
    ) -> tuple[R, dict[str, Any]]:
        """The request to forward, and facts for its record."""
        asked = headers.get(HEADER, self.mode).strip().lower()
        mode = _MODES[min(_MODES.index(self.mode), _MODES.index(asked) if asked in _MODES else 0)]
        messages = request.value("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            return request, {}
        if mode == "off":
            return request, {"injection": mode}
        try:
            return await asyncio.to_thread(self._prepare, request, messages, agent, episode, mode)
        except Exception as error:  # noqa: BLE001 - whatever breaks in the memory must not stop the agent
            return request, {"injection_error": f"{type(error).__name__}: {error}"[:300]}

    def _prepare(
        self, request: R, messages: list[Any], agent: str, episode: str, mode: Mode
    ) -> tuple[R, dict[str, Any]]:
        if mode == "dry-run":
            plan = self.injection.plan(messages, agent=agent, episode=episode, everything=True)
            return request, {"injection": mode, "would_be": plan.facts.get("injected")}
        plan = self.injection.plan(messages, agent=agent, episode=episode)
        changed = _changed(request, messages, plan)
        if not changed:
            return request, plan.facts
        return type(request)(request.path, msgspec.json.encode({**request.fields, **changed})), plan.facts


def _changed(request: Request, messages: list[Any], plan: Plan) -> dict[str, Any]:
    """The fields of a request that a plan changes."""
    fields: dict[str, Any] = {} if plan.model is None else {"model": plan.model}
    if plan.block or plan.instructions is not None:
        texts = msgspec.json.decode(request.fields["messages"], type=list[msgspec.Raw])
        at = last_user(messages)
        if plan.block and at is not None:
            texts[at] = _json({**messages[at], "content": with_block(messages[at].get("content"), plan.block)})
        if plan.instructions is not None and request.path.endswith("/messages"):
            fields["system"] = plan.instructions
        elif plan.instructions is not None:
            texts = [_json({"role": "system", "content": plan.instructions}), *texts[instructed(messages) :]]
        fields["messages"] = texts
    return fields


def _json(message: dict[str, Any]) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass"))
