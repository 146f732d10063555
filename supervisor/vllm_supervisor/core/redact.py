"""What must never be written anywhere: which names hold secrets, and how secrets leave a text.

Two nets. Values that we were given (environment, arguments, configuration) are known and replaced
wherever they stand, also quoted for a URL or JSON. Secrets of others that the engine prints are
known by their shape: a credential in a URL, an Authorization header, `api_key=…`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

HIDDEN: Final = "***"

LEAST_LENGTH: Final = 4
"""A shorter value is no secret, and replacing it would make every text unreadable."""

_WORDS: Final = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "headers",
        "key",
        "keys",
        "passphrase",
        "passwd",
        "password",
        "secret",
        "secrets",
        "token",
    },
)
_ENDINGS: Final = ("apikey", "password", "passwd", "secret", "accesskey", "authtoken", "accesstoken")
_NO_VALUES: Final = frozenset({"none", "null", "true", "false", "auto", "bearer", "basic"})

_URL = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]{0,30}://)(?P<who>[^\s/?#\"'<>]{1,400})@")
_SCHEME = re.compile(r"\b(?P<scheme>[Bb]earer|[Bb]asic) +(?P<value>[A-Za-z0-9._~+/=\-]{4,})")
_NAMED = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9_\-]{0,60})(?P<between>[\"']?\s{0,2}[=:]\s{0,2}\[?[\"']?)"
    r"(?P<value>[^\s\"'\[\](){}<>,;&|]{4,})",
)
_OPTION = re.compile(
    r"(?P<name>--[A-Za-z][A-Za-z0-9_\-]{0,60})(?P<between>[ ,\"']{1,4})(?P<value>[^\s\"',\-][^\s\"',]{3,})"
)
_SHAPED = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_\-]{20,}|gh[pousr]_[A-Za-z0-9]{30,})")
_MARKS: Final = ("key", "token", "secret", "passw", "passphrase", "authoriz", "credential", "cookie")
_SUSPECT = re.compile(
    r"(?:key|token|secret|passw|passwd|password|passphrase|authorization|credentials?|cookie)"
    r"(?:[\"']?\s{0,2}[=:]|[ \"',]{1,4}\S)",
)
_COMPOUND_KEY = re.compile(r"(?:^|[_\-])(?:api|access|secret|private|auth|account|service|signing|master)[_\-]?keys?$")
_VOCABULARY = re.compile(r"(?:^|[_\-])(?:bos|eos|pad|unk|mask|sep|cls|image|video|stop|next|draft|special)[_\-]token$")
"""Tokens of a tokenizer, which are no secrets and which an operator wants to see."""


def is_secret(name: str) -> bool:
    """Whether a variable, an argument or a key of that name holds a secret.

    Words count, not letters: TOKENIZERS_PARALLELISM and max-num-batched-tokens hold none, and a
    value `true` that was taken for a secret would vanish from every log.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()) if word]
    if not words or _VOCABULARY.search("-".join(words)):
        return False
    if words[-1] == "pwd":
        return len(words) > 1
    if words[-1] in {"file", "path", "dir", "id", "length", "size", "count", "mode"}:
        return False  # where a secret lies, and of which kind it is, is not the secret
    return not _WORDS.isdisjoint(words) or words[-1].endswith(_ENDINGS)


def secrets_of(values: Mapping[str, Any]) -> list[str]:
    """The secrets among named values: whole values of secret names, and credentials inside of URLs.

    Args:
        values: Environment, or arguments; lists and further mappings are looked into.
    """
    found: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += secrets_of(value)
            continue
        texts = [str(each) for each in (value if isinstance(value, (list, tuple)) else [value])]
        for text in texts:
            found += _credentials(text)
            if is_secret(name) and text.lower() not in _NO_VALUES:
                found += [text, *_header_values(text)]
    return [secret for secret in dict.fromkeys(found) if len(secret) >= LEAST_LENGTH]


def secrets_of_command(words: Iterable[str]) -> list[str]:
    """The secrets on a command line: values of options whose names announce one, and credentials inside of URLs."""
    found: list[str] = []
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            option = name.lstrip("-")
            found += secrets_of({option: value}) if equals else []
        else:
            found += secrets_of({option or "-": word})
    return found


def _credentials(text: str) -> list[str]:
    """What stands before the `@` of URLs; of `user:password` the password, for the user is no secret."""
    return [match["who"].rpartition(":")[2] for match in _URL.finditer(text)]


def _header_values(text: str) -> list[str]:
    """`authorization=Bearer abc,x-key=def` holds secrets of its own, which travel without their names."""
    parts = [part.partition("=")[2] or part.partition(":")[2] for part in text.split(",")] if "=" in text else []
    return [word for part in parts for word in (part.strip(), part.strip().rpartition(" ")[2]) if len(word) >= 8]


def redactor(secrets: Iterable[str]) -> Callable[[str], str]:
    """A function that takes the secrets out of a text; it is called with every line of the engine.

    Args:
        secrets: The values that are known.
    """
    forms = {form for secret in secrets if len(secret) >= LEAST_LENGTH for form in _forms(secret)}
    # The longest first, or a secret that begins with another one would leave its rest behind.
    known = sorted(forms, key=len, reverse=True)

    def redact(text: str) -> str:
        # Replacing one after the other is ten times as fast as one alternation of them all.
        for each in known:
            if each in text:
                text = text.replace(each, HIDDEN)
        return by_shape(text)

    return redact


def by_shape(text: str) -> str:
    """The text without what looks like a secret."""
    if "://" in text and "@" in text:
        text = _URL.sub(rf"\g<scheme>{HIDDEN}@", text)
    lower = text.lower()
    if "bearer " in lower or "basic " in lower:
        surely = "authorization" in lower
        text = _SCHEME.sub(rf"\g<scheme> {HIDDEN}" if surely else _hide_scheme, text)
    if "hf_" in text or "sk-" in text or "gh" in text:
        text = _SHAPED.sub(HIDDEN, text)
    for mark in _MARKS:
        if mark in lower:
            break
    else:
        return text
    if _SUSPECT.search(lower):
        text = _OPTION.sub(_hide_named, _NAMED.sub(_hide_named, text))
    return text


def _hide_scheme(match: re.Match[str]) -> str:
    value = match["value"]
    # "Basic" and "bearer" are words, too: only what no word looks like is hidden.
    plain = value.isalpha() and value.islower()
    return match[0] if plain else f"{match['scheme']} {HIDDEN}"


def _hide_named(match: re.Match[str]) -> str:
    value = match["value"]
    if not _told_by_name(match["name"]) or value.lower() in _NO_VALUES or value.startswith(HIDDEN):
        return match[0]
    return f"{match['name']}{match['between']}{HIDDEN}"


def _told_by_name(name: str) -> bool:
    """Whether `name=` in free text announces a secret; `key=` and `KeyError:` are ordinary Python."""
    plain = name.lstrip("-")
    words = re.split(r"[_\-]", plain.lower())
    if words[-1] in {"key", "keys"}:
        return _COMPOUND_KEY.search(plain.lower()) is not None
    return words[-1] not in {"auth", "headers"} and not plain.endswith("Error") and is_secret(plain)


def _forms(secret: str) -> set[str]:
    """The secret as it is, in JSON, and in a URL."""
    quoted = "".join(char if char.isalnum() or char in "-._~" else f"%{ord(char):02X}" for char in secret)
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    lines = [line for line in secret.splitlines() if len(line) >= LEAST_LENGTH * 2]
    return {secret, escaped, *lines} | ({quoted} if secret.isascii() else set())


def clean(value: Any, redact: Callable[[str], str], name: str = "") -> Any:
    """A JSON value without secrets: values of secret names whole, all other texts by `redact`.

    Args:
        value: Text, number, list or mapping.
        redact: What `redactor` gave.
        name: The key under which the value stands.
    """
    if isinstance(value, Mapping):
        return {redact(str(key)): clean(item, redact, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, redact, name) for item in value]
    if isinstance(value, str):
        return HIDDEN if value and name and is_secret(name) and value.lower() not in _NO_VALUES else redact(value)
    return value
