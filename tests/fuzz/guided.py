"""One target fuzzed by atheris, which keeps inputs that reach new branches of vbuild: a process of its own.

    python -m tests.fuzz.guided TARGET SECONDS FOLDER CORPUS

Suspects lie in FOLDER afterwards; CORPUS is a folder of inputs, and grows. https://github.com/google/atheris
"""

import sys
import time
from pathlib import Path

import atheris

from tests.fuzz.target import LONGEST

_BEGUN = time.monotonic()
# one input; vbuild is slower by what counting costs
_HANG = 60
_MEMORY = 4096


def main() -> None:
    name, seconds, folder, corpus = sys.argv[1:]
    with atheris.instrument_imports(include=["vbuild"], enable_loader_override=False):
        from tests.fuzz.hunting import Hunt  # noqa: PLC0415 - what is imported here is what is counted
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415
    target = TARGETS[name]
    hunt = Hunt(target, Path(folder))
    for number, seed in enumerate(target.seeds()):
        (Path(corpus) / f"seed-{number}").write_bytes(seed)
    words = Path(folder) / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    # importing what counts its branches takes seconds
    left = max(1, round(float(seconds) - (time.monotonic() - _BEGUN)))
    options = [f"-max_total_time={left}", f"-max_len={LONGEST}", f"-timeout={_HANG}", f"-rss_limit_mb={_MEMORY}"]
    atheris.Setup([sys.argv[0], *options, f"-dict={words}", f"-artifact_prefix={folder}/suspect-", corpus], hunt.read)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    """*word* as libFuzzer's dictionaries have it."""
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
