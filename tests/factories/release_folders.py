"""Folders of files as they are before they are published: plain wheels, variants, an sdist and variants.json."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tests.factories.variants import document, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.publishing.check import check
from vbuild.variants.index import index

LINUX = "manylinux_2_17_x86_64"
PLAIN = f"demo-1.0-cp311-cp311-{LINUX}.whl"
V2, V3 = (f"demo-1.0-cp311-cp311-{LINUX}-x86_64_{level}.whl" for level in ("v2", "v3"))
SDIST = "demo-1.0.tar.gz"


def release_wheel(folder: Path, name: str = PLAIN, files: Mapping[str, bytes | str] | None = None, **more: str) -> Path:
    """The wheel *name*, with the variant.json that its label says; *more* is as for `wheel`."""
    label = name.removesuffix(".whl").rpartition("-")[2]
    document_of = {}
    if label.startswith("x86_64_"):
        metadata = document(variant(label, f"x86_64 :: level :: {label.removeprefix('x86_64_')}"))
        document_of[f"{dist_info_of(name)}/variant.json"] = metadata.pack()
    return wheel(folder, name, {**document_of, **(files or {})}, metadata=more.get("metadata", ""))


def sdist(
    folder: Path, name: str = SDIST, *, lines: str | None = None, top: str | None = None, version: str = "2.2"
) -> Path:
    """The sdist *name* with a PKG-INFO, with more *lines*."""
    stem = name.removesuffix(".tar.gz")
    project, _, number = stem.rpartition("-")
    text = f"Metadata-Version: {version}\nName: {project}\nVersion: {number}\n{lines or ''}"
    files = {"setup.py": "", "demo.egg-info/PKG-INFO": "not this one", "PKG-INFO": text}
    return tarball(folder / name, {f"{top or stem}/{path}": data for path, data in files.items()})


def tarball(path: Path, files: Mapping[str, str]) -> Path:
    """The gzipped tar archive *path* of *files*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def release_folder(folder: Path, *names: str) -> Path:
    """A sound release in *folder*: the wheels *names*, plain, v2 and v3 where there are none; an sdist, the index."""
    for name in names or (PLAIN, V2, V3):
        release_wheel(folder, name)
    sdist(folder)
    index(folder)
    return folder


def problems_found(folder: Path, *, pypi: bool = False) -> list[str]:
    """What is wrong with *folder*, a line for each problem."""
    return [
        f"{found.severity} {found.rule}: {found.place}: {found.what}" for found in check(folder, pypi=pypi).problems
    ]


def plain_release(folder: Path) -> Path:
    """What PyPI takes: a plain wheel and an sdist."""
    return release_folder(folder, PLAIN)
