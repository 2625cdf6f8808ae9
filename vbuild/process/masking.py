"""What commands print, without secrets: hidden texts, and logins in URLs.

    a command -> pipe -> Mask: correct-horse-battery         ****
                              -DTOKEN=abc                    -DTOKEN=sha256:ba7816bf8f01cfea
                              https://me:word@host/simple    https://****@host/simple       -> its log

Output comes in pieces: the end of one waits for the next if a hidden text may begin there.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from msgspec import Struct, structs

T = TypeVar("T")

STARS = "****"
# git@host is no secret: everybody has that name there
_LOGIN = r"://(?!git@)[^\s/?#@\"'<>]{1,4096}@"
_NOBODY = f"://{STARS}@"
_LOGIN_BEGINS = re.compile(rb"(?::/?|://[^\s/?#@\"'<>]{0,4096})\Z")


def without_logins(text: str) -> str:
    return re.sub(_LOGIN, _NOBODY, text)


class _Hidden:
    """The texts that this process hides, with their replacements; several blocks may hide one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: Counter[tuple[bytes, bytes]] = Counter()

    def add(self, texts: Mapping[bytes, bytes]) -> None:
        with self._lock:
            self._texts.update(texts.items())

    def remove(self, texts: Mapping[bytes, bytes]) -> None:
        with self._lock:
            self._texts.subtract(texts.items())

    def __call__(self) -> dict[bytes, bytes]:
        with self._lock:
            return {text: shown for (text, shown), users in self._texts.items() if users > 0}


_hidden = _Hidden()


@contextmanager
def hiding(texts: Mapping[str, str]) -> Iterator[None]:
    """In the block, commands of any thread show the values of *texts* instead of its keys."""
    encoded = {text.encode(errors="surrogateescape"): shown.encode() for text, shown in texts.items() if text}
    _hidden.add(encoded)
    try:
        yield
    finally:
        _hidden.remove(encoded)


def masked_text(text: str) -> str:
    return Mask().text(text)


def masked_in(value: T) -> T:
    """*value*, with all texts in it as a log shows them."""
    return Mask().within(value, {})


class Mask:
    """Masks *texts*, by default all that are hidden now, in the output of one command."""

    def __init__(self, texts: Mapping[bytes, bytes] | None = None) -> None:
        self._texts = dict(_hidden() if texts is None else texts)
        longest_first = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile(b"|".join([_LOGIN.encode(), *map(re.escape, longest_first)]))
        self._longest = len(longest_first[0]) if longest_first else 0
        self._held = b""

    def shown(self, piece: bytes) -> bytes:
        """What to show after *piece* has come."""
        data = self._held + piece
        end = self._begin_of_more(data)
        for match in self._pattern.finditer(data):
            if match.start() < end < match.end():
                end = match.start()
        self._held = data[end:]
        return self._masked(data[:end])

    def rest(self) -> bytes:
        data, self._held = self._held, b""
        return self._masked(data)

    def text(self, text: str) -> str:
        return self._masked(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def within(self, value: T, known: dict[int, Any]) -> T:
        """*value* with its texts masked, itself if none changes; *known* has results by identity."""
        if id(value) not in known:
            shown = self._rebuilt(value, known)
            known[id(value)] = value if shown == value else shown
        return cast("T", known[id(value)])

    def _rebuilt(self, value: Any, known: dict[int, Any]) -> Any:  # noqa: ANN401 - whatever a value holds
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind in {tuple, list}:
            return kind(self.within(item, known) for item in value)
        if kind is dict:
            return {key: self.within(item, known) for key, item in value.items()}
        names = value.__struct_fields__ if isinstance(value, Struct) else getattr(value, "__dataclass_fields__", ())
        parts = {name: (getattr(value, name), self.within(getattr(value, name), known)) for name in names}
        changed = {name: shown for name, (before, shown) in parts.items() if shown is not before}
        if not changed:
            return value
        return structs.replace(value, **changed) if isinstance(value, Struct) else replace(value, **changed)

    def _masked(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda match: self._texts.get(match[0], _NOBODY.encode()), data)

    def _begin_of_more(self, data: bytes) -> int:
        """Where the first text that may go on in the next piece begins, or the end of *data*."""
        begins = [len(data)]
        if login := _LOGIN_BEGINS.search(data[-5000:]):
            begins.append(len(data) - len(login[0]))
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            end = data[start:]
            if any(len(text) > len(end) and text.startswith(end) for text in self._texts):
                begins.append(start)
                break
        return min(begins)
