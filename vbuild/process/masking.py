"""What commands print, without what nobody may read in a log: texts that are hidden, and logins in URLs.

    a command -> pipe -> Mask: correct-horse-battery         ****
                              -DTOKEN=abc                    -DTOKEN=sha256:ba7816bf8f01cfea
                              https://me:word@host/simple    https://****@host/simple       -> its log

The output comes in pieces: the end of one waits for the next if a hidden text may begin there.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

STARS = "****"
# git@host is what everybody is called there
_LOGIN = r"://(?!git@)[^\s/?#@\"'<>]{1,4096}@"
_NOBODY = f"://{STARS}@"
_LOGIN_BEGINS = re.compile(rb"(?::/?|://[^\s/?#@\"'<>]{0,4096})\Z")


def without_logins(text: str) -> str:
    """*text* with stars for each login in a URL."""
    return re.sub(_LOGIN, _NOBODY, text)


class _Hidden:
    """What the commands of this process must not show: texts, each with what stands for it, as long as one hides it."""

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
    """Commands that run in the block, in any thread, show of each of *texts* only what stands for it there."""
    encoded = {text.encode(errors="surrogateescape"): shown.encode() for text, shown in texts.items() if text}
    _hidden.add(encoded)
    try:
        yield
    finally:
        _hidden.remove(encoded)


def masked_text(text: str) -> str:
    """All of *text* as a log would have it."""
    mask = Mask()
    return (mask.shown(text.encode(errors="surrogateescape")) + mask.rest()).decode(errors="surrogateescape")


class Mask:
    """The output of one command, of which those of *texts* are not shown, by default all that is hidden now."""

    def __init__(self, texts: Mapping[bytes, bytes] | None = None) -> None:
        self._texts = dict(_hidden() if texts is None else texts)
        longest_first = sorted(self._texts, key=len, reverse=True)
        self._pattern = re.compile(b"|".join([_LOGIN.encode(), *map(re.escape, longest_first)]))
        self._longest = len(longest_first[0]) if longest_first else 0
        self._held = b""

    def shown(self, piece: bytes) -> bytes:
        """What to show now, after *piece* has come."""
        data = self._held + piece
        end = self._begin_of_more(data)
        for match in self._pattern.finditer(data):
            if match.start() < end < match.end():
                end = match.start()
        self._held = data[end:]
        return self._masked(data[:end])

    def rest(self) -> bytes:
        """What is left when nothing more comes."""
        data, self._held = self._held, b""
        return self._masked(data)

    def _masked(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda found: self._texts.get(found[0], _NOBODY.encode()), data)

    def _begin_of_more(self, data: bytes) -> int:
        """Where the first text begins that only what comes next may end; the end of *data* if none does."""
        begins = [len(data)]
        if login := _LOGIN_BEGINS.search(data[-5000:]):
            begins.append(len(data) - len(login[0]))
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            end = data[start:]
            if any(len(text) > len(end) and text.startswith(end) for text in self._texts):
                begins.append(start)
                break
        return min(begins)
