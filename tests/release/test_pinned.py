"""What vbuild fetches is what its pin says, or one line: each place here has a file of the right name with other bytes.

    artefact                       where its pin is                      held again when it is used
    sdist, Debian source           recipe: sha256                        test_caches: an archive
    commit, its submodules         recipe: the commit's own hash         test_caches: a checkout
    wheel of a CUDA toolkit        toolkit_pins.json, recipe, vbuild.lock        test_caches: components, toolkits
    zig                            vbuild/toolchain/compilers.py           as a component
    build requirement              vbuild.lock                                   by uv, in each new environment
    library for `publish hwcaps`   its wheel: the hash of the file       tests/publishing/hwcaps/test_added.py
    wheel behind a stub            the stub                              tests/publishing/redirect/test_backend.py

An official wheel that `split` looks into has no pin: the library in it is compared with the bytes that were bundled.
"""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.version import Version

from tests.factories.sources import index, sdist, sha256
from tests.factories.toolkits import component, places
from tests.factories.wheels import wheel
from vbuild.build.environment import Environments
from vbuild.build.source import fetched_source
from vbuild.errors import VbuildError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.debian import VARIABLE
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.recipe.source import Debian, Sdist
from vbuild.toolchain import compilers
from vbuild.toolchain.interpreter import Interpreter
from vbuild.toolchain.toolkit_cache import ToolkitCache

PIN = "0" * 64


@dataclass(frozen=True, slots=True)
class Offer:
    """A file with other bytes than its pin says, and what fetches it, into the folder ``kept``."""

    file: Path
    fetch: Callable[[], object]


def _sdist(folder: Path, kept: Path) -> Offer:
    archive = sdist(folder / "files")
    there = Indexes(index_url=index(folder / "simple", archive, stated="").as_uri())
    return Offer(archive, lambda: fetched_source(Sdist("demo", Version("1.0"), PIN), kept, indexes=there))


def _debian(folder: Path, kept: Path) -> Offer:
    archive = folder / "pool/main/g/gmp/gmp_6.3.0.orig.tar.xz"
    archive.parent.mkdir(parents=True)
    archive.write_text("gmp")
    return Offer(archive, lambda: fetched_source(Debian("gmp", "6.3.0", PIN), kept, indexes=Indexes(no_index=True)))


def _toolkit(folder: Path, kept: Path) -> Offer:
    pin = component(folder / "wheels", "nvidia-nvvm", {"nvidia/cu13/nvvm/bin/cicc": "cicc"})
    other = type(pin)(pin.project, pin.version, pin.file, PIN)
    there = places(folder / "wheels")
    return Offer(folder / "wheels" / pin.file, lambda: ToolkitCache.at(kept).component(other, places=lambda: there))


def _zig(folder: Path, kept: Path) -> Offer:
    name = compilers._zig_pin(platform.machine()).file  # noqa: SLF001 - what it is pinned to is what is told
    path = wheel(folder / "wheels", name, {"ziglang/zig": "#!/bin/sh\n"})
    return Offer(path, lambda: compilers.provided_zig(store=kept, indexes=places(folder / "wheels")))


def _requirement(folder: Path, kept: Path) -> Offer:
    path = wheel(folder / "wheels", "bread-1.0-py3-none-any.whl", {"bread.py": ""})
    python = Interpreter.at(Path(sys.executable), os.environ)
    one = LockedRequirement(python.kind, ("bread",), (f"bread==1.0 --hash=sha256:{PIN}",))
    there = {"UV_NO_INDEX": "1", "UV_FIND_LINKS": str(path.parent), "UV_NO_VERIFY_HASHES": "1"}
    made = Environments(kept, lambda: there, lock=Lock("1", "2", "folder", requirements=(one,)))
    return Offer(path, lambda: made.having(["bread"], python))


OFFERS: dict[str, Callable[[Path, Path], Offer]] = {
    "sdist": _sdist,
    "Debian source": _debian,
    "wheel of a toolkit": _toolkit,
    "zig": _zig,
    "build requirement": _requirement,
}


@pytest.mark.parametrize("what", OFFERS)
def test_what_is_not_what_its_pin_says_is_refused_with_both_hashes_and_not_kept(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, tmp_path.as_uri())
    offer = OFFERS[what](tmp_path, tmp_path / "kept")
    found = offer.file.read_bytes()
    with pytest.raises(VbuildError) as refused:
        offer.fetch()
    said = str(refused.value)
    assert sha256(offer.file) in said
    assert PIN in said or what == "zig"
    assert not [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and path.read_bytes() == found]
    assert not [path for name in ("bread.py", "zig", "cicc") for path in (tmp_path / "kept").rglob(name)]
