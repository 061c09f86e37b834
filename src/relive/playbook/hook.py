"""`PromptHook`: injection for a gateway, which knows lessons only through a hook.

The hook gets a request before it is forwarded and gives back a request and facts for the record. It changes the text of
one message; every other byte of the body stays. Whatever goes wrong in the memory, the request goes on as it came, and
the facts say so.

Calls of one conversation are treated alike. The hook is told neither episode nor header, so it tells conversations by
what was said: a call that begins with the messages of an earlier one, and has an answer after them, goes on with it.
"""

import asyncio
import hashlib
import json
import secrets
import threading
import time
from collections import OrderedDict
from typing import Any, Protocol, Self, TypeVar

import msgspec

from relive.playbook.injection import Injection, last_user, with_block

OPT_OUT = "relive_inject"
"""A field of the request's ``metadata``; if it is ``"off"``, the prompt is given nothing."""

_MOST_CONVERSATIONS = 20_000
_FOLLOW_EVERY = 5.0  # seconds


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
        follow: Whether to take in what calls came to, now and then, beside them.
    """

    def __init__(self, injection: Injection, *, follow: bool = True) -> None:
        self.injection = injection
        self._follow = follow
        self._followed = time.monotonic()
        self._conversations: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    async def __call__(self, request: R, agent: str) -> tuple[R, dict[str, Any]]:
        """The request to forward, and facts for its record."""
        messages = request.value("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            return request, {}
        metadata = request.value("metadata")
        if isinstance(metadata, dict) and str(metadata.get(OPT_OUT, "")).lower() == "off":
            return request, {"injection": "off"}
        try:
            return await asyncio.to_thread(self._prepare, request, messages, agent)
        except Exception as error:  # noqa: BLE001 - whatever breaks in the memory must not stop the agent
            return request, {"injection_error": f"{type(error).__name__}: {error}"[:300]}

    def _prepare(self, request: R, messages: list[Any], agent: str) -> tuple[R, dict[str, Any]]:
        plan = self.injection.plan(messages, agent=agent, episode=self._episode(agent, messages))
        self._follow_now_and_then()
        if not plan.block:
            return request, plan.facts
        at = last_user(messages)
        texts = msgspec.json.decode(request.fields["messages"], type=list[msgspec.Raw])
        if at is None or len(texts) != len(messages):
            return request, {}
        changed = {**messages[at], "content": with_block(messages[at].get("content"), plan.block)}
        texts[at] = msgspec.Raw(json.dumps(changed, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        body = msgspec.json.encode({**request.fields, "messages": texts})
        return type(request)(request.path, body), plan.facts

    def _episode(self, agent: str, messages: list[Any]) -> str:
        """The conversation that these messages go on with, or a new one."""
        digest = hashlib.blake2b(agent.encode(), digest_size=16)
        known: str | None = None
        with self._lock:
            for message in messages:
                if message.get("role") == "assistant":
                    known = self._conversations.get(digest.digest(), known)
                digest.update(json.dumps(message, sort_keys=True).encode())
            episode = known or secrets.token_hex(16)
            self._conversations[digest.digest()] = episode
            while len(self._conversations) > _MOST_CONVERSATIONS:
                self._conversations.popitem(last=False)
        return episode

    def _follow_now_and_then(self) -> None:
        if self._follow and time.monotonic() - self._followed >= _FOLLOW_EVERY:
            self._followed = time.monotonic()
            self.injection.book.follow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.injection.book.follow()
