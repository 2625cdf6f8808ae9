"""How soon vbuild is at work: help, against a Python that does nothing, and the first compiler of a build."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.figure import Broken, Figure, Installed, Made, Measure, Peer, Sample, Setting
from tests.benchmarks.measuring import command, ran, timed, vbuild

RECIPES = Path(__file__).parents[2] / "recipes"
CUDA_PROJECT = Path(__file__).parents[1] / "projects" / "setuptools-cuda"
COMPILERS = ("gcc", "g++")
LOG = "compiled"


def figures() -> Iterator[Figure]:
    yield Figure(
        name="help",
        what="`vbuild --help`",
        measure=timed(vbuild("--help")),
        peer=Peer("`python -c pass`", timed(command(sys.executable, "-c", "pass"))),
        reach=7,
        pairs=21,
    )
    for name, source, what in (
        (
            "compiler",
            RECIPES / "annoy.toml",
            "from `vbuild matrix recipes/annoy.toml` to the first compiler, sdist and pages of the index kept",
        ),
        ("compiler-cuda", CUDA_PROJECT, "the same of a small CUDA project, toolkit kept, too"),
    ):
        wrappers = Made(logging_compilers, (str(source),), by_vbuild=True)
        yield Figure(
            name=name,
            what=what,
            measure=until_compiler(source, wrappers),
            limit=0.8,
            inputs=(wrappers,),
            tools=COMPILERS,
        )


def logging_compilers(folder: Path, vbuild: Installed, source: str) -> None:
    """Compilers in *folder* that note when they compile. *source* is built once, so that vbuild knows what they are."""
    for name in COMPILERS:
        wrapper = folder / name
        # nvcc has the host's compiler preprocess before it compiles; -dM is a question, which is asked once
        noting = f'case " $* " in *" -dM "*) ;; *" -c "*|*" -E "*) date +%s.%N >> {folder / LOG} ;; esac'
        wrapper.write_text(f'#!/bin/sh\n{noting}\nexec {shutil.which(name)} "$@"\n')
        wrapper.chmod(0o755)
    command: Sequence[str | Path] = [vbuild.vbuild, "matrix", source, "-o", folder / "dist", "--fresh"]
    ran(command, folder, env=_compiling(folder))


def until_compiler(source: Path, wrappers: Made) -> Measure:
    """The seconds from the start of ``vbuild matrix`` for *source* until the first compiler compiles something.

    uv asks no index again, as for the ten minutes for which PyPI calls its pages fresh: how long one takes to answer,
    twice, says nothing of vbuild.
    """

    def measured(setting: Setting) -> Sample:
        folder = setting.inputs[wrappers]
        log = folder / LOG
        log.unlink(missing_ok=True)
        matrix: Sequence[str | Path] = [setting.vbuild.vbuild, "matrix", source, "-o", "dist", "--fresh"]
        begun = time.time()
        process = subprocess.Popen(
            matrix,
            cwd=setting.folder,
            env={**os.environ, **_compiling(folder), "UV_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.005)
        process.terminate()
        process.wait()
        if not log.exists():
            raise Broken("vbuild matrix compiled nothing")
        return Sample(float(log.read_text().split()[0]) - begun)

    return measured


def _compiling(folder: Path) -> dict[str, str]:
    """The variables with which the compilers in *folder* are used, and ccache has no answers."""
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "CCACHE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": ""}
