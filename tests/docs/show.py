"""Write into pages what their commands print: ``python -m tests.docs.show README.md docs/howto/slim.md``.

Each page runs in a folder of its own with an empty cache; pages share the cache of what prepares examples. A page is
written when all of its commands have run.
"""

import sys
import tempfile
from pathlib import Path

from tests.docs.pages import comparable, examples, runs


def shown(text: str, folder: Path, prepared: Path) -> str:
    """The page *text* with the real output of its commands, which are run below *folder*."""
    new, end = "", 0
    for example, _, said in runs(text, folder, prepared):
        # what differs in figures alone stays: the machine may be busy
        new += text[end : example.start] + (example.shown if comparable(said) == comparable(example.shown) else said)
        end = example.end
    return new + text[end:]


def main() -> None:
    with tempfile.TemporaryDirectory() as prepared:
        for name in sys.argv[1:]:
            page = Path(name)
            text = page.read_text(encoding="utf-8")
            with tempfile.TemporaryDirectory() as folder:
                page.write_text(shown(text, Path(folder), Path(prepared)), encoding="utf-8")
            print(f"{page}: {len(examples(text))} examples", flush=True)


if __name__ == "__main__":
    main()
