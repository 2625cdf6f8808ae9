"""Much downloaded projects, each built by its name alone, as somebody does who has read no manual.

    python -m tests.surveys.names FOLDER [NAME[==VERSION] …]

runs `vbuild matrix NAME==VERSION` with `--cpu v3` or `--cuda 80,90` for the projects of `CPU` and `CUDA`, or those
named, one after the other, and prints a row of a Markdown table for each as soon as it is there. Where that fails,
`vbuild init` writes the recipe. FOLDER/NAME keeps the logs, the recipe and the wheels. The exit status is 1 if some
project comes to nothing.

Imports are those that vbuild makes in qemu at the level of each wheel; where it makes none, pip installs the wheel, and
every compiled module of it is imported here, in qemu on a processor of that level. A wheel for some GPUs has the host
code of the plain one; what counts of it is the verdict on its GPU code.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

HEAD = """\
| project | result | seconds | wheels | import | why |
|---|---|---|---|---|---|"""
LIMIT, TIMED_OUT = 2400, 124
CPU = (
    *("charset-normalizer", "pyyaml", "cffi", "markupsafe", "aiohttp", "yarl", "multidict", "propcache", "frozenlist"),
    *("rpds-py", "greenlet", "wrapt", "websockets", "sqlalchemy", "psutil", "regex", "watchfiles", "jiter", "coverage"),
    *("msgpack", "httptools", "bcrypt", "kiwisolver", "xxhash", "zstandard", "tornado", "pymongo", "lz4", "brotli"),
    *("ruamel-yaml-clib", "safetensors", "ujson", "fastuuid", "argon2-cffi-bindings", "setproctitle", "mmh3"),
    *("simplejson", "zope-interface", "msgspec", "thrift", "hiredis"),
    # half an hour each, on two cores that others use, too
    *("cryptography", "pydantic-core", "lxml", "uvloop", "pynacl"),
)
CUDA = (
    *("pycudwt", "cuvec", "numcu", "custc", "kage-cucounter", "nimpa", "cuda-kernels", "metalerp", "tensorax"),
    *("pycuda", "spio", "cutwed", "cuprox", "crispr", "explodethosebits", "thinc-gpu-ops"),
    *("pfcuda", "pyradiomics-cuda", "qkmx", "cubrif"),
)
_MODULE = re.compile(r"((?:[A-Za-z_]\w*/)*[A-Za-z_]\w*)(?:\.cpython-[\w-]+|\.abi3)?\.so")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one command: its exit status, seconds, the report if it wrote one, and the end of its log."""

    status: int
    seconds: float
    report: Mapping[str, Any] | None
    error: str
    folder: Path

    @property
    def is_whole(self) -> bool:
        return not self.status and self.report is not None and not self.report["failures"]

    @property
    def cells(self) -> list[str]:
        wheels = self.report["wheels"] if self.report else []
        imports = (_imported(wheel, self.folder) for wheel in wheels)
        return [f"{self.seconds:.0f}", ", ".join(wheel["label"] or "plain" for wheel in wheels), ", ".join(imports)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--axes", help="instead of --cpu v3, or --cuda 80,90 for those of CUDA")
    given = parser.parse_intermixed_args(arguments)
    folder, unsound = given.folder.resolve(), 0
    print(HEAD, flush=True)
    for name in given.names or (*CPU, *CUDA):
        project = Requirement(name).name
        default = ["--cuda", "80,90"] if project in CUDA else ["--cpu", "v3"]
        row, is_whole = tried(name, given.axes.split() if given.axes else default, folder / project)
        unsound += not is_whole
        print(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |", flush=True)
    return 1 if unsound else 0


def tried(name: str, axes: Sequence[str], folder: Path) -> tuple[list[str], bool]:
    """The row of *name*, and whether all its wheels came to be."""
    folder.mkdir(parents=True, exist_ok=True)
    first = ran([name, *axes], folder / "at-once")
    version = first.report["wheels"][0]["wheel"].split("-")[1] if first.report and first.report["wheels"] else ""
    shown = f"{Requirement(name).name} {version}".strip()
    if first.is_whole:
        return [shown, "at once", *first.cells, ""], True
    recipe = folder / "recipe.toml"
    recipe.unlink(missing_ok=True)
    written = vbuild(["init", name, *axes, "-o", str(recipe)], folder / "init.log", folder)
    if written:
        return [shown, "not", *first.cells, first.error], False
    second = ran([str(recipe)], folder / "with-recipe")
    return [shown, "with init" if second.is_whole else "not", *second.cells, first.error], second.is_whole


def ran(arguments: Sequence[str], folder: Path) -> Outcome:
    """What becomes of ``vbuild matrix`` with *arguments*, whose wheels and log are below *folder*."""
    folder.mkdir(exist_ok=True)
    log, report, began = folder / "log", folder / "dist" / "report.json", time.monotonic()
    report.unlink(missing_ok=True)
    status = vbuild(["matrix", *arguments, "-o", str(folder / "dist")], log, folder)
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else None
    failures = found["failures"] if found else []
    errors = [f"{one['label'] or 'plain'}: {one['error'].splitlines()[0]}" for one in failures]
    if status == TIMED_OUT:
        errors = [f"not within {LIMIT} s"]
    elif status and not errors:
        errors = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return Outcome(status, time.monotonic() - began, found, "; ".join(errors), folder / "dist")


def vbuild(arguments: Sequence[str], log: Path, folder: Path) -> int:
    """The exit status of vbuild with *arguments*, run in *folder*."""
    command = ["nice", "timeout", str(LIMIT), sys.executable, "-m", "vbuild", *arguments]
    with log.open("w", encoding="utf-8") as out:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder, env=os.environ, check=False
        ).returncode


def _imported(wheel: Mapping[str, Any], dist: Path) -> str:
    """What becomes of the modules of *wheel*, one of the folder *dist*, on a processor of its level."""
    found = wheel["emulation"]
    if wheel["gpus"]:
        return f"GPU code {wheel['verdict']['gpu']}"
    if found and (found["tested"] or found["imported"]):
        return f"{'passed' if found['tested'] else 'imported'}, as {found['level']}"
    name = wheel["wheel"]
    folder = dist / "imports" / (wheel["label"] or "plain")
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / (name.removesuffix(f"-{wheel['label']}.whl") + ".whl" if wheel["label"] else name)
    shutil.copyfile(dist / name, plain)  # pip does not know variants
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder / "site"), str(plain)]
    if subprocess.run(pip, check=False).returncode:
        return "cannot be installed"
    with zipfile.ZipFile(plain) as archive:
        modules = [match[1].replace("/", ".") for path in archive.namelist() if (match := _MODULE.fullmatch(path))]
    cpu = "Haswell" if "v3" in (wheel["label"] or "") else "Nehalem"
    run = subprocess.run(
        ["qemu-x86_64", "-cpu", cpu, sys.executable, "-c", "; ".join(f"import {module}" for module in modules)],
        env={"PYTHONPATH": str(folder / "site"), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return f"passed, on {cpu}" if not run.returncode else f"fails on {cpu}: {run.stderr.strip().splitlines()[-1:]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
