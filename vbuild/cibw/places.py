"""Where things are inside the container of a build, which cibuildwheel starts with the host's files at /host.

    /project              the folder that cibuildwheel runs in, copied
    /host/<path>          the host's <path>: the kit, and CUDA toolkits
    /tmp/vbuild           launchers, first on PATH; made anew for each identifier by `vbuild.cibw.container`
    /tmp/vbuild/cuda      the CUDA_HOME with the launcher of nvcc

A build's environment has these paths before anything is there.
"""

from pathlib import Path, PurePosixPath

PROJECT = PurePosixPath("/project")
LAUNCHERS = PurePosixPath("/tmp/vbuild")  # noqa: S108 - nobody else is in the container
CUDA = LAUNCHERS / "cuda"
HOST = PurePosixPath("/host")


def inside(path: Path) -> PurePosixPath:
    """Where *path* of the host is in the container."""
    return HOST / path.resolve().relative_to("/")
