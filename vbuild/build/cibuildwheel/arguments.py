"""The command line of cibuildwheel, as far as vbuild has to know it.

    --platform linux --only cp312-manylinux_x86_64 packages/demo    the project is packages/demo

https://cibuildwheel.pypa.io/en/stable/options/#command-line
"""

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from vbuild.errors import BuildError

_TAKES_VALUE = frozenset({"--platform", "--archs", "--enable", "--only", "--output-dir", "--config-file"})
_LINUX = frozenset({"linux", "auto"})
_REFUSED = {
    "--output-dir": "the wheels go into the folder that vbuild is given; leave it out",
    "--print-build-identifiers": "makes no wheels; run cibuildwheel itself, or vbuild with --dry-run",
    "--clean-cache": "makes no wheels; run cibuildwheel itself",
    "--help": "makes no wheels; run cibuildwheel itself",
    "-h": "makes no wheels; run cibuildwheel itself",
}


class Arguments(Struct, frozen=True):
    """The *words* for cibuildwheel; of these, the folder of the project, and the file with its options if named."""

    words: tuple[str, ...] = ()
    package: Path = Path()
    config_file: str = ""

    @classmethod
    def parse(cls, words: Sequence[str]) -> Self:
        """*words* looked through; `BuildError` for those that make no wheels, or none for Linux."""
        given: dict[str, str] = {}
        positional: list[str] = []
        left = iter(words)
        for word in left:
            name, joined, value = word.partition("=")
            if word == "--":
                positional += left
            elif not word.startswith("-"):
                positional.append(word)
            elif name in _REFUSED:
                raise BuildError(f"{name}: {_REFUSED[name]}")
            else:
                given[name] = value if joined or name not in _TAKES_VALUE else next(left, "")
        check_platform(given.get("--platform", "auto"), "--platform {}")
        package = Path(positional[0]) if positional else Path()
        if package.name.endswith(".tar.gz") or package.is_file():
            raise BuildError(f"{package}: not a folder; expected that of a project: unpack the sdist")
        return cls(tuple(words), package, given.get("--config-file", ""))

    @property
    def options(self) -> Path:
        """The TOML file in which cibuildwheel looks for the project's options."""
        if self.config_file:
            return Path(self.config_file.replace("{package}", str(self.package)))
        return self.package / "pyproject.toml"

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The project's options, or none if they cannot be read: what is wrong with them, cibuildwheel says."""
        with suppress(OSError, ValueError, AttributeError):
            found = tomllib.loads(self.options.read_text(encoding="utf-8")).get("tool", {}).get("cibuildwheel", {})
            return found if isinstance(found, Mapping) else {}
        return {}

    def check_place(self) -> None:
        """`BuildError` if the project is outside of the working folder, of which alone containers get a copy."""
        if not self.package.resolve().is_relative_to(Path.cwd()):
            raise BuildError(
                f"{self.package}: outside of the working folder, which cibuildwheel copies into the container; "
                f"expected one in it: change into a folder that has all of the project"
            )


def check_platform(platform: str, setting: str) -> None:
    """`BuildError` if *platform*, which stands in *setting* at its braces, is not Linux."""
    if platform not in _LINUX:
        raise BuildError(
            f"{setting.format(platform)}: only wheels for Linux have variants of CPU levels and GPUs; "
            f"expected linux: run cibuildwheel itself for {platform}"
        )
