"""The program that puts compiler wrappers into a container of cibuildwheel; it runs before each build there.

    python -I -S -B /host/KIT/vbuild/build/cibuildwheel/container.py /host/KIT/runs/RUN
      settings.json, the compilers on PATH -> /tmp/vbuild: compiler wrappers of the compilers, rustc, nvcc, auditwheel
                                              /host/KIT/runs/RUN/logs/IDENTIFIER: what they write

It starts with the Python of the identifier, which may be any that cibuildwheel builds for, down to 3.9, and goes on
with a faster one if the image has one: compiler wrappers run once for each call of a compiler. An error is one line
that begins with ``vbuild:``.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SAID = "vbuild: "
LOST = (
    "what vbuild adds to the environment option of cibuildwheel is lost: a line break or a comment in the project's "
    "ends it; expected one line"
)

_PREFERRED = (3, 11)  # the first that starts fast, and that the wrapper of nvcc runs on
_CHOSEN = "VBUILD_PYTHON"
MOUNT = "cibuildwheel mounts the host at /host, unless disable-host-mount is set or the engine is on another machine"
_ASK = "import sys; print(sys.implementation.name, *sys.version_info[:2], sys.executable)"
_PYTHONS = "/opt/python"
_FIRST = ("cc", "gcc", "clang")  # the compilers that are asked, the first that is there

# adds its arguments and becomes the next auditwheel on PATH
_AUDITWHEEL = """#!/bin/sh
folder={folder}
rest=
IFS=:
for entry in $PATH; do
    [ "$entry" = "$folder" ] || rest="$rest:$entry"
done
unset IFS
PATH=${{rest#:}}
export PATH
added=
for word; do
    shift
    set -- "$@" "$word"
    if [ -z "$added" ] && [ "$word" = repair ]; then
        set -- "$@" {arguments}
        added=yes
    fi
done
exec auditwheel "$@"
"""


def main(run: Path, environment: dict[str, str]) -> None:
    settings = json.loads((run / "settings.json").read_text(encoding="utf-8"))
    if _CHOSEN not in environment:
        python = wrapper_python(environment.get("PATH", os.defpath))
        os.execve(python, [python, "-I", "-S", "-B", *sys.argv], {**environment, _CHOSEN: python})  # noqa: S606
    if environment.get("PATH", "").split(os.pathsep)[0] != settings["wrappers"]:
        raise SystemExit(f"{SAID}{LOST}")
    if platform.machine() != settings["machine"]:
        raise SystemExit(f"{SAID}the image is of {platform.machine()}, expected {settings['machine']}: set CIBW_ARCHS")
    if settings["nvcc"] and sys.version_info < _PREFERRED:
        raise SystemExit(
            f"{SAID}the wrapper of nvcc needs Python {'.'.join(map(str, _PREFERRED))}, and the image has none: "
            f"expected one in {_PYTHONS} or on PATH"
        )
    logs = run / "logs" / environment.get("CIBUILDWHEEL_BUILD_IDENTIFIER", "build")
    try:
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "started").touch()
    except OSError as error:
        raise SystemExit(f"{SAID}{logs} cannot be written from the container: {error.strerror}; {MOUNT}") from error
    put_wrappers(settings, logs, environment)


def put_wrappers(settings: dict[str, Any], logs: Path, environment: dict[str, str]) -> None:
    from vbuild.toolchain import compiler_program, compiler_wrapper  # noqa: PLC0415 - see `main`

    folder = Path(settings["wrappers"])
    shutil.rmtree(folder, ignore_errors=True)
    compilers = compiler_wrapper.compilers_on(environment.get("PATH", os.defpath))
    rules: dict[str, tuple[str, ...]] = {name: tuple(value) for name, value in settings["rules"].items()}
    if not settings["is_baseline"] and compilers:
        # that of CC, or else one that a build is likely to take
        words = [Path(word).name for word in environment.get("CC", "").split()]
        named = [compilers[name] for name in (*words, *_FIRST) if name in compilers]
        first = (named or list(compilers.values()))[0]
        check_compiler(first, settings)
        marking = compiler_wrapper.marking(str(first), settings["cpu"], str(logs / "empty.so"))
        if rules["link"] and subprocess.run(marking, capture_output=True, check=False).returncode:
            rules["link"] = ()
    folder.mkdir(parents=True)
    programs: dict[str, tuple[str, ...]] = {name: (str(path),) for name, path in compilers.items()}
    programs[compiler_program.RUSTC] = tuple(environment.get(settings["wrapper"], "").split())
    nvcc, nvcc_settings = settings["nvcc"], None
    mapping = (f"-ffile-prefix-map={settings['project']}=.",)
    if nvcc:
        toolkits = (folder / "cuda", Path(nvcc["nvcc"]).parents[1])
        if not os.access(nvcc["nvcc"], os.X_OK):
            problem = f"{nvcc['nvcc']} cannot be run in the container; expected the toolkit of the host there"
            raise SystemExit(f"{SAID}{problem}")
        # nvcc takes gcc by itself
        host = "" if "gcc" in compilers or "clang++" not in compilers else "clang++"
        aliases = tuple(map(tuple, nvcc["aliases"]))
        nvcc_settings = {
            "rules": {**nvcc, "aliases": aliases, "append": tuple(nvcc["append"]), "host": host},
            "command": (nvcc["nvcc"],),
            "mapping": (*mapping, *(f"-ffile-prefix-map={toolkit}=cuda" for toolkit in toolkits)),
            "compilers": {name: str(path) for name, path in compilers.items()},
            "log": str(logs / "nvcc.jsonl"),
        }
    compiler_wrapper.write_wrappers(
        folder,
        {
            "rules": rules,
            "programs": programs,
            "variables": {},
            "source": settings["project"],
            "log": str(logs / "overrides.jsonl"),
            "calls": str(logs / "calls"),
            "objects": str(logs / "objects"),
            "mapping": mapping,
            "rust_mapping": (f"--remap-path-prefix={settings['project']}=.",),
            "nvcc": nvcc_settings,
        },
        toolkit=Path(nvcc["nvcc"]).parents[1] if nvcc else None,
    )
    if settings["auditwheel"]:
        text = _AUDITWHEEL.format(folder=shlex.quote(str(folder)), arguments=shlex.join(settings["auditwheel"]))
        (folder / "auditwheel").write_text(text, encoding="utf-8")
        (folder / "auditwheel").chmod(0o755)


def check_compiler(compiler: Path, settings: dict[str, Any]) -> None:
    from vbuild.toolchain import compiler_wrapper  # noqa: PLC0415 - as above

    ran = subprocess.run([str(compiler), *compiler_wrapper.QUESTION], capture_output=True, text=True, check=False)
    macros = {name: int(value) for name, value in compiler_wrapper.MACRO.findall(ran.stdout)}
    family = "clang" if "__clang_major__" in macros else "gcc"
    version = macros.get("__clang_major__", macros.get("__GNUC__", 0))
    if settings["machine"] == "x86_64" and version < compiler_wrapper.KNOWS_LEVELS[family]:
        expected = " or ".join(f"{name} {first}" for name, first in compiler_wrapper.KNOWS_LEVELS.items())
        raise SystemExit(
            f"{SAID}{family} {version} of the image does not know -march={settings['cpu']}; expected {expected}, or "
            f"newer: choose another image, such as manylinux_2_28"
        )


def wrapper_python(path: str) -> str:
    """The Python for compiler wrappers: a fast one of the image, or this one."""
    folders = sorted((minor, folder) for folder in Path(_PYTHONS).glob("cp3*") if (minor := _minor(folder.name)))
    named = [str(folder / "bin" / "python") for minor, folder in folders if minor >= _PREFERRED[1]]
    on_path = [program for name in ("python3", "python") if (program := shutil.which(name, path=path))]
    return next((fast for python in (*named, *on_path) if (fast := _fast(python))), sys.executable)


def _minor(name: str) -> int:
    """12 of ``cp312-cp312``; 0 for other names and builds without the GIL."""
    digits = name.partition("-")[0][len("cp3") :]
    return int(digits) if digits.isdigit() and not name.endswith("t") else 0


def _fast(python: str) -> str:
    try:
        ran = subprocess.run([python, "-I", "-S", "-c", _ASK], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    name, _, rest = ran.stdout.strip().partition(" ")
    if ran.returncode or name != "cpython":
        return ""
    major, minor, program = rest.split(" ", 2)
    return program if (int(major), int(minor)) >= _PREFERRED else ""


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    main(Path(sys.argv[1]), dict(os.environ))
