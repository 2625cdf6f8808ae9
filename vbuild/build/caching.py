"""ccache, put between the compiler wrappers and the compilers.

    compiler wrapper -> ccache /usr/bin/gcc ...    base folder, so that paths below it are no part of the key

Every build happens in a new folder, and ccache finds what it compiles again from the next one; for nvcc the flag that
maps the folder has to be two words then, ``-Xcompiler -ffile-prefix-map=…``. https://ccache.dev/manual/latest.html
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from vbuild.errors import BuildError

NAMES = frozenset({"ccache", "sccache"})
"""Programs that are compiler caches, of which a compiler may be a link to one, and CC may name one."""

Command = tuple[str, ...]


class Ccache(Struct, frozen=True):
    """The ccache *program* at work for the builds of one run, and the *variables* that its compilers need."""

    program: Path
    variables: Mapping[str, str]

    def prefix(self, command: Command) -> Command:
        """What to put before the compiler *command*, or nothing if that would not help, or is done already."""
        # zig cc has a cache of its own; and a distribution may have a folder of links to ccache
        if len(command) != 1 or Path(command[0]).resolve().name in NAMES:
            return ()
        return (str(self.program),)


def ccache(setting: str, base: Path, environment: Mapping[str, str]) -> Ccache | None:
    """The ccache for builds in the folder *base*, which is new for every run; None without one.

    *setting* is ``none``, ``ccache``, or ``auto``: the one on PATH, unless CC or CXX name a cache, or it cannot write.
    `BuildError`, with what to do, if it is asked for by name and cannot be used.
    """
    own = f"{environment.get('CC', '')} {environment.get('CXX', '')}".split()
    if setting == "none" or (setting == "auto" and any(Path(word).name in NAMES for word in own)):
        return None
    program = shutil.which("ccache", path=environment.get("PATH", os.defpath))
    if program is None:
        problem = "no ccache on PATH; install it: apt-get install ccache, or dnf install ccache"
    elif reason := _unusable(program, environment):
        problem = f"{program}: {reason}"
    else:
        # a toolkit or a compiler in a new folder is the same one where its bytes are the same
        check = environment.get("CCACHE_COMPILERCHECK") or "content"
        variables = {"CCACHE_BASEDIR": str(base), "CCACHE_NOHASHDIR": "1", "CCACHE_COMPILERCHECK": check}
        return Ccache(Path(program), variables)
    if setting == "auto":
        return None
    raise BuildError(f"build.cache: {problem}")


def _unusable(program: str, environment: Mapping[str, str]) -> str | None:
    """Why compiling with the ccache *program* would fail, or None if it would not."""
    command = [program, "--get-config", "cache_dir"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        return " ".join(ran.stderr.split()) or f"status {ran.returncode}"
    folder = Path(ran.stdout.strip())
    if not folder.is_absolute():  # XDG_CACHE_HOME is empty, for one: every compiler would have one where it runs
        return f"its folder {str(folder)!r} is no absolute path; set CCACHE_DIR"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return f"its folder {folder} cannot be written to: {error.strerror}; set CCACHE_DIR"
    return None
