"""The bill of materials that a build's wheel begins with; each later step keeps it true.

    Job, Recipe, or what is known of a run of cibuildwheel -> Making -> the wheel with sboms/vbuild.cdx.json

What a bill says of a build was seen, and is the same on every machine that builds the same: what pins the source, the
compilers that ran and the packages that were installed, whatever else is there, and flags without paths. A project
folder has no hash there: nothing pins it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from vbuild.build.job import Job
from vbuild.errors import at
from vbuild.files.hashing import sha256_of
from vbuild.recipe.model import Recipe
from vbuild.recipe.source import Debian, Git, NativeSource, Sdist
from vbuild.recipe.target import Target
from vbuild.recipe.variables import masked_words
from vbuild.sbom.keeping import Changes, bill_of, path_of, revised
from vbuild.sbom.model import Making, Material, MaterialRole, package_url, public_url
from vbuild.toolchain.toolkit import Toolkit
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.write import edited

# variables that decide what code compilers make; and those that only some of them read
_FLAGS = re.compile(r"(C|CXX|CPP|LD|F|FC|RUST|NVCC_APPEND_|CUDA)FLAGS|CUDAARCHS|TORCH_CUDA_ARCH_LIST")
_READERS = (
    ({"gfortran", "flang"}, {"FFLAGS", "FCFLAGS"}),
    ({"nvcc"}, {"NVCC_APPEND_FLAGS", "CUDAFLAGS", "CUDAARCHS", "TORCH_CUDA_ARCH_LIST"}),
    ({"rustc"}, {"RUSTFLAGS"}),
)


def billed(wheel: Path, folder: Path, making: Making) -> Path:
    """*wheel* in *folder*, with a bill of materials that says how it was made; `WheelError` if it is damaged."""
    with open_wheel(wheel) as source, at(wheel.name):
        rows = [source.row(member) for member in source.members]
        earlier = bill_of(source)
        bills = [earlier] if earlier else []
        text = revised(source.name, rows, earlier=bills, changes=Changes(makings=(making,)))
        return edited(source, folder, source.name, edits={path_of(source.dist_info): text})


def patches_of(recipe: Recipe) -> tuple[Material, ...]:
    """The patches of *recipe*, which a worker that builds it gets within the source only."""
    return tuple(Material(MaterialRole.SOURCE, patch.name, sha256=sha256_of(patch)) for patch in recipe.build.patches)


def making_of(job: Job, recipe: Recipe, materials: Iterable[Material], hooks: str) -> Making:
    """What *job* is made of, *materials* and the *hooks* of its backend among it, and its flags."""
    parts = tuple(materials)
    build = making(
        recipe,
        job.target,
        parts=parts,
        toolkit=job.toolkit,
        environment=flags_read(job.plan.environment, parts),
        natives={prefix.name for prefix in job.prefixes},
    )
    return replace(build, settings=(*build.settings, ("backend", hooks)))


def flags_read(environment: Iterable[tuple[str, str]], materials: Iterable[Material]) -> dict[str, str]:
    """The variables of *environment* that a compiler among *materials* reads."""
    ran = {part.name for part in materials if part.role is MaterialRole.COMPILER}
    unread = {name for readers, names in _READERS if not ran & readers for name in names}
    return {name: text for name, text in environment if ran and name not in unread}


def making(
    recipe: Recipe,
    target: Target,
    *,
    parts: Iterable[Material] = (),
    toolkit: Toolkit | None = None,
    environment: Mapping[str, str] | None = None,
    natives: Iterable[str] = (),
) -> Making:
    """What a build for *target* takes: its source, those *natives*, a *toolkit*, other *parts*; flags of *environment*
    without paths.
    """
    named = {*natives}
    sources = [native for native in recipe.natives if native.name in named]
    materials = [
        _source(recipe.source, MaterialRole.SOURCE, recipe.name),
        *(_source(native.source, MaterialRole.NATIVE, native.name) for native in sources),
        *parts,
    ]
    if toolkit:
        # without packages of the index, only its identity says what it is
        identity = None if toolkit.pins else toolkit.identity
        materials.append(Material(MaterialRole.TOOLKIT, "CUDA Toolkit", str(toolkit.version), identity=identity))
        for pin in toolkit.pins:
            purl = package_url(pin.project, pin.version, file=pin.file)
            materials.append(Material(MaterialRole.TOOLKIT, pin.project, pin.version, purl, pin.sha256))
    settings = [("cpu", str(target.cpu))]
    if target.cuda:
        settings.append(("cuda-architectures", str(target.cuda.archs)))
    for name, value in (environment or {}).items():
        words = " ".join(_public_words(value))
        if words and _FLAGS.fullmatch(name):
            settings.append((f"flags:{name}", words))
    return Making(tuple(materials), tuple(settings))


def _public_words(flags: str) -> Iterator[str]:
    """The words of *flags* without paths, which are of this machine."""
    yield from (shown for word, shown in masked_words(flags) if "/" not in word)


def _source(source: NativeSource, role: MaterialRole, name: str) -> Material:
    match source:
        case Sdist():
            version = str(source.version)
            return Material(role, name, version, package_url(source.name, version), source.sha256)
        case Debian():
            return Material(role, name, source.version, f"pkg:generic/{source.name}@{source.version}", source.sha256)
        case Git():
            return Material(role, name, url=public_url(source.url), commit=source.commit)
        case _:
            return Material(role, name)
