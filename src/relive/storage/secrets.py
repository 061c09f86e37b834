"""What counts as a secret, and how far it reaches: names such as ``api_key``, and the values that stand beside them.

The native scanner finds where in a text a secret may stand; the functions here decide, each by looking at a bounded
piece of the text. Texts are UTF-8 bytes, positions are byte positions. A name alone is never enough: ``"token": "Hel"``
in a list of log-probabilities, ``password: str`` in a program and "your password must be long" are no secrets.
"""

import re
from functools import lru_cache
from typing import Literal, NamedTuple

Kind = Literal["api_key", "token", "password", "cookie", "private_key", "secret", "email", "card", "phone"]
"""What was taken out. Own patterns add kinds of their own."""

Place = Literal["field", "quoted", "bare", "prose"]
"""Where a value stands: as a field of JSON, in quotes in a text, after an equals sign, or in a sentence."""

MARK = b"[redacted:"
"""How every replacement begins; what holds one is never replaced again."""


class Span(NamedTuple):
    """A part of a text that is to be replaced."""

    start: int
    end: int
    kind: Kind


class Name(NamedTuple):
    """What the name of a field says about its value.

    Attributes:
        family: The word that decides: ``password``, ``key``, ``token``, ``secret``, ``cookie`` or ``authorization``.
        strong: The name can hardly mean anything but a secret (``access_token``, not ``token``).
        path: The value may well be a folder (``PWD``).
        kind: What a secret of this name is called.
    """

    family: str
    strong: bool
    path: bool
    kind: Kind


@lru_cache(maxsize=4096)
def name_of(name: str) -> Name | None:
    """What the name of a field says; ``None``: nothing."""
    match = _NAME.search(name[-64:].lower())
    if match is None:
        return None
    before, word = match["before"] or "", match["word"]
    if word in ("password", "passwd", "pwd", "passphrase", "passcode", "passwort"):
        return Name("password", True, word == "pwd", "password")
    if word == "key":
        return Name("key", before in _STRONG_KEYS, False, "api_key") if before in _KEYS else None
    if word == "token":
        return None if before in _NO_SECRET_TOKENS else Name("token", before in _STRONG_TOKENS, False, "token")
    if word == "cookie":
        return Name("cookie", True, False, "cookie")
    if word == "authorization":
        return Name("authorization", True, False, "token")
    return Name("secret", word == "secret", False, "secret")


def is_secret(value: bytes, name: Name, place: Place) -> bool:
    """Whether a value beside a name is a secret.

    Args:
        value: The value, without quotes.
        name: What its name says.
        place: Where it stands; in a sentence more is asked of it.
    """
    if not value or MARK in value or _PLACEHOLDER.fullmatch(value) or (name.path and value[:1] in b"/~.$"):
        return False
    spaces = _SPACE.search(value) is not None
    if name.family == "password":
        if spaces:
            return _DESCRIPTION.search(value) is None
        if place == "prose":
            return len(value) >= 4 and looks_random(value)
        return len(value) >= (1 if place == "field" else 3)
    if name.family == "cookie":
        return b"=" in value or (place == "field" and not spaces)
    if spaces:
        return False
    if place in ("bare", "prose"):  # a program's names have no digits, or few of them
        return len(value) >= (8 if name.strong else 16) and _DIGIT.search(value) is not None
    if name.strong:
        return (len(value) >= 8 and looks_random(value)) or len(value) >= 12
    return len(value) >= 16 and _DIGIT.search(value) is not None and _UUID.fullmatch(value) is None


def looks_random(value: bytes) -> bool:
    """Whether a value has a digit, or small and capital letters mixed, as few words have."""
    return _RANDOM.search(value) is not None


def beside_name(text: bytes, start: int, end: int) -> Span | None:
    """The secret beside a name that stands in a text.

    Args:
        text: UTF-8 text.
        start: Where the deciding word of the name begins.
        end: Where it ends.
    """
    left = start
    while left > max(0, start - 40) and (text[left - 1 : left].isalnum() or text[left - 1] in b"-_"):
        left -= 1
    if text[left - 1 : left] == b" " and text[start:end].lower() == b"key":
        left = max(0, left - 13)  # "api key", in two words
    name = name_of(text[left:end].decode(errors="replace"))
    if name is None:
        return None
    assigned = _ASSIGNED.match(text, end)
    if assigned is not None:
        if text[left - 1 : left] == b":" and assigned["sign"] == b":" and not assigned["gap"]:
            return None  # arn:aws:secretsmanager:eu-west-1:123:secret:name
        return _assigned(text, name, assigned)
    flag = _FLAG.match(text, end) if text.startswith(b"--", left) else None
    if flag is not None:
        return _span(text, flag.start("value"), flag.end("value"), name, "bare")
    told = _TOLD.match(text, end)
    if told is not None and any(48 <= c <= 57 for c in told["value"]):
        return _span(text, told.start("value"), told.end("value"), name, "prose")
    return None


def after_query_name(text: bytes, end: int) -> Span | None:
    """The secret in a query parameter of a URL whose name ends at `end`."""
    match = _QUERY_VALUE.match(text, end)
    if match is None or not looks_random(match["value"]) or len(match["value"]) < 16:
        return None
    return Span(match.start("value"), match.end("value"), "token")


def in_command(text: bytes, start: int) -> Span | None:
    """The password among what follows the name of a command, or the word ``machine`` of a netrc file, at `start`."""
    match = _COMMAND.match(text, start)
    if match is None or match.lastgroup is None:
        return None
    first, last = match.span(match.lastgroup)
    known = Name("password", True, False, "password")
    return Span(first, last, "password") if is_secret(text[first:last], known, "bare") else None


def authorization(value: bytes) -> tuple[int, int] | None:
    """Where the secret lies in the value of an ``Authorization`` header, its scheme left out; ``None``: in nowhere."""
    match = _SCHEME.match(value)
    if match is not None:
        return (match.end(), len(value)) if match.end() < len(value) and MARK not in value else None
    whole = MARK not in value and not _PLACEHOLDER.fullmatch(value) and _SPACE.search(value) is None
    return (0, len(value)) if whole and len(value) >= 8 else None


def private_key(text: bytes, start: int) -> Span:
    """The block of a private key in PEM whose first line begins at `start`; to its end line, or as far as it goes."""
    end = text.find(b"-----END", start)
    last = _PEM_END.match(text, end) if end >= 0 else _PEM_BODY.match(text, start)
    return Span(start, last.end() if last else start + 11, "private_key")


def _assigned(text: bytes, name: Name, assigned: re.Match[bytes]) -> Span | None:
    start, opening = assigned.end(), assigned["open"]
    if opening:
        end = _closing(text, start, opening)
        if end is None:  # cut off: as far as the line goes
            line = _LINE.match(text, start)
            end = line.end() if line else start
        if name.family == "authorization":
            return _header(text, start, end)
        return _span(text, start, end, name, "quoted", strip=False)
    if name.family == "authorization":
        return _header(text, start, len(text))
    if name.family == "cookie":
        cookies = _COOKIES.match(text, start)
        return Span(start, cookies.end(), "cookie") if cookies else None
    bare = _BARE.match(text, start)
    if bare is None or b"\n" in assigned["gap"]:
        return None
    if b":" in assigned["sign"] and assigned["gap"] and _REST_OF_SENTENCE.match(text, bare.end()):
        return _span(text, start, bare.end(), name, "prose")
    return _span(text, start, bare.end(), name, "bare")


def _span(text: bytes, start: int, end: int, name: Name, place: Place, *, strip: bool = True) -> Span | None:
    value = text[start:end]
    if strip:
        if _CODE.match(value):
            return None
        value = value.rstrip(b",.)]}>")
    return Span(start, start + len(value), name.kind) if is_secret(value, name, place) else None


def _header(text: bytes, start: int, end: int) -> Span | None:
    match = _SCHEME.match(text, start, end)
    if match is None:
        word = _BARE.match(text, start, end)
        value = word[0] if word else b""
        random = len(value) >= 8 and looks_random(value) and MARK not in value
        return Span(start, start + len(value), "token") if random and _CODE.match(value) is None else None
    if match["many"]:  # a scheme of several parameters: Digest username="…", response="…"
        line = _LINE.match(text, match.end(), end)
        rest = line[0] if line else b""
        return Span(match.end(), match.end() + len(rest), "token") if b"=" in rest and MARK not in rest else None
    word = _BARE.match(text, match.end(), end)
    if word is None or _PLACEHOLDER.fullmatch(word[0]) or MARK in word[0] or len(word[0]) < 4:
        return None
    return Span(match.end(), word.end(), "password" if match[0][:5].lower() == b"basic" else "token")


def _closing(text: bytes, start: int, opening: bytes) -> int | None:
    """Where the quoted value that begins at `start` ends; in JSON inside text, quotes have backslashes before them."""
    levels = len(opening)  # 1 for a plain quote, then 2, 4, 8, … with the backslashes of each level of text in text
    limit = min(len(text), start + _LONGEST_VALUE)
    at = text.find(opening[-1:], start, limit)
    while at >= 0:
        before = at
        while before > start and text[before - 1] == 0x5C:
            before -= 1
        if (at - before) % (2 * levels) == levels - 1:
            return at - levels + 1
        at = text.find(opening[-1:], at + 1, limit)
    return None


_LONGEST_VALUE = 8192

_NAME = re.compile(
    r"(?P<before>api|access|secret|private|account|signing|encryption|master|auth|shared|subscription|refresh|id|bearer"
    r"|bot|session|security|csrf|xsrf|personal|oauth|jwt|user|device|page|next|continuation|eos|bos|pad|unk|sep|cls|mask"
    r"|stop|special|start|end|prefix|suffix|sync|prev|previous|cursor|max|min|num|per|first|last)?[-_. ]?"
    r"(?P<word>password|passwd|pwd|passphrase|passcode|passwort|secret|token|key|cookie|authorization|credential)[s0-9]?\Z"
)
_STRONG_KEYS = frozenset(["api", "secret", "private", "encryption", "master", "auth", "subscription"])
_KEYS = _STRONG_KEYS | frozenset(["access", "account", "signing", "shared"])
_STRONG_TOKENS = frozenset(
    [
        "access",
        "auth",
        "refresh",
        "id",
        "bearer",
        "bot",
        "session",
        "security",
        "csrf",
        "xsrf",
        "personal",
        "oauth",
        "jwt",
        "api",
    ]
)
_NO_SECRET_TOKENS = frozenset(
    [
        "page",
        "next",
        "continuation",
        "eos",
        "bos",
        "pad",
        "unk",
        "sep",
        "cls",
        "mask",
        "stop",
        "special",
        "start",
        "end",
        "prefix",
        "suffix",
        "sync",
        "prev",
        "previous",
        "cursor",
        "max",
        "min",
        "num",
        "per",
        "first",
        "last",
    ]
)
_SPACE = re.compile(rb"\s")
_DIGIT = re.compile(rb"[0-9]")
_UUID = re.compile(rb"(?i:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})")
_RANDOM = re.compile(rb"[0-9]|[a-z][A-Z]|[A-Z]{2,}[a-z]")
_PLACEHOLDER = re.compile(
    rb"[*.xX#_-]{1,64}|\xe2\x80\xa6|(?:\xe2\x80\xa2)+|<[^<>]{0,80}>|\$\{[^{}]{0,80}\}|\$[A-Z_][A-Z0-9_]*|%[A-Za-z_]+%"
    rb"|\{\{?[^{}]{0,80}\}?\}|(?i:null|none|nil|true|false|undefined|empty|yes|no|n/a|required|optional|string|str|text"
    rb"|bytes|int|bool|float|any|secretstr|(?:%[sdr][:/, ]?){1,8}"
    rb"|secret|password|passwd|token|hidden|masked|redacted|\[redacted\]|\[filtered\]"
    rb"|your[-_ ][-_ a-z]{2,40}|[a-z]*[-_]?here)"
)
_CODE = re.compile(
    rb"(?:self|os|config|settings|env|environ|process|args|request|req|ctx|cfg|this|options|opts|params|kwargs"
    rb"|secrets|getpass|Optional|Union|List|list|dict)[.\[(]|(?:[A-Za-z_]{1,64}[._])?"
    rb"(?i:password|passwd|pwd|token|secret|(?:api_?)?key)s?[,.)\]]{0,3}$|SecretStr\b"
    rb"|[A-Za-z_][A-Za-z0-9_.]{0,64}[(\[](?:.{0,1024}[)\]][,;:.)\\]{0,4}|[^()\[\]]{0,80}|.{0,1024}[(\[])$"
)
_DESCRIPTION = re.compile(rb"(?i:pass(?:word|code|phrase))|[.:?]$|\bmust\b|\bcharacters\b")
# Between a name and its value: quotes with the backslashes of JSON inside text, spaces, escaped line ends.
_QUOTES = rb"(?:\\{0,1023}+[\"'`]){0,4}+"
_GAP = rb"(?:\s|\\{1,512}+[nrt])"
_ASSIGNED = re.compile(
    rb"[sS0-9]?" + _QUOTES + rb"\]?" + _GAP + rb"{0,64}+(?P<sign>[:=][=>]{0,3}|%3[Dd])"
    rb"(?P<gap>" + _GAP + rb"{0,64}+)(?P<open>\\{0,1023}+[\"'`])?"
)
_FLAG = re.compile(
    rb"[sS0-9]?(?:=|" + _GAP + rb"){1,4}+" + _QUOTES + rb"(?P<value>[^\s\"'`\\;|&-][^\s\"'`\\;|&]{0,1023})"
)
_TOLD = re.compile(
    rb"[sS0-9]?" + _GAP + rb"{1,64}+(?:is:?|was)" + _GAP + rb"{1,4}+" + _QUOTES + rb"(?P<value>[^\s\"'`\\]{6,64})"
)
_BARE = re.compile(rb"(?:[^\s\"'`;\\&,%]|&(?!\w{1,40}=)|,(?!\s?[\w-]{1,40}[=:])|%(?!26)|\\(?![\\nrtu\"'])){1,1024}")
_REST_OF_SENTENCE = re.compile(rb"[ \t]+[^\s,;#}\])\"'\\]")
_PLAIN = rb"[^\s\"'`\\]{1,256}"
_COMMAND = re.compile(
    rb"curl[ \t][^\r\n|;]{0,256}?(?<=[ \t])(?:-u|--user)(?:=|[ \t]){0,4}[\"']?[^\s:\"'\\]{1,128}:(?P<curl>" + _PLAIN
    + rb")|(?:mysql|mariadb)[a-z]{0,8}[ \t](?:[^\r\n|;]{0,256}?[ \t])??-p[\"']?(?P<mysql>" + _PLAIN
    + rb")|machine" + _GAP + rb"{1,8}[^\s\\]{1,255}" + _GAP + rb"{1,8}login" + _GAP + rb"{1,8}[^\s\\]{1,255}"
    + _GAP + rb"{1,8}password" + _GAP + rb"{1,8}(?P<netrc>" + _PLAIN + rb")"
)  # fmt: skip
_LINE = re.compile(rb"(?:[^\r\n\"'`\\]|\\(?![nr\"'\\])){1,8192}")
_COOKIES = re.compile(
    rb"[!#$%&*+.^_|~0-9A-Za-z-]{1,128}=[^\s;,\"'`\\]{0,4096}(?:;\s?[!#$%&*+.^_|~0-9A-Za-z-]{1,128}(?:=[^\s;\"'`\\]{0,4096})?)*"
)
_SCHEME = re.compile(
    rb"(?i:Bearer|Basic|Token|ApiKey|Api-Key|SSWS|Negotiate|(?P<many>Digest|Hawk|OAuth|AWS4-HMAC-SHA256))[ \t]{1,4}"
)
_QUERY_VALUE = re.compile(rb"=(?P<value>[A-Za-z0-9_%+=~-]{1,4096})")
_PEM_END = re.compile(rb"-----END[ A-Z0-9]{0,48}-{0,5}")
_PEM_BODY = re.compile(rb"-----BEGIN[ A-Z0-9]{0,48}-{0,5}[A-Za-z0-9+/=\s\\-]*")
