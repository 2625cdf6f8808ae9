"""Flags and settings as others may see them: of what may be a secret in them, the beginning of a hash.

-DTOKEN=abc  "-D TOKEN=a b"  -Wp,-DTOKEN=abc  /DTOKEN=abc      -DTOKEN=sha256:ba7816bf8f01cfea ...
--define TOKEN=abc  -DTOKEN:STRING=abc  --cfg token="abc"      the same
--api-token=abc  -Wl,--password,abc  API_TOKEN=abc             the same, by the name
-DPLACE=https://me:abc@host/  https://me:abc@host/             https://****@host/
-DNDEBUG  -DLEVEL=3  -D_FORTIFY_SOURCE=2  -O3                  as they are
"""

import re
import shlex
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

from vbuild.config.table import Setting
from vbuild.process.masking import without_logins

# what the name of a variable, a setting or an option is called by if its value is a secret
SECRET = re.compile(
    r"(?:^|[^A-Za-z0-9])"
    r"(?:TOKENS?|PASS|PASSWORDS?|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?|API_?KEY|KEY|AUTH|LOGIN|USERNAME)"
    r"(?:[^A-Za-z0-9]|$)",
    re.IGNORECASE,
)
# no secret is such a number or switch, and what is a hash already stays one
PLAIN = re.compile(r"\d{1,4}|(?i:on|off|true|false|yes|no)|sha256:[0-9a-f]{16}")
# after which a macro may come as a word of its own
_DEFINING = {"-D", "/D", "--define", "--define-macro", "--cfg"}
_MACRO = re.compile(r"(?P<name>(?:.*,)?(?:[-/]D\s*|--define(?:-macro)?=|--cfg=)[^=,]+=)(?P<value>.+)", re.DOTALL)
_DEFINED = re.compile(r"(?P<name>[^=]+=)(?P<value>.+)", re.DOTALL)
_LONG = re.compile(r"--[\w.-]+")
_OPTION = re.compile(r"(?P<name>(?:.*,)?[\w.-]+[=,])(?P<value>.+)", re.DOTALL)


def hashed(value: str) -> str:
    """The beginning of a hash of *value*."""
    return f"sha256:{sha256(value.encode(errors='surrogateescape')).hexdigest()[:16]}"


def secrets_in(flags: str) -> Iterator[tuple[str, str, str]]:
    """The words of *flags*, each in two parts: what may be seen, and behind it what may be a secret, or nothing.

    The whole word comes first.
    """
    try:
        words = shlex.split(flags)
    except ValueError:  # a quotation mark alone
        words = flags.split()
    for before, word in pairwise(("", *words)):
        match = _MACRO.fullmatch(word) or (_DEFINED.fullmatch(word) if before in _DEFINING else None)
        if match is None and (option := _OPTION.fullmatch(word)) and SECRET.search(option["name"]):
            match = option
        if match and not PLAIN.fullmatch(match["value"]):
            yield word, match["name"], match["value"]
        elif _LONG.fullmatch(before) and SECRET.search(before) and not (word.startswith("-") or PLAIN.fullmatch(word)):
            yield word, "", word
        else:
            yield word, word, ""


def masked_words(flags: str) -> Iterator[tuple[str, str]]:
    """The words of *flags*, each as it is and as others may see it."""
    for word, seen, secret in secrets_in(flags):
        yield word, without_logins(seen) + (hashed(secret) if secret else "")


def masked(value: str, *, name: str = "") -> str:
    """The *value* of the variable or setting *name*; as it is if nothing in it may be a secret."""
    if value and SECRET.search(name) and not PLAIN.fullmatch(value):
        return hashed(value)
    words = [*masked_words(value)]
    return shlex.join(shown for _, shown in words) if any(word != shown for word, shown in words) else value


def masked_setting(name: str, value: Setting) -> Setting:
    """The *value* of the setting *name*, or each of its values, as others may see it."""
    return masked(value, name=name) if isinstance(value, str) else tuple(masked(one, name=name) for one in value)
