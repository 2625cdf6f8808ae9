"""The lock of a recipe: its sources, toolkits and build requirements, each with its hash.

    demo.toml -> demo.lock        pyproject.toml -> vbuild.lock        in the recipe's folder

    {"lock": 1,
     "vbuild": "0.5",                                                 what wrote it
     "recipe": "<SHA-256>",                                           of its own file and its patches
     "source": "sdist <SHA-256>", "natives": {"gmp": "debian <SHA-256>"},
     "toolkits": {"13.0 cublas": {"nvidia_cublas-….whl": "<SHA-256>"}},
     "requirements": [{"python": "cpython-3.12-linux-x86_64",         for each Python, and for native steps
                       "requires": ["setuptools>=61"],
                       "packages": ["setuptools==80.9.0 --hash=sha256:… --hash=sha256:…"]}]}

Sorted, one fact a line, so that a diff shows a change. A folder has no hash in it: nothing of it is fetched.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Self

from msgspec import Struct

from vbuild.config.table import Table
from vbuild.errors import RecipeError, at
from vbuild.files.reading import json_object, read_file
from vbuild.recipe.compiling import ToolkitSpec

_VERSION = 1

_PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]*==[^\s;-]+(?: ; [^\n-]+)?(?: --hash=sha256:[0-9a-f]{64})+")

Hashes = tuple[tuple[str, str], ...]


class LockedRequirement(Struct, frozen=True):
    python: str
    requires: tuple[str, ...]
    packages: tuple[str, ...]


class Lock(Struct, frozen=True):
    """What a recipe was resolved to; if it *is_binding*, nothing else is used."""

    vbuild: str
    recipe: str
    source: str
    natives: Hashes = ()
    toolkits: tuple[tuple[str, Hashes], ...] = ()
    requirements: tuple[LockedRequirement, ...] = ()
    is_binding: bool = False

    @classmethod
    def load(cls, path: Path) -> Self:
        try:
            with at(path):
                return cls._read(Table(json_object(read_file(path), RecipeError)))
        except OSError as error:
            raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error

    def pack(self) -> str:
        data = {
            "lock": _VERSION,
            "vbuild": self.vbuild,
            "recipe": self.recipe,
            "source": self.source,
            "natives": dict(self.natives),
            "toolkits": {name: dict(wheels) for name, wheels in self.toolkits},
            "requirements": [
                {
                    "python": requirement.python,
                    "requires": list(requirement.requires),
                    "packages": list(requirement.packages),
                }
                for requirement in self.requirements
            ],
        }
        return json.dumps(data, indent=1, sort_keys=True) + "\n"

    def packages(self, requirements: Collection[str], python: str) -> tuple[str, ...] | None:
        """What to install for *requirements* on *python*, or None if they are not listed."""
        listed = [requirement for requirement in self.requirements if requirement.python == python]
        for requirement in listed:
            if set(requirements) <= set(requirement.requires):
                return requirement.packages
        if not self.is_binding:
            return None
        known = {text for requirement in listed for text in requirement.requires}
        missing = ", ".join(sorted(set(requirements) - known)) or ", ".join(sorted(requirements))
        raise RecipeError(f"--locked: {missing}: not in the lock for {python}; write it again: vbuild lock")

    def check_toolkit(self, spec: ToolkitSpec, wheels: Hashes) -> None:
        if not self.is_binding:
            return
        stated, wheels_there = dict(self.toolkits).get(spec.name), dict(wheels)
        if stated is None:
            raise RecipeError(f"--locked: CUDA {spec.name}: not in the lock; write it again: vbuild lock")
        if dict(stated) != wheels_there:
            others = sorted(dict(set(stated) ^ set(wheels))) or ["no wheels"]
            raise RecipeError(
                f"--locked: CUDA {spec.name}: {others[0]} is not as in the lock; write it again: vbuild lock"
            )

    @classmethod
    def _read(cls, table: Table) -> Self:
        if (version := table.number("lock")) != _VERSION:
            raise table.refuse("lock", f"found {version}, expected {_VERSION}")
        with table.table("toolkits") as toolkits:
            toolkits_read = tuple((name, toolkits.pairs(name)) for name in sorted(toolkits))
        lock = cls(
            vbuild=table.text("vbuild"),
            recipe=table.text("recipe"),
            source=table.text("source"),
            natives=table.pairs("natives"),
            toolkits=toolkits_read,
            requirements=tuple(map(_resolved, table.tables("requirements"))),
        )
        table.finish()
        return lock


def hashed(text: str) -> str:
    if not _PACKAGE.fullmatch(text):
        raise RecipeError(f"{text!r} is not a package with a hash; expected name==version --hash=sha256:…")
    return text


def _resolved(table: Table) -> LockedRequirement:
    packages = table.parsed_texts("packages", hashed, ())
    requirement = LockedRequirement(table.text("python"), table.texts("requires", ()), packages)
    table.finish()
    return requirement
