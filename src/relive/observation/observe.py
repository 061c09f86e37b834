"""`observe`: a decorator for functions, and a context manager for anything else.

.. code-block:: python

    @relive.observe(memory="agent.db")
    def look_up(order: str) -> dict: ...

    with relive.observe("triage", memory=memory, state=ticket) as step:
        step.action = choose(look_up(ticket["order"]))
        step.reward = 1.0

Of a function the arguments are the state and what it returns is the action. What is observed inside another observation
belongs under it: its record's `parent` is the outer one's, which is therefore written first, once it has ended.

Recording fails open. An error of what is observed is recorded and raised again; an error of the recording is counted in
`relive.observation.stats`, logged, and never raised. Nobody waits for a record for longer than `writer.WAIT` seconds.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast, overload

from relive.errors import ReliveError
from relive.observation.memories import Where, default
from relive.observation.step import Step, current
from relive.observation.writer import WAIT, WRITER

P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("relive.observation")


class ObserveError(ReliveError, TypeError):
    """What is to be observed cannot be; the message says what to do instead."""


@overload
def observe(what: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def observe(
    what: str | None = None,
    /,
    *,
    memory: Where | None = None,
    state: Any = None,
    agent: str | None = None,
    episode_id: str | None = None,
    tags: Iterable[str] = (),
    reward: Callable[[Any], float | None] | None = None,
) -> "Observer": ...
def observe(
    what: Callable[..., Any] | str | None = None,
    /,
    *,
    memory: Where | None = None,
    state: Any = None,
    agent: str | None = None,
    episode_id: str | None = None,
    tags: Iterable[str] = (),
    reward: Callable[[Any], float | None] | None = None,
) -> Any:
    """Observes a function, or what happens inside a ``with`` block, sync or async.

    Args:
        what: The function, or a name for the steps; ``None``: a function's own name.
        memory: Where they are recorded: a memory, its file, or a server's address. ``None``: where the observation
            around it is recorded, else in what the environment variable ``RELIVE_MEMORY`` names, else nowhere.
        state: What is seen when a ``with`` block begins; any value.
        agent: Who acts; ``None``: as around it.
        episode_id: The episode; ``None``: that of the observation around it, else a new one each time.
        tags: Free labels.
        reward: Gives the reward from what a function returned, ``None`` where it is not known.

    Raises:
        ObserveError: it is a generator function, or no function at all.
    """
    name = None if callable(what) else what
    made = Observer(name, memory=memory, state=state, agent=agent, episode_id=episode_id, tags=tags, reward=reward)
    return made(what) if callable(what) else made


class Observer:
    """Makes a step of each call of a function that it decorates, and of each ``with`` block; see `observe`.

    One observer may serve any number of blocks and threads, one inside another too.
    """

    def __init__(
        self,
        name: str | None,
        *,
        memory: Where | None = None,
        state: Any = None,
        agent: str | None = None,
        episode_id: str | None = None,
        tags: Iterable[str] = (),
        reward: Callable[[Any], float | None] | None = None,
    ) -> None:
        """Args: see `observe`."""
        self._name = name
        self._memory = memory
        self._state = state
        self._agent = agent
        self._episode_id = episode_id
        self._tags = tuple(tags)
        self._reward = reward

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, observed."""
        if not callable(function) or inspect.isclass(function):
            raise ObserveError(f"observe takes a function, not {function!r}.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ObserveError(
                f"{function.__qualname__} gives one item after another; put `with relive.observe(...)` around the loop."
            )
        name = self._name or str(getattr(function, "__qualname__", type(function).__name__))
        signature = _signature(function)

        def begin(arguments: tuple[Any, ...], named: dict[str, Any]) -> Step:
            return self._begin(name, lambda: {"function": name, "arguments": _bound(signature, arguments, named)})

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def observed_coroutine(*args: Any, **kwargs: Any) -> Any:
                step = begin(args, kwargs)
                try:
                    result = await function(*args, **kwargs)
                except BaseException as error:
                    self._end(step, error)
                    raise
                self._returned(step, result)
                await _wait_beside(self._end(step, None))
                return result

            return cast("Callable[P, R]", observed_coroutine)

        @functools.wraps(function)
        def observed(*args: P.args, **kwargs: P.kwargs) -> R:
            step = begin(args, kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                _wait(self._end(step, error))
                raise
            self._returned(step, result)
            _wait(self._end(step, None))
            return result

        return observed

    def __enter__(self) -> Step:
        """Begins a step."""
        return self._begin(self._name or "step", lambda: self._state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends it; an error goes on."""
        _wait(self._end(self._innermost(), error))

    async def __aenter__(self) -> Step:
        """Begins a step."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends it, without holding up the event loop."""
        ended = self._end(self._innermost(), error)
        if error is None:  # one that is cancelled must not wait
            await _wait_beside(ended)

    def _innermost(self) -> Step | None:
        """The step under way here that this observer began last."""
        step = current()
        while step is not None and step.observer is not self:
            step = step.outer
        return step

    def _begin(self, name: str, state: Callable[[], Any]) -> Step:
        try:
            seen = state()
        except Exception as error:  # noqa: BLE001 - somebody else's arguments
            seen = {"function": name, "unreadable": str(error)}
        return Step(
            name,
            seen,
            memory=self._memory if self._memory is not None else default() if current() is None else None,
            agent=self._agent,
            episode_id=self._episode_id,
            tags=self._tags,
            observer=self,
        ).begin()

    def _returned(self, step: Step, result: Any) -> None:
        """What a function returned is its action, unless it said itself what it did."""
        if step.action is None:
            step.action = result
        if self._reward is not None and step.reward is None:
            try:
                step.reward = self._reward(result)
            except Exception as error:  # noqa: BLE001 - a reward that fails must not become the function's failure
                WRITER.stats.unscored += 1
                _log.warning("The reward of an observed step failed: %s", error)

    def _end(self, step: Step | None, error: BaseException | None) -> threading.Event | None:
        if step is None:
            return None
        try:
            return step.end(error)
        except Exception as failure:  # noqa: BLE001 - recording fails open
            WRITER.stats.failed += 1
            _log.warning("An observed step could not be recorded: %s", failure)
            return None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return None


def _bound(signature: inspect.Signature | None, arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults included; the object that a method belongs to is left out."""
    if signature is None:
        return {"args": list(arguments), **named}
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError:  # the call itself is going to say so
        return {"args": list(arguments), **named}
    bound.apply_defaults()
    first = next(iter(signature.parameters), None)
    return {key: value for key, value in bound.arguments.items() if not (key == first and key in ("self", "cls"))}


def _wait(ended: threading.Event | None) -> None:
    if ended is not None and not ended.wait(WAIT):
        WRITER.stats.late += 1


async def _wait_beside(ended: threading.Event | None) -> None:
    if ended is not None and not ended.is_set():
        await asyncio.to_thread(_wait, ended)
