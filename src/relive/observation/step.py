"""`Step`: one observed step while it goes on, and what becomes its record.

A step that ends inside another is held by it until that one ends. One that is still under way then (a task left
running) is recorded by itself when it ends, under the outer step's record if that is kept by then.
"""

import threading
import time
from contextvars import ContextVar
from typing import Any

import msgspec

from relive.experience import Outcome, Transition, new_episode_id, now
from relive.observation.memories import Where, memory_at
from relive.observation.writer import WRITER, Tree
from relive.storage.codec import decode_json, encode_json
from relive.storage.usage_report import OBSERVED

MOST_HELD = 1_000
"""Steps that an outer one holds; beyond, the next ones are recorded at once, without it."""

_LONGEST_REPR = 1_000  # characters of a value that has no JSON form
_DEEPEST = 32
_LONGEST_ERROR = 500

_current: ContextVar["Step | None"] = ContextVar("relive_step", default=None)


def current() -> "Step | None":
    """The step under way here; ``None``: nothing is observed."""
    return _current.get()


class Step:
    """One observed step. Set what it did, and what came of it, before it ends.

    Attributes:
        name: What it is called.
        state: What was seen, any JSON value; taken as it is when the step begins.
        action: What was done; ``None``: nothing was, or nobody said.
        next_state: What was seen next.
        reward: Its reward; ``None``: not known yet.
        outcome: Whether it succeeded.
        tags: Free labels.
        agent: Who acts.
        episode_id: The episode it belongs to.
        step: Its place there.
        outer: The step that it is part of; ``None``: none.
        observer: What began it.
        id: The id of its record once it is kept; ``None``: not yet, or not at all.
    """

    def __init__(
        self,
        name: str,
        state: Any,
        *,
        memory: Where | None,
        agent: str | None,
        episode_id: str | None,
        tags: tuple[str, ...],
        observer: object = None,
    ) -> None:
        """Args: memory: where it is recorded; ``None``: where the outer step is. For the rest see the class."""
        outer: Step | None = _current.get()
        self.name = name
        self.state = plain(state)
        self.action: Any = None
        self.next_state: Any = None
        self.reward: float | None = None
        self.outcome: Outcome = "unknown"
        self.tags = tags
        self.agent: str = agent or (outer.agent if outer is not None else "default")
        inside = outer is not None and (episode_id is None or episode_id == outer.episode_id)
        self._place: _Place = outer._place if outer is not None and inside else _Place(episode_id or new_episode_id())
        self.episode_id: str = self._place.episode_id
        self.step = self._place.next()
        self.outer = outer
        self.observer = observer
        self.id: int | None = None
        above: Where | None = None if outer is None else outer._where
        self._where: Where | None = memory if memory is not None else above
        self._joins = outer is not None and (self._where is above or (isinstance(above, str) and self._where == above))
        self._error: str | None = None
        self._created_at = now()
        self._began = time.perf_counter()
        self._held: list[Tree] = []
        self._held_count = 0
        self._ended = False
        self._lock = threading.Lock()

    def begin(self) -> "Step":
        """Makes it the step under way here."""
        _current.set(self)
        return self

    @property
    def headers(self) -> dict[str, str]:
        """Headers for calls through the gateway, whose records then belong to the same episode and agent."""
        return {"x-relive-agent": self.agent, "x-relive-episode": self.episode_id}

    def end(self, error: BaseException | None) -> threading.Event | None:
        """Ends the step.

        Args:
            error: What ended it before its time; ``None``: nothing did.

        Returns:
            What is set once the record is kept or given up; ``None``: the outer step keeps it, or there is no memory.
        """
        if _current.get() is self:
            _current.set(self.outer)
        if error is not None:
            words = " ".join(f"{type(error).__name__}: {error}".split())
            self._error = words[:_LONGEST_ERROR].removesuffix(": ").removesuffix(":")
        with self._lock:
            self._ended = True
            children, self._held = self._held, []
        tree = Tree(self._transition(), self._kept, children)
        outer = self.outer
        where = self._where
        if where is None or (outer is not None and self._joins and outer._hold(tree)):
            return None
        if outer is not None and self._joins and outer.id is not None:
            tree.transition = msgspec.structs.replace(tree.transition, parent=outer.id)
        return WRITER.put(tree, lambda: memory_at(where))

    def _hold(self, tree: Tree) -> bool:
        """Takes a step that ended inside this one; False: it has to be recorded by itself."""
        with self._lock:
            if self._ended:
                return False
            if self._held_count + len(tree) > MOST_HELD:
                WRITER.stats.apart += len(tree)
                return False
            self._held.append(tree)
            self._held_count += len(tree)
            return True

    def _kept(self, number: int) -> None:
        self.id = number

    def _transition(self) -> Transition:
        return Transition(
            state=self.state,
            action=plain(self.action),
            next_state=plain(self.next_state),
            reward=_finite(self.reward),
            outcome=self.outcome,
            agent=self.agent,
            episode_id=self.episode_id,
            step=self.step,
            tags=tuple(dict.fromkeys([OBSERVED, *map(str, self.tags)])),
            policy=self.name,
            latency_ms=(time.perf_counter() - self._began) * 1000,
            error=self._error,
            created_at=self._created_at,
            info={"observed": self.name},
        )


class _Place:
    """Counts the steps of one episode."""

    def __init__(self, episode_id: str) -> None:
        self.episode_id = episode_id
        self._next = 0
        self._lock = threading.Lock()

    def next(self) -> int:
        with self._lock:
            self._next += 1
            return self._next - 1


def plain(value: Any) -> Any:
    """A value as JSON has it, with a copy of its own; what has no JSON form becomes its `repr`, cut short."""
    if value is None:
        return None
    try:
        return decode_json(encode_json(value))
    except Exception:  # noqa: BLE001 - somebody else's objects
        return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth < _DEEPEST and isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    try:
        return decode_json(encode_json(value))
    except Exception:  # noqa: BLE001
        return _shown(value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - somebody else's code
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _LONGEST_REPR else text[: _LONGEST_REPR - 1] + "…"


def _finite(reward: Any) -> float | None:
    """A reward as it may be stored; what is no finite number is not known."""
    try:
        number = None if reward is None else float(reward)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) < float("inf") else None
