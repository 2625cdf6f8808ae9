"""Compiler launchers: a folder of programs, named like the compilers, that stands first on PATH during a build.

One mechanism serves every backend. CMAKE_C_COMPILER_LAUNCHER reaches CMake only, a CC with a path or a prefix in it
breaks where it is split at blanks, and a project may call ``gcc`` by name whatever CC says; but setuptools, CMake,
Meson, and the cc crate all look for their compiler's bare name on PATH. Only cargo finds rustc by itself, and has
RUSTC_WRAPPER for it. What the launchers do is in `vbuild.build.rewriting`, which they run; each finds its settings
beside itself, since a build may clear its environment.
"""

import json
import marshal
import os
import py_compile
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from vbuild.build import rewriting
from vbuild.build.compilers import Compilers
from vbuild.build.plan import Rewriting


@dataclass(frozen=True, slots=True)
class Override:
    """A compiler command out of which flags of the project were taken; *added* are those of ours that it lacked.

    A command with *refused* flags only asked whether the compiler takes them, and was told no.
    """

    program: str
    sources: tuple[str, ...]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    refused: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> Self:
        """One line of the launchers' log."""
        entry = json.loads(line)
        lists = (tuple(entry[name]) for name in ("sources", "removed", "added", "refused"))
        return cls(entry["program"], *lists)


@dataclass(frozen=True, slots=True)
class Launchers:
    """Launchers as they stand in *folder*, and the log of what they change."""

    folder: Path
    log: Path
    source: Path
    has_rust: bool

    def environment(self, before: Mapping[str, str]) -> dict[str, str]:
        """The variables that put these launchers before the compilers of the environment *before*."""
        env = {"PATH": os.pathsep.join([str(self.folder), before.get("PATH", os.defpath)])}
        if self.has_rust:
            env["RUSTC_WRAPPER"] = str(self.folder / rewriting.RUSTC)
            # cargo does not see the flags that its wrapper adds: no two levels may share a folder of its results
            env["CARGO_TARGET_DIR"] = str(self.source / "target")
        return env

    def overrides(self) -> tuple[Override, ...]:
        """Every command so far that lost a flag, each different one once, in the order of the first.

        The log has those too which only gained ours.
        """
        if not self.log.exists():
            return ()
        lines = dict.fromkeys(self.log.read_text(encoding="utf-8", errors="replace").splitlines())
        return tuple(override for line in lines if (override := Override.parse(line)).removed)


def install(
    rules: Rewriting, compilers: Compilers, folder: Path, *, source: Path, environment: Mapping[str, str]
) -> Launchers:
    """Put into *folder* a launcher for every compiler there is, following *rules*.

    Paths below *source* are written into binaries relative to it. A RUSTC_WRAPPER of *environment* stays in use.
    """
    folder.mkdir(parents=True)
    launchers = Launchers(
        folder.absolute(), folder.absolute() / "overrides.jsonl", source.absolute(), bool(compilers.rust)
    )
    programs: dict[str, tuple[str, ...]] = {name: (str(path),) for name, path in compilers.programs}
    if compilers.rust:
        programs[rewriting.RUSTC] = (*environment.get("RUSTC_WRAPPER", "").split(),)
    settings = {
        "rules": asdict(rules),
        "programs": programs,
        "source": str(launchers.source),
        "log": str(launchers.log),
        "mapping": (f"-ffile-prefix-map={launchers.source}=.",),
        "rust_mapping": (f"--remap-path-prefix={launchers.source}=.",),
    }
    (folder / rewriting.SETTINGS).write_bytes(marshal.dumps(settings))
    program = launchers.folder / "rewriting.pyc"
    py_compile.compile(rewriting.__file__, str(program), doraise=True)
    for name in programs:
        _write(folder / name, [sys.executable, "-I", "-S", str(program), name])
    return launchers


def _write(file: Path, command: list[str]) -> None:
    # through sh, because a #! line can neither quote a path nor be longer than 127 bytes
    file.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    file.chmod(0o755)
