"""Which step of which episode a call is, when the client does not say so.

A conversation that extends an earlier one is its next step: its messages begin with all that the earlier call saw and
answered. Each finished call leaves the hash of its messages and its answer; a new call hashes its own beginnings and
looks for the longest that is known. What comes after that beginning (results of tools, the user's next words) is what
the earlier step saw next.

It never guesses: histories that differ in what was said (a system prompt with the time of day) are different
conversations. Two conversations with the same words so far cannot be told apart, and each is continued once, the older
first; a conversation that is continued a second time has forked, and the fork is a new episode. Names that clients give
are kept apart by agent and key, so no one's call lands in another's episode. Memory is bounded: the least recently used
are forgotten, and a forgotten conversation begins a new episode.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from relive.gateway.dialects.reader import dictionaries, parse
from relive.gateway.dialects.responses import as_messages
from relive.gateway.fresh import fresh_id
from relive.storage.codec import encode_json

_PLAIN = {"role", "content"}
_MOST_ALIKE = 64
"""Conversations with the same words so far that are remembered."""
_SORTED = msgspec.json.Encoder(order="sorted")
_PARTS_LEFT_OUT = ("thinking", "redacted_thinking", "reasoning")


class Step(msgspec.Struct, frozen=True):
    """Where a call belongs.

    Attributes:
        episode_id: The episode.
        step: The position in it, from 0.
        previous: Uid of the step before, whose next state is now known; ``None``: none, or not for certain.
        new_messages: How many messages at the end the step before has not seen; 0: not known.
    """

    episode_id: str
    step: int
    previous: bytes | None = None
    new_messages: int = 0


class Said:
    """What was said in a conversation up to a call, hashed once.

    Args:
        scope: Whose it is.
        messages: The messages, as chat messages.
    """

    def __init__(self, scope: str, messages: Sequence[Any]) -> None:
        self.count = len(messages)
        self.roles = [_role(message) for message in messages]
        self.ends: list[bytes] = []
        self._chain = hashlib.blake2b(scope.encode(errors="replace"), digest_size=16)
        for message in messages:
            _add(self._chain, message)
            self.ends.append(self._chain.digest())

    def with_answer(self, answer: Any) -> bytes:
        """The hash of it with an answer at its end."""
        chain = self._chain.copy()
        _add(chain, answer)
        return chain.digest()


class _Node(msgspec.Struct, frozen=True):
    episode_id: str
    step: int
    uid: bytes


class Conversations:
    """Remembers conversations of the past.

    Args:
        capacity: How many calls are remembered.
    """

    def __init__(self, capacity: int = 20_000) -> None:
        self._capacity = capacity
        self._ends: OrderedDict[bytes, tuple[_Node, ...]] = OrderedDict()
        self._responses: OrderedDict[tuple[str, str], _Node] = OrderedDict()
        self._episodes: OrderedDict[tuple[str, str], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends) + len(self._responses) + len(self._episodes)

    def place(
        self,
        scope: str,
        said: Said | None,
        *,
        episode_id: str | None = None,
        step: int | None = None,
        previous_response: str | None = None,
    ) -> Step:
        """The place of a call that begins now.

        Args:
            scope: Whose call it is; conversations of different scopes never meet.
            said: What it sees; ``None``: it is no conversation.
            episode_id: The episode that the client names; ``None``: it names none.
            step: The step that the client names.
            previous_response: The provider's id of the answer that it goes on from.
        """
        found, seen = self._find(scope, said, previous_response, episode_id)
        if episode_id is None:
            episode_id = found.episode_id if found else fresh_id().hex()
        if step is None:
            step = max(found.step + 1 if found else 0, self._episodes.get((scope, episode_id), 0))
        self._remember(self._episodes, (scope, episode_id), step + 1)
        new = said.count - seen if found and said is not None and seen else 0
        return Step(episode_id, step, found.uid if found else None, new)

    def next_step(self, scope: str, episode_id: str) -> int | None:
        """The step that comes next in an episode; ``None``: it is not remembered."""
        return self._episodes.get((scope, episode_id))

    def goes_on(self, scope: str, episode_id: str, step: int) -> None:
        """Tells that an episode's next step is at least this one (from the store, after a restart)."""
        known = self._episodes.get((scope, episode_id), 0)
        self._remember(self._episodes, (scope, episode_id), max(known, step))

    def ended(
        self,
        scope: str,
        place: Step,
        uid: bytes,
        said: Said | None,
        action: Any,
        response_id: str | None = None,
    ) -> None:
        """Remembers a call that got its whole answer, so that what extends it can be told.

        Args:
            scope: Whose call it was.
            place: Its place.
            uid: Its row's uid.
            said: What it saw.
            action: What was answered.
            response_id: The provider's id of the answer.
        """
        node = _Node(place.episode_id, place.step, uid)
        if response_id is not None:
            self._remember(self._responses, (scope, response_id), node)
        if said is None or action is None:
            return
        answer = parse(encode_json(action))
        if not isinstance(answer, dict):
            return
        end = said.with_answer(answer)
        self._remember(self._ends, end, (*self._ends.get(end, ()), node)[-_MOST_ALIKE:])

    def _find(
        self, scope: str, said: Said | None, previous_response: str | None, episode_id: str | None
    ) -> tuple[_Node | None, int]:
        """The step that a call extends, and how many of its messages that step has seen or said."""
        if previous_response is not None:
            return self._responses.get((scope, previous_response)), 0
        for seen in range(said.count - 1 if said is not None else 0, 0, -1):
            assert said is not None  # noqa: S101 - the range is empty without it
            end = said.ends[seen - 1]
            nodes = self._ends.get(end) if said.roles[seen - 1] == "assistant" else None
            if nodes is None:
                continue
            node = next((n for n in nodes if episode_id in (None, n.episode_id)), None)
            if node is None:
                return None, 0  # continued before: a fork
            self._ends[end] = tuple(n for n in nodes if n is not node)
            return node, seen
        return None, 0

    def _remember(self, memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        memory[key] = value
        memory.move_to_end(key)
        while len(memory) > self._capacity:
            memory.popitem(last=False)


def _add(chain: "hashlib.blake2b", message: Any) -> None:
    """Adds a message to a hash, said in one way whatever the client's spelling."""
    if type(message) is dict and message.keys() == _PLAIN and type(message["content"]) is str:
        text = _canonical([message["role"], message["content"]])  # nearly all messages of nearly all agents
    else:
        text = _canonical(_essence(message))
    chain.update(len(text).to_bytes(8, "big"))
    chain.update(text)


def _canonical(value: Any) -> bytes:
    try:
        return _SORTED.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        return encode_json(value)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _essence(message: Any) -> Any:
    """What was said in a message, without what clients add, drop or spell differently when they repeat it."""
    if not isinstance(message, dict):
        return message
    output = message.get("output")
    if isinstance(output, list) and "role" in message:  # an answer of Responses, with its items beside it
        message = next(iter(as_messages(dictionaries(output)) or [message]), message)
    said = [message.get("role"), _content(message.get("content"))]
    calls = [_call(call) for call in dictionaries(message.get("tool_calls"))]
    about = [message.get("tool_call_id"), message.get("function_call")]
    return [*said, calls, *about] if calls or any(about) else said


def _call(call: dict[str, Any]) -> Any:
    function = call.get("function")
    return (
        [call.get("id"), *(function.get(key) for key in ("name", "arguments"))] if isinstance(function, dict) else call
    )


def _content(content: Any) -> Any:
    """Blocks as a list without thinking and caching marks; text alone, however wrapped, as a string."""
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    blocks = [
        _block(block) for block in content if not (isinstance(block, dict) and block.get("type") in _PARTS_LEFT_OUT)
    ]
    texts = [block[1] for block in blocks if isinstance(block, list) and block[0] == "text"]
    return "".join(texts) if len(texts) == len(blocks) else blocks


def _block(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    if isinstance(block.get("text"), str) and block.get("type") in ("text", "input_text", "output_text"):
        return ["text", block["text"]]
    kept = {key: value for key, value in block.items() if key not in {"cache_control", "citations"}}
    return {**kept, "content": _content(kept["content"])} if "content" in kept else kept
