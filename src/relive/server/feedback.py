"""What clients say about recorded calls: checked, then kept as feedback; a demonstration becomes an experience."""

import asyncio
import hashlib
import math
from typing import Any

import msgspec

from relive.errors import InvalidExperienceError
from relive.experience import Feedback, Transition
from relive.gateway.proxy import Gateway
from relive.server.settings import Metric
from relive.storage.codec import encode_json
from relive.storage.sqlite import SqliteStorage
from relive.storage.stored import Stored
from relive.storage.training_rows import DEMONSTRATION

_FIELDS = frozenset(
    {"experience_id", "episode_id", "response_id", "reward", "demonstration", "source", "key", "comment"}
)
_SEARCHED = 2_000
"""Of so many of the newest experiences the answer's id is looked at, if this server does not remember it."""


class FeedbackError(InvalidExperienceError):
    """Feedback that cannot be taken; the message says why, and what there is instead."""


class UnknownExperienceError(InvalidExperienceError):
    """Feedback about something that is not stored."""


class FeedbackDesk:
    """Takes feedback.

    Args:
        gateway: Which recorded the calls.
        storage: The store.
        metrics: The kinds of feedback there are; empty: any.
    """

    def __init__(self, gateway: Gateway, storage: SqliteStorage, metrics: list[Metric]) -> None:
        self._gateway = gateway
        self._storage = storage
        self._metrics = {metric.name: metric for metric in metrics}

    async def take(self, given: Any) -> dict[str, Any]:
        """Keeps feedback.

        Returns:
            ``{"experiences": how many it is about, or null if the store takes it later}``, and under
            ``"demonstration_id"`` the experience that a demonstration became.

        Raises:
            UnknownExperienceError: it is about something that is not there.
            FeedbackError: it is not right; the message says how.
        """
        fields = self._checked(given)
        number, episode = await self._about(fields)
        named: dict[str, Any] = {"experience_id": number, "episode_id": episode}
        named |= {name: fields[name] for name in _FIELDS & fields.keys() if name in Feedback.__struct_fields__}
        feedback = Feedback.from_dict({**named, "experience_id": number})
        count = await self._gateway.recorder.feedback(feedback)
        result: dict[str, Any] = {"experiences": count}
        if feedback.demonstration is not None and number is not None:
            result["demonstration_id"] = await asyncio.to_thread(self._demonstrate, number, feedback)
        return result

    def _checked(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise FeedbackError("Feedback is a JSON object.")
        fields = {name: value for name, value in given.items() if value is not None}
        unknown = sorted(fields.keys() - _FIELDS)
        if unknown:
            raise FeedbackError(f"Feedback has no field {', '.join(unknown)}; it has {', '.join(sorted(_FIELDS))}.")
        about = [name for name in ("experience_id", "episode_id", "response_id") if name in fields]
        if len(about) != 1:
            raise FeedbackError("Feedback needs exactly one of experience_id, episode_id and response_id.")
        if "reward" in fields:
            fields["reward"] = self._reward(fields)
        return fields

    def _reward(self, fields: dict[str, Any]) -> float:
        reward, name = fields["reward"], fields.get("key", "reward")
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise FeedbackError(f"The reward is {reward!r}; it must be a finite number, or true or false.")
        if not self._metrics:
            return float(reward)
        metric = self._metrics.get(name) if isinstance(name, str) else None
        known = ", ".join(self._metrics)
        if metric is None:
            raise FeedbackError(f"There is no metric {name!r}; there are {known}. Name one in key.")
        level = "episode" if "episode_id" in fields else "experience"
        if level != metric.level:
            raise FeedbackError(f"The metric {name!r} is about one {metric.level}, not about one {level}.")
        if isinstance(reward, bool) != (metric.type == "boolean"):
            wanted = "true or false" if metric.type == "boolean" else "a number"
            raise FeedbackError(f"The metric {name!r} takes {wanted}, not {reward!r}.")
        low, high = metric.minimum, metric.maximum
        if (low is not None and reward < low) or (high is not None and reward > high):
            raise FeedbackError(f"The metric {name!r} lies between {low} and {high}; {reward} does not.")
        return float(reward)

    async def _about(self, fields: dict[str, Any]) -> tuple[int | None, str | None]:
        """The stored experience or the episode that it is about."""
        if "episode_id" in fields:
            if not isinstance(fields["episode_id"], str):
                raise FeedbackError("episode_id is a text.")
            return None, fields["episode_id"]
        named = fields.get("experience_id", fields.get("response_id"))
        for patience in (0.05, 0.2, 0.5, 1.0, 2.0):
            number = await asyncio.to_thread(self._find, fields)
            if number is not None:
                return number, None
            recorder = self._gateway.recorder
            if not recorder.outstanding and not recorder.waiting:
                break
            await asyncio.sleep(patience)  # its record may be on its way
        raise UnknownExperienceError(
            f"There is no experience {named!r} here; x-relive-experience-id names each answer's."
        )

    def _find(self, fields: dict[str, Any]) -> int | None:
        if "response_id" in fields:
            return self._of_response(str(fields["response_id"]))
        named = fields["experience_id"]
        if isinstance(named, int) and not isinstance(named, bool):
            return named if 0 < named < 2**63 and self._storage.read([named])[0] is not None else None
        try:
            uid = bytes.fromhex(named)
        except (TypeError, ValueError):
            return None
        return self._storage.ids_of([uid])[0] if len(uid) == 16 else None

    def _of_response(self, response: str) -> int | None:
        uid = self._gateway.answers.get(response)
        if uid is not None:
            return self._storage.ids_of([uid])[0]
        for stored in self._storage.query(newest_first=True, limit=_SEARCHED):
            if response.encode() in stored.json() and _response_of(stored) == response:
                return stored.id
        return None

    def _demonstrate(self, number: int, feedback: Feedback) -> int | None:
        """A demonstration as an experience of its own: the same state, the right action, under the one it corrects."""
        (shown,) = self._storage.get([number])
        if shown is None:
            return None
        content = encode_json([number, feedback.source, feedback.key, feedback.demonstration])
        uid = hashlib.blake2b(content, digest_size=16, person=b"demonstration").digest()
        message = feedback.demonstration
        if isinstance(message, str) and isinstance(shown.action, dict):
            message = {"role": "assistant", "content": message}
        right = Transition(
            state=shown.state,
            action=message,
            reward=1.0,
            outcome="success",
            agent=shown.agent,
            episode_id=shown.episode_id,
            step=shown.step,
            group_id=shown.group_id,
            tags=(*shown.tags, DEMONSTRATION),
            parent=number,
            policy=f"demonstration:{feedback.source}",
        )
        self._storage.append([right], uids=[uid])
        return self._storage.ids_of([uid])[0]


def _response_of(stored: Stored) -> str | None:
    info = msgspec.json.decode(stored.json()).get("info")
    return info.get("response_id") if isinstance(info, dict) else None
