"""Flags as others may see them: of what a macro is set to, which may be a secret, the beginning of a hash.

-DTOKEN=abc  "-D TOKEN=a b"  -Wp,-DTOKEN=abc     -DTOKEN=sha256:ba7816bf8f01cfea ...
-DNDEBUG  -DLEVEL=3  -D_FORTIFY_SOURCE=2         as they are
"""

import re
import shlex
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise

_MACRO = re.compile(r"(?P<name>(?:.*,)?(?:-D\s*)?\w+(?:\([^)]*\))?=)(?P<value>.+)", re.DOTALL)
# no secret is such a number, and what is a hash already stays one
_PLAIN = re.compile(r"\d{1,4}|sha256:[0-9a-f]{16}")


def masked_words(flags: str) -> Iterator[tuple[str, str]]:
    """The words of *flags*, each as it is and with a hash for what a macro is set to."""
    try:
        words = shlex.split(flags)
    except ValueError:  # a quotation mark alone
        words = flags.split()
    for before, word in pairwise(("", *words)):
        is_macro = before == "-D" or word.startswith("-D") or ",-D" in word
        match = _MACRO.fullmatch(word) if is_macro else None
        if match and not _PLAIN.fullmatch(match["value"]):
            yield word, f"{match['name']}sha256:{sha256(match['value'].encode()).hexdigest()[:16]}"
        else:
            yield word, word


def masked(value: str) -> str:
    """The *value* of a variable or a setting, as it is if no macro in it is set to anything."""
    words = [*masked_words(value)] if "-D" in value else []
    return shlex.join(shown for _, shown in words) if any(word != shown for word, shown in words) else value
