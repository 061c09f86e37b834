"""What a reflecting model answers: asked for by a JSON schema, read back however it came, made into typed changes.

Models wrap JSON into fences and talk, think aloud before it, forget quotes and commas, and stop in the middle. The
reader takes what is certain and nothing else: an object counts only if its end is there, so a lesson cut in the middle
is no lesson. A reply is read in time linear in its length, whatever it holds.

Then each proposal is checked (`deltas`): it may name only lessons that the model was shown, and only episodes that it
saw; a code of the book's own decides what becomes of it.
"""

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from relive.errors import ReliveError
from relive.playbook.lesson import Delta, InvalidLessonError, Source, read_proposal
from relive.reflect.lenient import Cut, CutList, values

KINDS = ("add", "edit", "merge", "vote", "retire")

_TEXTS = ("title", "when", "when_not", "do", "why", "reason")
_LISTS = ("changes", "lessons", "deltas", "proposals", "updates", "items", "results", "operations", "rules", "advice")
_ALIASES = {
    **dict.fromkeys(("op", "type", "operation", "kind", "change_type"), "change"),
    **dict.fromkeys(("id", "lesson_id", "target"), "lesson"),
    **dict.fromkeys(("other_id", "other_lesson", "with", "merge_with"), "other"),
    **dict.fromkeys(("whennot", "not_when", "except", "unless"), "when_not"),
    **dict.fromkeys(("recommendation", "instruction", "rule", "text"), "do"),
    **dict.fromkeys(("rationale", "because", "explanation"), "why"),
    **dict.fromkeys(("condition", "situation", "if"), "when"),
    **dict.fromkeys(("name", "headline"), "title"),
    **dict.fromkeys(("episodes", "sources", "support", "experiences", "drafts"), "evidence"),
}
_SAID = {
    **dict.fromkeys(KINDS, ""),
    **dict.fromkeys(("create", "new", "insert"), "add"),
    **dict.fromkeys(("update", "modify", "revise", "change"), "edit"),
    **dict.fromkeys(("combine",), "merge"),
    **dict.fromkeys(("remove", "delete"), "retire"),
    **dict.fromkeys(("upvote", "downvote"), "vote"),
}
_WRAPPERS = ("lesson", "text", "change", "delta", "value")
_ID = re.compile(r"\W*(?:lesson|id|no|number)?\W*\d+\W*", re.IGNORECASE)
_THINKING = re.compile(r"<(think(?:ing)?|reasoning|thought)>.*?</\1>", re.DOTALL | re.IGNORECASE)
_THOUGHT = re.compile(
    r"^.*</(?:think(?:ing)?|reasoning|thought)>|<(?:think(?:ing)?|reasoning|thought)>.*$", re.DOTALL | re.IGNORECASE
)


class UnreadableReplyError(ReliveError, ValueError):
    """A reply holds no answer that can be read."""


class Answer(msgspec.Struct, frozen=True):
    """What a reply says.

    Attributes:
        changes: The changes that it proposes, as it wrote them; none is an answer too.
        analysis: What it says about the episodes; empty: nothing.
    """

    changes: tuple[dict[str, Any], ...]
    analysis: str = ""


class Proposed(msgspec.Struct, frozen=True):
    """Changes that may be applied, and in a sentence each what was wrong with the others."""

    deltas: tuple[Delta, ...]
    problems: tuple[str, ...]


def response_format() -> dict[str, Any]:
    """The form that servers with JSON schemas hold an answer to."""
    text, number = {"type": "string"}, {"type": "integer"}
    fields: dict[str, Any] = {
        "change": {"type": "string", "enum": list(KINDS)},
        **dict.fromkeys(("lesson", "other"), number),
        **dict.fromkeys(_TEXTS, text),
        "up": {"type": "boolean"},
        "evidence": {"type": "array", "items": number},
    }
    change = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    answer = {"analysis": text, "changes": {"type": "array", "items": change}}
    schema = {"type": "object", "properties": answer, "required": list(answer), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "reflection", "strict": True, "schema": schema}}


def read(text: str) -> Answer:
    """The answer in a reply.

    Raises:
        UnreadableReplyError: there is none.
    """
    text = text.strip().removeprefix("\ufeff")
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        text = _THOUGHT.sub("", _THINKING.sub("", text))
        if "&quot;" in text:
            text = html.unescape(text)
        found = list(values(text))
    if len(found) == 1 and isinstance(found[0], str):  # JSON written as a JSON string
        found = list(values(found[0]))
    answers = [one for value in found if (one := _answer(value)) is not None]
    lists = [one for one, listed in answers if listed]
    if lists:
        return next((one for one in reversed(lists) if one.changes), lists[-1])
    if answers:  # one object after another
        return Answer(tuple(change for one, _ in answers for change in one.changes))
    raise UnreadableReplyError("It holds no JSON object with a list of changes.")


def deltas(
    answer: Answer,
    *,
    agent: str | None,
    evidence: Mapping[int, Sequence[Source]],
    also: Sequence[Source],
    shown: frozenset[int],
) -> Proposed:
    """The changes of an answer that may be applied.

    Args:
        answer: The answer.
        agent: Whose lessons these are; ``None``: shared by all.
        evidence: What speaks for a change, by the numbers that the model was shown.
        also: Sources of each new lesson, named or not.
        shown: The lessons that the model was shown.
    """
    good: list[Delta] = []
    problems: list[str] = []
    for at, change in enumerate(answer.changes, 1):
        flat = _flat(change)
        named = [source for number in _numbers(flat.get("evidence")) for source in evidence.get(number, ())]
        named = list(dict.fromkeys(named))
        try:
            good += _of_one(flat, agent, named, also, shown)
        except InvalidLessonError as error:
            problems.append(f"Change {at} was left out: {error}")
    return Proposed(tuple(good), tuple(problems))


def _of_one(
    flat: dict[str, Any], agent: str | None, named: Sequence[Source], also: Sequence[Source], shown: frozenset[int]
) -> list[Delta]:
    said = str(flat.get("change") or "add").lower()
    kind = _kind(said)
    if kind is None:
        raise InvalidLessonError(f"{said!r:.40} is none of {', '.join(KINDS)}.")
    text = {name: _line(flat.get(name)) for name in ("title", "when", "when_not", "do", "why")}
    if kind == "add":
        sources = msgspec.to_builtins(list(dict.fromkeys([*named, *also])))
        return [read_proposal({"change": kind, "text": text, "agent": agent, "sources": sources, "origin": "model"})]
    lesson = _lesson(flat.get("lesson"), shown)
    if kind == "edit":
        return [read_proposal({"change": kind, "lesson": lesson, "text": text})]
    if kind == "merge":
        return [read_proposal({"change": kind, "lesson": lesson, "other": _lesson(flat.get("other"), shown)})]
    if kind == "retire":
        return [read_proposal({"change": kind, "lesson": lesson, "reason": _line(flat.get("reason"))[:300]})]
    if not named:
        raise InvalidLessonError("A vote must name an episode that was shown.")
    up = flat.get("up", "down" not in said)
    up = up if isinstance(up, bool) else str(up).lower() not in ("down", "false", "no", "against", "-1", "0")
    return [
        read_proposal({"change": kind, "lesson": lesson, "source": msgspec.to_builtins(source), "up": up})
        for source in named
    ]


def _answer(value: Any) -> tuple[Answer, bool] | None:
    """What a JSON value answers, and whether it is a whole answer (a list of changes) or one change alone."""
    if isinstance(value, dict) and _is_change(value):
        return Answer((value,)), False
    found = _changes(value, listed=isinstance(value, list))
    if found is None:
        return None
    analysis = next((value[key] for key in value if _name(key) == "analysis"), "") if isinstance(value, dict) else ""
    return Answer(tuple(found), analysis if isinstance(analysis, str) else ""), True


def _changes(value: Any, *, listed: bool) -> list[dict[str, Any]] | None:
    """The changes within a value; ``None``: it is no answer. `listed`: it stands where the changes belong."""
    value = _opened(value) if listed else value
    if isinstance(value, list):
        if listed:
            value = type(value)(_opened(one) for one in value)
        if listed and value and all(isinstance(one, str) and " " in one.strip() for one in value):
            return [{"do": one} for one in value]
        inner = [[one] if _is_change(one) else _changes(one, listed=False) for one in value]
        found = [change for some in inner if some for change in some]
        return found if found or (listed and not value and not isinstance(value, CutList)) else None
    if not isinstance(value, dict):
        return None
    if _is_change(value):
        return [value]
    result: list[dict[str, Any]] | None = None
    for key, entry in value.items():
        name = _name(key)
        if name in KINDS and isinstance(entry, dict | list):  # {"add": [{...}], "retire": []}
            given = entry if isinstance(entry, list) else [entry]
            entry = [{"change": name, **one} if _whole(one) else one for one in given]
        inner_changes = _changes(entry, listed=name in _LISTS or name in KINDS)
        if inner_changes is not None:
            result = [*(result or []), *inner_changes]
    return result


def _opened(value: Any) -> Any:
    """JSON that was written as a string."""
    return next(values(value), value) if isinstance(value, str) and value.lstrip()[:1] in ("[", "{") else value


def _whole(value: Any) -> bool:
    return isinstance(value, dict) and not isinstance(value, Cut)


def _is_change(value: Any) -> bool:
    """Whether a value is one change, whole: it says what to do, or does something to a lesson."""
    if not _whole(value):
        return False
    flat = _flat(value)
    return bool(_line(flat.get("do"))) or ("lesson" in flat and _kind(str(flat.get("change", "")).lower()) is not None)


def _kind(said: str) -> str | None:
    """The kind of change that a word means: ``add``, ``ADD_LESSON`` and ``create`` are one."""
    return next((kind or word for word, kind in _SAID.items() if said.startswith(word)), None)


def _flat(change: Mapping[str, Any]) -> dict[str, Any]:
    """A change with its fields named as they should be, whatever it wrapped them into."""
    flat: dict[str, Any] = {}
    for key, value in change.items():
        name = _name(key)
        if isinstance(value, dict):
            flat = {**_flat(value), **flat} if name in _WRAPPERS else flat
        elif name == "lesson" and isinstance(value, str) and not _ID.fullmatch(value):
            flat.setdefault("do", value)
        elif name == "action":
            flat.setdefault("do" if _kind(str(value).lower()) is None else "change", value)
        else:
            flat.setdefault(_ALIASES.get(name, name), value)
    if "title" in flat and "do" not in flat:  # ReasoningBank's form: title, description, content
        flat["do"] = flat.get("content") or flat.get("description")
    return flat


def _name(key: str) -> str:
    """``whenNot``, ``When-not`` and ``when_not`` are one."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(key)).lower()).strip("_")


def _line(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(filter(None, map(_line, value)))
    return str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _numbers(value: Any) -> list[int]:
    """The numbers that a value names: ``3``, ``[1, "episode 2"]``, ``"1, 2"``."""
    given = value if isinstance(value, list) else [value]
    return [int(n) for one in given if not isinstance(one, bool) for n in re.findall(r"\d{1,9}", str(one))]


def _lesson(value: Any, shown: frozenset[int]) -> int:
    found = _numbers(value)
    if len(found) != 1 or found[0] not in shown:
        raise InvalidLessonError(f"{_line(value)[:40]!r} is no lesson that was shown.")
    return found[0]
