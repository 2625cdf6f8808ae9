"""How the wheels of a CUDA Toolkit become the folder that compilers and build systems know as CUDA_HOME.

    nvidia/cu13/{bin,nvvm,include,lib}   the same in the root
    nvidia/nccl/{include,lib}, …         the same in the root
    nvidia/cu13/{cccl,cuda_cccl}/lib     lib: their CMake files look for include two folders above (13.2 and later)
    *.dist-info/licenses                 licenses/<project>
    lib64, nvvm/lib64                    links to lib
    targets/x86_64-linux/{include,lib}   links to the same in the root; nvcc.profile of 13.0 and CMake look there
    lib/libcudart.so                     a link to libcudart.so.13, so for every library
lib/stubs/libcuda.so                 made here, to link with where no driver is
    version.json                         what the components are

Files are hard links to those of the unpacked wheels where the file system has them.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from vbuild.errors import ToolkitError
from vbuild.linking import linked
from vbuild.toolkit.model import Pin
from vbuild.toolkit.stub import add_stubs

# NVIDIA's names for the folders of targets; an aarch64 server is one of its "server base system architecture"
_TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}
_CCCL = frozenset({"cccl", "cuda_cccl"})
_LIBRARY = re.compile(r"(?P<name>lib.+\.so)(\.\d+)+")
_SHARED = "nvidia"


def lay_out(root: Path, components: Mapping[Pin, Path], *, machine: str, release: str) -> None:
    """Make *root*, a new folder, the CUDA_HOME of the unpacked *components*, for Linux on *machine*.

    *release* is the version for version.json. `ToolkitError` where two components have different files of one name,
    or one has nothing for a toolkit; `OSError` where there is no room.
    """
    root.mkdir()
    placed: dict[str, Pin] = {}
    for pin, folder in sorted(components.items()):
        files = {target: folder / path for path in _files(folder) if (target := _place(path, pin))}
        if all(target.startswith("licenses/") for target in files):
            raise ToolkitError(f"{pin}: nothing in it for a toolkit; expected files below {_SHARED}/")
        for target, source in files.items():
            if target not in placed:
                _link(source, root / target)
            elif source.read_bytes() != (root / target).read_bytes():
                raise ToolkitError(f"{pin}: {target} is another file in {placed[target]}")
            placed.setdefault(target, pin)
    _add_links(root, _TARGETS.get(machine, f"{machine}-linux"))
    add_stubs(root, machine)
    (root / "version.json").write_text(json.dumps(_versions(components, release), indent=2) + "\n", encoding="utf-8")


def _files(folder: Path) -> Iterator[PurePosixPath]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (PurePosixPath((Path(parent) / name).relative_to(folder).as_posix()) for name in sorted(names))


def _place(path: PurePosixPath, pin: Pin) -> str | None:
    """Where in the root the member *path* of a wheel goes; None for what has no place there."""
    first, *rest = path.parts
    if first.endswith(".dist-info"):
        is_licence = rest[0] == "licenses" or rest[0].lower().startswith("licen")
        return f"licenses/{pin.project}/{rest[-1]}" if is_licence else None
    # the second folder is cu13, nccl, …; files and folders with a dot are notes of whoever made the package
    if first != _SHARED or len(rest) < 3 or any(part.startswith(".") for part in rest) or rest[-1] == "__init__.py":  # noqa: PLR2004 - as above
        return None
    _, top, *inner = rest
    if top in _CCCL:
        return "/".join(inner) if inner[0] == "lib" else f"licenses/{pin.project}/{inner[-1]}"
    return "/".join((top, *inner))


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    linked(source, target)


def _add_links(root: Path, target: str) -> None:
    lib, include = root / "lib", root / "include"
    for folder in (lib, include):
        folder.mkdir(exist_ok=True)
    (root / "lib64").symlink_to("lib")
    if (root / "nvvm").is_dir():
        (root / "nvvm" / "lib64").symlink_to("../lib")
    (root / "targets" / target).mkdir(parents=True)
    for folder in (lib, include):
        (root / "targets" / target / folder.name).symlink_to(f"../../{folder.name}")
    (root / "targets" / target / "lib64").symlink_to("../../lib")
    for name, file in _unversioned(path.name for path in lib.iterdir()).items():
        (lib / name).symlink_to(file)


def _unversioned(names: Iterable[str]) -> dict[str, str]:
    """The links that linkers look for: ``libcudart.so`` to ``libcudart.so.13``."""
    present = sorted(names)
    links: dict[str, str] = {}
    for file in present:
        if (match := _LIBRARY.fullmatch(file)) and match["name"] not in present:
            links.setdefault(match["name"], file)
    return links


def _versions(pins: Iterable[Pin], release: str) -> dict[str, dict[str, str]]:
    components = {pin.project: {"name": pin.project, "version": pin.version} for pin in sorted(pins)}
    return {"cuda": {"name": "CUDA SDK", "version": release}, **components}
