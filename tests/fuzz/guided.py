"""One target fuzzed by atheris, which keeps inputs that reach new branches of vbuild.

Importing this takes seconds, as vbuild counts its branches afterwards: one process does it, and its children fuzz.
https://github.com/google/atheris
"""

import io
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path

import atheris

from tests.fuzz.target import LONGEST

# what is imported here is what is counted, and each module is told
with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["vbuild"], enable_loader_override=False):
    from tests.fuzz.hunting import Hunt
    from tests.fuzz.targets import TARGETS

# one input; vbuild is slower by what counting costs
_HANG = 60
_MEMORY = 4096


def fuzz(name: str, seconds: float, folder: Path, corpus: Path) -> None:
    """Fuzz the target *name*, and end the process; suspects lie in *folder* then, and *corpus* has grown."""
    begun, target = time.monotonic(), TARGETS[name]
    hunt = Hunt(target, folder)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    left = max(1, round(seconds - (time.monotonic() - begun)))
    options = [f"-max_total_time={left}", f"-max_len={LONGEST}", f"-timeout={_HANG}", f"-rss_limit_mb={_MEMORY}"]
    atheris.Setup(
        [sys.argv[0], *options, f"-dict={words}", f"-artifact_prefix={folder}/suspect-", str(corpus)], hunt.read
    )
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    """*word* as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)
