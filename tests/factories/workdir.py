"""A folder in which a test runs the vbuild command, with a cache of its own; and what the command leaves on disk."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from vbuild.files.atomic import STAGE

WIDTH = 80
VBUILD = (sys.executable, "-m", "vbuild")

# what all users share, as it holds nothing of what vbuild has built
_SHARED = ("toolkits", "zig", "sdists", "commits")
_TOLD = ("CUDA", "NVCC", "CMAKE", "CC", "CXX", "CFLAGS", "CXXFLAGS")


@dataclass(frozen=True, slots=True)
class Workdir:
    """A folder to work in, and a user's cache with toolkits and packages, but no finished work and no answers.

    Commands start *inside* another, which they are arguments of.
    """

    folder: Path
    cache: Path
    inside: tuple[str, ...] = ()

    @classmethod
    def at(cls, folder: Path, *, shared: Sequence[str] = _SHARED) -> "Workdir":
        """A workdir in *folder*, whose cache has of vbuild's what is *shared*, by links."""
        cache, known = folder / "cache", user_cache_path()
        (cache / "vbuild").mkdir(parents=True)
        for entry in known.iterdir():
            if entry.name not in {"vbuild", "ccache"}:
                (cache / entry.name).symlink_to(entry)
        for name in shared:
            (known / "vbuild" / name).mkdir(parents=True, exist_ok=True)
            (cache / "vbuild" / name).symlink_to(known / "vbuild" / name)
        return cls(folder, cache)

    def environment(self, **variables: str) -> dict[str, str]:
        """The variables of a process here, without those that tell of a compiler or a toolkit."""
        plain = {name: text for name, text in os.environ.items() if not name.startswith(_TOLD)}
        return {**plain, "XDG_CACHE_HOME": str(self.cache), **variables}

    def vbuild(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """What ``vbuild ARGUMENTS`` says."""
        return self.ran(*VBUILD, *arguments, **variables)

    def ran(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.inside, *map(str, command)],
            cwd=self.folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            check=False,
        )

    def started(self, *arguments: object, **variables: str) -> subprocess.Popen[str]:
        """The process of ``vbuild ARGUMENTS``."""
        return subprocess.Popen(
            [*self.inside, *VBUILD, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finished_work(self) -> dict[str, str]:
        """What the store of builds and wheels has; what is being put into it, too."""
        found = file_digests(self.cache / "vbuild/builds")
        return {path: digest for path, digest in found.items() if not path.startswith(".locks")}

    def add_program(self, program: str, text: str, *, folder: str = "programs") -> Path:
        """A script *text* called *program* in *folder*, for the PATH."""
        path = self.folder / folder / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def path(self, folder: str = "programs") -> str:
        """The PATH with *folder* first."""
        return f"{self.folder / folder}{os.pathsep}{os.environ['PATH']}"


def refusal(ran: subprocess.CompletedProcess[str]) -> str:
    """What stands behind ``vbuild:`` in the one line that a refused command says on stderr."""
    assert ran.returncode == 1, (ran.stdout, ran.stderr)
    text = re.sub(r"^\[ *\d+ s\] .*\n", "", ran.stderr, flags=re.MULTILINE)  # a busy machine takes long
    assert text.startswith("vbuild: ")
    assert text.count("\n") == 1
    return text.removeprefix("vbuild: ").rstrip("\n")


def file_digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below *folder* by path, and empty for folders; links to folders are not followed."""
    found: dict[str, str] = {}
    for parent, folders, names in os.walk(folder):
        here = Path(parent).relative_to(folder)
        found |= {str(here / name): "" for name in folders}
        for name in names:
            data = (Path(parent) / name).read_bytes()
            found[str(here / name)] = hashlib.sha256(data).hexdigest()
    return found


def wheels(folder: Path) -> dict[str, bytes]:
    """The wheels in *folder*, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.whl"))}


def stage_folders(folder: Path) -> list[str]:
    """The folders for work in progress that are in *folder*."""
    return [path.name for path in folder.glob(f"{STAGE}*")]


def without_installed_toolkits(workdir: Workdir) -> Workdir:
    """*workdir* on a machine without a toolkit in the usual place; skips the test if nothing may be mounted."""
    hidden = 'for place in /usr/local/cuda*; do [ ! -d "$place" ] || mount -t tmpfs none "$place" || exit; done'
    return replace(workdir, inside=mounted(f'{hidden}; exec "$@"', "sh"))


def mounted(script: str, name: str) -> tuple[str, ...]:
    """What a command starts inside, so that *script*, whose ``$0`` is *name*, mounts something for it alone.

    Skips the test where nothing may be mounted.
    """
    inside = ("unshare", "-m", "sh", "-c", script, name)
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    return inside
