"""Takes secrets and personal data out of experiences before anything of them reaches the disk.

Secrets (providers' keys, tokens, passwords, cookies, private keys, passwords in addresses) are taken out by default,
wherever they stand: in a field, in a sentence, in a URL, in a header, in the arguments of a tool call, in JSON inside
text inside JSON. Personal data (e-mail addresses, card and telephone numbers, and what own patterns match) are taken
out where asked for. Each is replaced by a mark such as ``[redacted:api_key …DDDD]``, which tells one key from another
by its last four characters and no more.

Redacting twice changes nothing more. Text without a secret stays as it is, byte for byte. Every text takes linear time.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from relive.errors import ReliveError
from relive.experience import Feedback, Transition
from relive.storage import _secrets, secrets
from relive.storage.codec import decode_json, encode_json
from relive.storage.measures import is_short_word, measures
from relive.storage.secrets import Name, Span

Personal = Literal["email", "card", "phone"]
"""Sorts of personal data that can be found without an own pattern."""

Counts: TypeAlias = dict[str, int]
"""How many replacements were made, by kind."""

NOT_KEPT = "[content not kept]"
"""What stands for a comment when content is not kept."""


class InvalidRedactionError(ReliveError, ValueError):
    """The settings of a `Redactor` cannot be used; the message names the setting."""


class Redactor:
    """What is taken out of experiences and feedback. It holds no state and may be shared between threads.

    Args:
        secrets: Take out secrets.
        personal: Sorts of personal data to take out: ``"email"``, ``"card"`` (payment cards, by their check digit),
            ``"phone"`` (international with ``+``, or of the form 555-123-4567).
        patterns: Own patterns by the name of their kind, as regular expressions on the decoded text; all that a pattern
            matches is replaced. A pattern that backtracks badly makes recording slow.
        hash_key: A key for short hashes: with it every mark carries eight hexadecimal digits, the same for the same
            secret or person, which nobody without the key can check a guess against. ``None``: keys and tokens carry
            their last four characters, all else carries nothing.
        content: Keep states, actions, comments, demonstrations and tokens at all. If not, only what is measured
            remains: rewards, costs, times and names; tags that are one short word; of an error what stands before the
            first colon; of ``info`` what `relive.storage.measures` lets through.

    Raises:
        InvalidRedactionError: a sort of personal data, a pattern or the key is not valid.
    """

    def __init__(
        self,
        *,
        secrets: bool = True,
        personal: Iterable[Personal] = (),
        patterns: Mapping[str, str] | None = None,
        hash_key: bytes | None = None,
        content: bool = True,
    ) -> None:
        self.content = content
        self._search = _SECRETS if secrets else 0
        for sort in [personal] if isinstance(personal, str) else personal:
            if sort not in _PERSONAL:
                raise InvalidRedactionError(f"personal holds {sort!r}; it knows {', '.join(get_args(Personal))}.")
            self._search |= _PERSONAL[sort]
        if hash_key is not None and not 8 <= len(hash_key) <= 64:
            raise InvalidRedactionError(f"hash_key has {len(hash_key)} bytes; give 8 to 64 random ones.")
        self._hash_key = hash_key
        self._patterns = {name: _compiled(name, pattern) for name, pattern in (patterns or {}).items()}
        self._idle = not self._search and not self._patterns and content
        self._by_scan = content and not self._patterns  # the scanner alone can tell that there is nothing

    def suspicious(self, payload: bytes) -> bool:
        """Whether JSON text may hold something to take out; ``False`` is certain. A few microseconds for 4 KB."""
        return bool(self._patterns) or _secrets.suspicious(payload, self._search)

    def transition(self, transition: Transition) -> tuple[Transition, Counts]:
        """The transition as it may be stored, and the number of replacements by kind; see `stored`."""
        payload = {name: value for name in (*_PAYLOAD, "info") if (value := getattr(transition, name)) is not None}
        kept, _, counts = self.stored(transition, encode_json(payload))
        return kept, counts

    def stored(self, transition: Transition, payload: bytes) -> tuple[Transition, bytes, Counts]:
        """The transition and its payload as they may be stored.

        A transition whose payload was redacted loses its tokens: they would spell out what was taken away.

        Args:
            transition: What was recorded.
            payload: JSON text of an object with its ``state``, ``action`` and what else is stored as JSON.

        Returns:
            Both themselves where nothing was found, else changed copies; and the number of replacements by kind.
        """
        counts: Counts = {}
        t = transition
        if self._idle or (
            self._by_scan
            and not _secrets.suspicious_record(
                payload, (t.agent, t.episode_id, t.group_id, t.policy, t.error), tuple(t.tags), self._search
            )
        ):
            return transition, payload, counts
        changes: dict[str, Any] = {}
        if not self.content or self.suspicious(payload):
            values: dict[str, Any] = decode_json(payload)
            if not self.content:
                values |= dict.fromkeys(_CONTENT & values.keys())
                if "info" in values:
                    values["info"] = measures(values["info"])
            values = self._walk(values, counts)
            if counts or not self.content:
                payload = encode_json(values)
                changes = {"tokens": None, **values}
        changes |= self._measures(transition, counts)
        return (msgspec.structs.replace(transition, **changes) if changes else transition), payload, counts

    def _measures(self, transition: Transition, counts: Counts) -> dict[str, Any]:
        """Which of the texts beside the payload change, and to what."""
        t = transition
        changes: dict[str, Any] = {
            "tags": tuple(
                self._text(tag, counts) if isinstance(tag, str) else tag
                for tag in t.tags
                if self.content or is_short_word(str(tag))
            )
        }
        for field in ("agent", "episode_id", "group_id", "policy"):
            if isinstance(getattr(t, field), str):
                changes[field] = self._identifier(getattr(t, field), counts)
        if isinstance(t.error, str):
            changes["error"] = self._text(t.error if self.content else t.error.split(":")[0][:80], counts)
        return {field: value for field, value in changes.items() if value != getattr(t, field)}

    def feedback(self, feedback: Feedback) -> tuple[Feedback, Counts]:
        """The feedback as it may be stored, and the number of replacements by kind."""
        counts: Counts = {}
        if self._idle:
            return feedback, counts
        changes: dict[str, Any] = {
            "source": self._text(feedback.source, counts),
            "key": self._text(feedback.key, counts),
        }
        if feedback.episode_id is not None:
            changes["episode_id"] = self._identifier(feedback.episode_id, counts)
        if self.content:
            changes["demonstration"] = self._walk(feedback.demonstration, counts)
            if feedback.comment is not None:
                changes["comment"] = self._text(feedback.comment, counts)
        elif feedback.comment is not None or feedback.demonstration is not None:
            changes |= {"comment": NOT_KEPT, "demonstration": None}
        elif not counts:
            return feedback, counts
        return msgspec.structs.replace(feedback, **changes), counts

    def json(self, text: bytes) -> tuple[bytes, Counts]:
        """JSON text with everything taken out (itself where nothing was found), and the number of replacements."""
        counts: Counts = {}
        if self._idle or not self.suspicious(text):
            return text, counts
        redacted = self._walk(decode_json(text), counts)
        return (encode_json(redacted) if counts else text), counts

    def value(self, value: Any) -> tuple[Any, Counts]:
        """A copy of a JSON value with everything taken out, and the number of replacements by kind."""
        counts: Counts = {}
        return self._walk(value, counts), counts

    def text(self, text: str) -> tuple[str, Counts]:
        """A text with everything taken out, and the number of replacements by kind."""
        counts: Counts = {}
        return self._text(text, counts), counts

    def identifier(self, text: str) -> str:
        """The form in which a name or an id (of an agent, an episode, a group) is stored; look it up by this.

        Two names stay two names: the mark of a name carries a short hash, also without a `hash_key`.
        """
        return self._identifier(text, {})

    def _identifier(self, text: str, counts: Counts) -> str:
        return self._text(text, counts, hash_key=self._hash_key or _FIXED_KEY)

    def _walk(self, value: Any, counts: Counts, nested: int = 0) -> Any:
        """A copy of a JSON value of any depth, redacted; without recursion, for depth comes from outside."""
        root: list[Any] = [value]
        # Containers whose items are still to be looked at, with the name that their items stand under.
        work: list[tuple[list[Any] | dict[Any, Any], Any, Name | None]] = [(root, 0, None)]
        while work:
            parent, key, name = work.pop()
            item = parent[key]
            if isinstance(item, str):
                parent[key] = self._string(item, name, counts, nested)
            elif isinstance(item, dict):
                copy = self._keys_redacted(item, counts)
                parent[key] = copy
                beside = self._named_beside(copy)
                inner = name if name is not None and name.family == "cookie" else None
                for field in copy:
                    own = secrets.name_of(field) if isinstance(field, str) else None
                    if field == "value":
                        own = beside or inner
                    elif inner is not None and own is None and "value" not in copy:
                        own = inner
                    work.append((copy, field, own if self._search & _SECRETS else None))
            elif isinstance(item, list | tuple):
                items = list(item)
                parent[key] = items
                of_items = [name] * len(items)
                if name is None and len(items) == 2 and isinstance(items[0], str) and items[0].lower() in _HEADERS:
                    of_items[1] = secrets.name_of(items[0]) if self._search & _SECRETS else None
                work.extend((items, index, of_items[index]) for index in range(len(items)))
            elif isinstance(item, msgspec.Raw):
                before = dict(counts)
                redacted = self._walk(decode_json(bytes(item)), counts, nested)
                if counts != before:
                    parent[key] = redacted
            elif type(item) is int:
                parent[key] = self._integer(item, name, counts)
        return root[0]

    def _integer(self, number: int, name: Name | None, counts: Counts) -> int | str:
        """A whole number: a password of digits, a card's or a telephone's number, or just a number."""
        if name is not None and name.family == "password" and abs(number) > _LARGEST_PLAIN:
            return self._mark("password", str(number).encode(), counts)
        if self._search & ~_SECRETS and number > _LARGEST_PLAIN and number.bit_length() <= 64:
            text = str(number)
            redacted = self._text(text, counts)
            return number if redacted is text else redacted
        return number

    def _keys_redacted(self, item: dict[Any, Any], counts: Counts) -> dict[Any, Any]:
        copy: dict[Any, Any] = {}
        for key, value in item.items():
            new = self._text(key, counts) if isinstance(key, str) else key
            number = 2
            while new in copy:  # two secrets with the same mark
                new = f"{new} {number}"
                number += 1
            copy[new] = value
        return copy

    @staticmethod
    def _named_beside(item: dict[Any, Any]) -> Name | None:
        """What ``{"name": "x-api-key", "value": …}`` says of its value."""
        if "value" not in item:
            return None
        for field in ("name", "key", "header"):
            if isinstance(item.get(field), str) and _PLAIN_NAME.fullmatch(item[field]):
                return secrets.name_of(item[field])
        return None

    def _string(self, text: str, name: Name | None, counts: Counts, nested: int) -> str:
        if name is not None:
            value = text.encode(errors="surrogatepass")
            if name.family == "authorization":
                found = secrets.authorization(value)
                if found is not None:
                    start, end = found
                    kind = "password" if value[:5].lower() == b"basic" else "token"
                    mark = self._mark(kind, value[start:end], counts)
                    return value[:start].decode() + mark
            elif secrets.is_secret(value, name, "field"):
                return self._mark(name.kind, value, counts)
        if nested < _MOST_NESTED and text[:1] in _JSON_BEGINS and text.rstrip()[-1:] in _JSON_ENDS:
            redacted = self._json_in_text(text, counts, nested)
            if redacted is not None:
                return redacted
        return self._text(text, counts)

    def _json_in_text(self, text: str, counts: Counts, nested: int) -> str | None:
        """JSON inside a string, redacted field by field; ``None``: it is none."""
        try:
            encoded = text.encode()
            if not self.suspicious(encoded):
                return text
            value = msgspec.json.decode(encoded)
        except (UnicodeEncodeError, msgspec.DecodeError, RecursionError):
            return None
        found: Counts = {}
        redacted = self._walk(value, found, nested + 1)
        if not found:
            return text
        for kind, number in found.items():
            counts[kind] = counts.get(kind, 0) + number
        indent = 2 if "\n" in text else 0 if '": ' in text or '", ' in text else -1
        return msgspec.json.format(msgspec.json.encode(redacted), indent=indent).decode()

    def _text(self, text: str, counts: Counts, hash_key: bytes | None = None) -> str:
        if self._search:
            encoded = text.encode(errors="surrogatepass")
            # What stands beside a mark may be seen only once the mark is there, hence again until nothing is found.
            for _ in range(_MOST_PASSES):
                redacted = self._once(encoded, counts, hash_key)
                if redacted is encoded:
                    break
                encoded = redacted
                text = encoded.decode(errors="surrogatepass")
        for kind, pattern in self._patterns.items():
            text = self._own_pattern(text, kind, pattern, counts, hash_key)
        return text

    def _once(self, text: bytes, counts: Counts, hash_key: bytes | None) -> bytes:
        finds = _secrets.find(text, self._search)
        if not finds:
            return text
        parts: list[bytes] = []
        at = 0
        for start, end, rule in finds:
            if end <= at:
                continue
            span = _span_of(text, start, end, rule)
            if span is None or span.end <= at:
                continue
            first, last = max(span.start, at), span.end
            while first > at and text[first] & 0xC0 == 0x80:  # bounded looks may end inside a character
                first -= 1
            while last < len(text) and text[last] & 0xC0 == 0x80:
                last += 1
            parts += text[at:first], self._mark(span.kind, text[first:last], counts, hash_key).encode()
            at = last
        if not parts:
            return text
        parts.append(text[at:])
        return b"".join(parts)

    def _own_pattern(
        self, text: str, kind: str, pattern: re.Pattern[str], counts: Counts, hash_key: bytes | None
    ) -> str:
        def replace(match: re.Match[str]) -> str:
            return self._mark(kind, match[0].encode(errors="surrogatepass"), counts, hash_key) if match[0] else ""

        pieces = _MARKS.split(text)  # marks stand at the odd places, and stay
        pieces[::2] = [pattern.sub(replace, piece) for piece in pieces[::2]]
        return "".join(pieces)

    def _mark(self, kind: str, secret: bytes, counts: Counts, hash_key: bytes | None = None) -> str:
        if kind == "token" and any(rule == _KEY for _, _, rule in _secrets.find(secret, _SECRETS)):
            kind = "api_key"  # what stands behind "Bearer" is more often a provider's key
        counts[kind] = counts.get(kind, 0) + 1
        hash_key = hash_key or self._hash_key
        if hash_key is not None:
            return f"[redacted:{kind} #{hashlib.blake2b(secret, key=hash_key, digest_size=4).hexdigest()}]"
        last = (
            _LAST_FOUR.search(secret) if kind in _WITH_LAST_FOUR and len(secret) >= _SHORTEST_WITH_LAST_FOUR else None
        )
        return f"[redacted:{kind} …{last[0].decode()}]" if last else f"[redacted:{kind}]"


def _span_of(text: bytes, start: int, end: int, rule: int) -> Span | None:
    if rule == _NAME:
        return secrets.beside_name(text, start, end)
    if rule == _QUERY:
        return secrets.after_query_name(text, end)
    if rule == _COMMAND:
        return secrets.in_command(text, start)
    if rule == _PEM:
        return secrets.private_key(text, start)
    return Span(start, end, _KINDS[rule])


def _compiled(name: str, pattern: str) -> re.Pattern[str]:
    if re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name) is None:
        raise InvalidRedactionError(f"patterns holds {name!r}; a name is small letters, digits and underscores.")
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRedactionError(f"The pattern {name!r} is no regular expression: {error}.") from error
    if compiled.match("") is not None:
        raise InvalidRedactionError(f"The pattern {name!r} matches the empty text; it must match something.")
    return compiled


# Numbers that the native scanner knows: what to search for, and the rule by which something was found.
_SECRETS = 1
_PERSONAL: dict[str, int] = {"email": 2, "card": 4, "phone": 8}
_KEY, _NAME, _QUERY, _PEM, _COMMAND = 0, 2, 3, 5, 9
_KINDS: dict[int, secrets.Kind] = {0: "api_key", 1: "token", 4: "password", 6: "email", 7: "card", 8: "phone"}

_PAYLOAD = ("state", "action", "next_state")
_CONTENT = frozenset(_PAYLOAD)
_FIXED_KEY = b"relive identifier"
_HEADERS = frozenset(
    [
        "authorization",
        "proxy-authorization",
        "cookie",
        "set-cookie",
        "x-api-key",
        "api-key",
        "x-auth-token",
        "x-goog-api-key",
    ]
)
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_. -]{1,64}")
_JSON_BEGINS = ("{", "[", " ", "\n")
_JSON_ENDS = ("}", "]")
_MOST_NESTED = 8  # levels of JSON inside text inside JSON that are read as JSON; deeper ones are read as text
_MOST_PASSES = 4
_LARGEST_PLAIN = 999  # a number under the name of a password that is small is a setting, such as a length
_WITH_LAST_FOUR = frozenset(("api_key", "token"))
_SHORTEST_WITH_LAST_FOUR = 12
_LAST_FOUR = re.compile(rb"[A-Za-z0-9_-]{4}(?=[^A-Za-z0-9_-]{0,8}$)")
_MARKS = re.compile(r"(\[redacted:[a-z0-9_]{1,32}(?: […#][A-Za-z0-9_-]{4,8})?\])")

DEFAULT = Redactor()
"""Secrets out, all else kept: what every store does unless it is told otherwise."""
