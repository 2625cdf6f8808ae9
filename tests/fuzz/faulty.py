"""A target over its seeds, with a fault in the code that it judges, whose own proofs are off: what do readers notice?

    python -m tests.fuzz.faulty TARGET MODULE OLD NEW   with NEW instead of OLD, which MODULE has once

The exit status is 0 if nothing was noticed; else it is 1, and what was noticed first is printed.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

_PROOFS = (
    ("vbuild.elf.surgery.cutting", "    prove(image, edited, replaced, without=unneeded)\n", ""),
    ("vbuild.elf.surgery.relink", "    prove_relinked(before, after, left)\n", ""),
    ("vbuild.pe.cutting", "    prove(image, edited, replacements, stripped)\n", ""),
)


class _Loader(SourceFileLoader):
    """Loads a module with other texts in its source."""

    def __init__(self, name: str, path: str, changes: Sequence[tuple[str, str]]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        text = Path(self.path).read_text(encoding="utf-8")
        for old, new in self._changes:
            if text.count(old) != 1:
                raise SystemExit(f"{fullname}: has {text.count(old)} times {old!r}, expected once")
            text = text.replace(old, new)
        return compile(text, self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds the modules that are changed."""

    def __init__(self, changes: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._changes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec
        assert spec.origin
        spec.loader = _Loader(fullname, spec.origin, self._changes[fullname])
        return spec


def main() -> int:
    name, *fault = sys.argv[1:]
    changes: dict[str, list[tuple[str, str]]] = {}
    for module, old, new in (*_PROOFS, fault):
        changes.setdefault(module, []).append((old, new))
    sys.meta_path.insert(0, _Finder(changes))
    # only now: what has the fault is imported by the target
    errors = importlib.import_module("vbuild.errors")
    for seed in importlib.import_module("tests.fuzz.targets").TARGETS[name].seeds():
        try:
            importlib.import_module("tests.fuzz.targets").TARGETS[name].run(seed)
        except errors.VbuildError:
            continue
        except Exception as error:  # noqa: BLE001 - each is what a fuzzer calls a finding
            print(f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
