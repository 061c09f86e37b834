"""The body of a chat call, checked before any network is used.

A fault that no provider could accept, above all broken JSON in a past tool call's arguments, is found here: it would
cost a round trip, and providers answer it with anything from a 400 to a 500 that looks worth trying again.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from relive.llm.errors import BadRequestError


def encode_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    model: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
    response_format: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON body of a chat call. Numbers are written exactly, and the text of tool arguments is not touched.

    Args:
        messages: The conversation, each message with its ``role``.
        model: The model's name, unless `params` holds another.
        tools: Tool definitions; ``None`` leaves the field out.
        response_format: The answer's form; ``None`` leaves the field out.
        params: Any further fields of the body.

    Raises:
        BadRequestError: the request can never succeed; nothing was sent.
    """
    body: dict[str, Any] = {"model": model, "messages": list(messages), **(params or {})}
    if tools is not None:
        body["tools"] = list(tools)
    if response_format is not None:
        body["response_format"] = response_format
    if body.get("stream"):
        _refuse("stream=True is for streams, and this call returns whole answers; leave it out")
    _check_messages(body["messages"])
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(f"It cannot be written as JSON: {error}")


def _check_messages(messages: list[Any]) -> None:
    if not messages:
        _refuse("messages is empty; give at least one message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            _refuse(f"messages[{index}] is a {type(message).__name__}, not a mapping with a role")
        if not isinstance(message.get("role"), str):
            _refuse(f"messages[{index}] has no role")
        for number, call in enumerate(message.get("tool_calls") or ()):
            _check_tool_call(f"messages[{index}].tool_calls[{number}]", call)


def _check_tool_call(where: str, call: Any) -> None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return  # a custom tool takes free text
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        _refuse(f"{where}.function.arguments is a {type(arguments).__name__}; it must be JSON text")
    if not arguments.strip():
        return  # models write nothing for a tool without parameters, and providers take it back
    try:
        json.loads(arguments, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        _refuse(f"{where}.function.arguments is not valid JSON: {error}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _refuse(reason: str) -> NoReturn:
    raise BadRequestError(f"The request was not sent: {reason}.", status=400)
