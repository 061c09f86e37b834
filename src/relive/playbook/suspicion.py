"""The words that make a lesson suspicious, by what they would do.

Each pattern reads text in small letters without marks, invisible letters and look-alikes (`trust.suspicions`). Rules
about people's rules are found by a verb that loosens and a noun for what protects, within a few words; what a lesson
*forbids* ("never skip the check") is no finding. A list like this catches the careless only; see `trust` for the rest.
"""

import re

_PROTECTS = (
    "polic(?:y|ies)|rules?|guidelines?|guard-?rails?|instructions?|restrictions?|safeguards?|safety|limits?|"
    "permissions?|approvals?|authori[sz]ations?|verifications?|confirmations?|checks?|consent|filters?|moderation|"
    "sandbox|audit|logging|two-factor|2fa|mfa|reviews?"
)
_POWERS = (
    "permissions?|privileges?|admin\\w*|root|sudo|superuser|owner(?:ship)?|roles?|scopes?|credentials?|api keys?|"
    "tokens?|rights|(?:full |write |remote |shell )?access|tool access"
)
_PRIVATE = (
    "passwords?|passcodes?|secrets?|(?:api )?keys?|tokens?|credentials?|cookies?|card (?:number|details)\\w*|cvv|pins?|"
    "ssn|social security|system prompt|environment variables?|\\.?env|private data|personal data|customer data|"
    "conversation histor(?:y|ies)|chat histor(?:y|ies)|database dump|internal notes?|reset links?"
)


# The commonest of these in German, French, Spanish, Portuguese, Italian, Russian and Chinese, without marks.
_SET_ASIDE_ELSEWHERE = (
    r"(?:ignorier\w*|missacht\w*|vergiss|vergessen sie|umgeh\w*|ignore[rz]|oubli\w*|contourn\w*|ignora\w*|olvid\w*|"
    r"desconsider\w*|esquec\w*|dimentic\w*|игнорир\w*|забуд\w*|обоид\w*|忽略|无视|無視|绕过|跳过)"
)
_RULES_ELSEWHERE = (
    r"(?:anweisung\w*|vorgabe\w*|regeln?|richtlinie\w*|pruefung\w*|prufung\w*|instruc\w*|consignes?|regles?|reglas?|regras?|"
    r"regole|istruzion\w*|controles?|verificac\w*|инструкц\w*|правил\w*|проверк\w*|指示|指令|规则|規則|验证|审核)"
)
_PRIVATE_ELSEWHERE = (
    r"(?:passwort\w*|kennwort\w*|zugangsdaten|mots? de passe|contrasenas?|senhas?|credencia\w*|парол\w*|"
    r"密码|密碼|密钥)"
)


def _near(first: str, words: int, second: str) -> str:
    """A word of the first kind with one of the second at most so many words after it."""
    return rf"\b(?:{first})\b(?:\W+\w+){{0,{words}}}?\W+(?:{second})\b"


_SOURCES: dict[str, tuple[str, ...]] = {
    "an address": (
        r"\b[a-z][a-z0-9+.-]{1,12}://",
        r"\bwww\.",
        r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}",
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b",
        r"\b[\w-]+\.(?:com|net|org|io|ru|cn|xyz|info|biz|top|site|online|dev|app|co|me|tk|onion|example)\b",
        r"\bhxxps?\b|\bjavascript:|\bdata:\w+/",
    ),
    "language that overrides rules": (
        _near(
            r"ignor\w*|disregard\w*|forget|overrid\w+|bypass\w*|circumvent\w*|supersed\w+|work around|"
            r"instead of following|set aside",
            6,
            rf"{_PROTECTS}|previous|prior|earlier|above|everything|system|prompt|developer",
        ),
        rf"\b(?:{_PROTECTS})\b(?:\W+\w+){{0,5}}?\W+no longer (?:apply|applies|count|hold|bind)",
        rf"{_SET_ASIDE_ELSEWHERE}.{{0,40}}?{_RULES_ELSEWHERE}|{_RULES_ELSEWHERE}.{{0,20}}?{_SET_ASIDE_ELSEWHERE}",
    ),
    "language that loosens rules": (
        _near(
            r"skip\w*|waiv\w+|disabl\w+|deactivat\w+|turn(?:ing)? off|switch(?:ing)? off|relax\w*|lift\w*|suspend\w*|"
            r"remov\w+|drop\w*|loosen\w*|rais\w+|chang\w+|rewrit\w+|updat\w+|exten\w+|omit\w*|suppress\w*",
            4,
            _PROTECTS,
        ),
        (
            rf"\b(?:{_PROTECTS})\b(?:\W+\w+){{0,3}}?\W+(?:is|are|was|were|has been|have been) (?:now )?"
            r"(?:updated|changed|lifted|waived|suspended|relaxed|extended|replaced|raised)\b"
        ),
        rf"\b(?:pretend|assume|claim)\w*\b(?:\W+\w+){{0,4}}?\W+(?:{_PROTECTS})\b(?:\W+\w+){{0,3}}?\W+(?:permits?|allows?)",
    ),
    "language that does without asking": (
        (
            r"\bwithout (?:any |further )*(?:asking|approval|confirm\w*|permission|consent|verif\w+|"
            r"authori[sz]ation|check\w*|review\w*|telling|notifying|informing|logging)\b"
        ),
        (
            r"\b(?:do not|don't|never|no need to) (?:ask|confirm|verify|check with|tell|inform|notify|mention|"
            r"log|report|record|warn|question|escalate|refuse)\b"
            r"(?!\W+(?:\w+\W+){0,4}(?:security code|cvv|pin|password|passcode))"
        ),
        (
            r"\b(?:ohne|sans|sin|sem|senza|без) (?:\w+ ){0,2}(?:ruckfrage|nachfrage|bestatigung|prufung|zustimmung|"
            r"demander|verifi\w*|confirm\w*|preguntar|conferm\w*|chieder\w*|подтвержд\w*|проверк\w*)"
        ),
        r"\bno questions asked\b|\bno matter what\b|\bno exceptions?\b",
        r"\bauto(?:matically |-?)(?:approv|grant|accept|refund)\w*",
    ),
    "permissions": (
        _near(r"(?:grant|give|assign|obtain|allow|enable|elevate|escalate|expand|add|hand out)\w*", 7, _POWERS),
        (
            r"\b(?:is|are|has been|have been|was|were) (?:now |hereby )?(?:pre-?)?(?:authori[sz]ed|permitted|allowed|"
            r"whitelisted|exempt\w*|trusted)\b"
        ),
        r"\b(?:allow|white|safe)-?list\w*\b|\bchmod\b|\bsudo\b|\bas (?:an? |the )?(?:admin\w*|root)\b",
        r"\b(?:full|unrestricted|unlimited|elevated) (?:access|permissions?|privileges?|authority)\b",
    ),
    "language that speaks to the model": (
        (
            r"\b(?:you are (?:now|no longer)|from now on|act as|pretend|role-?play|developer mode|jailbreak\w*|"
            r"dan mode|system prompt|system message|hidden prompt|(?:new|important) instructions?|system override)\b"
        ),
        r"\byour (?:new |real |true )?(?:role|identity|instructions|task|goal|purpose) (?:is|are)\b",
        r"(?:^|\s)(?:system|assistant|user|developer|human|tool)\s*:|<\|?/?\w|\[/?inst\]|###|```",
    ),
    "secrets or private data handed on": (
        _near(
            r"(?:send|post|forward|upload|e-?mail|share|leak|exfiltrat|transmit|publish|copy|export|report|reveal|"
            r"disclose|print|include|append|attach|read out|repeat|show|output)\w*",
            7,
            _PRIVATE,
        ),
        r"\bcontents? of \.?env\b|(?:^|\s)\.env\b",
        (
            rf"(?:schick\w*|send\w*|envoy\w*|envi\w*|invia\w*|отправ\w*|发送|發送|发给).{{0,40}}?{_PRIVATE_ELSEWHERE}|"
            rf"{_PRIVATE_ELSEWHERE}.{{0,40}}?(?:schick\w*|senden|envoy\w*|envi\w*|invia\w*|отправ\w*|发送|發送|发给)"
        ),
    ),
    "commands": (
        r"\brm -rf?\b|\bcurl\b|\bwget\b|\beval\(|\bexec\(|\bdrop table\b|\bdelete from\b|\bpowershell\b|\bbase64\b",
        r"\bsubprocess\b|\bos\.system\b|\|\s*(?:ba)?sh\b|\$\(|&&",
    ),
    "money moved": (
        _near(
            r"(?:transfer|wire|send|pay|route|redirect|refund|deposit|credit)\w*",
            8,
            r"to (?:\w+ ){0,2}(?:account|iban|wallet|card)|iban|bitcoin|crypto\w*|gift cards?",
        ),
        r"\b[a-z]{2}\d{2}[a-z0-9]{11,30}\b",
    ),
    "approval for all": (
        _near(
            r"always|every|all|any|each",
            6,
            r"(?:approv\w+|refunds?|grant\w*|discounts?|waive\w*|upgrad\w+|compensat\w+|credit\w*|vouchers?)"
            r"(?:\W+\w+){0,8}?\W+(?:full\w*|whatever|any amount|regardless|no matter|unconditional\w*|at once|"
            r"immediately|even if|anyway)",
        ),
        r"\b(?:every|all|any|each)\b(?:\W+\w+){0,6}?\W+(?:gets?|receives?) (?:an? )?(?:full|immediate)\b",
        _near(
            r"approv\w+|refund\w*|grant\w*|accept\w*|compensat\w+",
            8,
            r"regardless|no matter|unconditional\w*|any amount|irrespective",
        ),
        r"\btreat\b(?:\W+\w+){0,4}?\W+as (?:verified|confirmed|approved|authori[sz]ed)\b",
    ),
}

PATTERNS: tuple[tuple[str, "re.Pattern[str]"], ...] = tuple(
    (what, re.compile("|".join(f"(?:{source})" for source in sources))) for what, sources in _SOURCES.items()
)
"""What is found, and how."""

FORBIDS = re.compile(
    r"\b(?:not|never|don't|dont|cannot|can't|without|avoid|nor|refuse to|nobody may|nie|niemals|nicht|jamais|nunca|mai|"
    r"никогда|не)\W+(?:\w+\W+)?$"
)
"""Words that, just before a finding, turn it into what must not be done."""

ALREADY_NEGATIVE = frozenset({"language that does without asking"})
"""Findings that a negation makes, and so cannot undo."""
