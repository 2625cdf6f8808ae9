"""Options of the public functions, which are keyword arguments: what each does, its unit; and its default.

An option without a default named is off, empty or None.
"""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.gpu import GpuList
    from vbuild.recipe.target import Target
    from vbuild.slimming.request import Share
    from vbuild.variants.model import Property
    from vbuild.workers.executor import Executor

StrPath = str | PathLike[str]
Layout = Literal["hwcaps", "redirect", "local", "suffix", "oci", "conda", "variants"]


class MatrixOptions(TypedDict, total=False):
    """Options of `matrix`.

    jobs         how many builds run at a time on this machine; as many as its cores and memory bear
    only         labels of the targets to build, "plain" for the wheel without a label; all
    python       Pythons to build for: some of the recipe's, any if it names none; all
    cpu          CPU levels, as "v2,v3", to build for instead of the recipe's
    cuda         GPUs, as "80,90+ptx" or "H100", to build for instead of the recipe's, a wheel for each
    toolkit      the version of CUDA that compiles for these, the newest that can; without GPUs, a wheel for each of
                 these versions, whose libraries are called by code without kernels
    part         leave what is for the whole release to `collect`
    fresh        build everything again, also what an earlier run built
    locked       use nothing but what the recipe's lock file names
    executor     "local", or "dask://HOST:PORT"
    on_progress  called with each target and the name of the step that it is at
    on_note      called, before anything is built, with each line on what was chosen for the user
    """

    jobs: int | None
    only: Iterable[str]
    python: Iterable[str]
    cpu: "str | Iterable[str | Cpu] | None"
    cuda: "str | Iterable[str] | GpuList | None"
    toolkit: "str | Dotted | Iterable[str | Dotted] | None"
    part: bool
    fresh: bool
    locked: bool
    executor: "str | Executor"
    on_progress: "Callable[[Target, str], None]"
    on_note: Callable[[str], None]


class SlimOptions(TypedDict, total=False):
    """Options of `slim`; give either *gpus* or *variants*, or neither to strip or drop only.

    gpus               GPUs to keep code for, as in "sm_90", "9.0", "80,86" or "90+PTX"
    variants           GPUs by label: each label becomes a variant wheel, as in `{"sm80": "80,86,89"}`
    ptx                "auto" keeps PTX for GPUs without machine code, "keep" also the newest, "none" none; "auto"
    strip              "debug" cuts debug data from libraries, "unneeded" all local symbols
    drop               globs of members to leave out; * also crosses slashes
    zstd               compress kept GPU code again; it then needs the driver of CUDA 12.4 or later; None, the default,
                       does so in variants that need such a driver anyway
    allow_unsupported  go on if a wheel has no code for a GPU asked for
    accept_license     go on if the wheel's licence forbids changes
    force              cut libraries that GNU strip would destroy later
    provenance         write <wheel>.provenance.json, ready to sign, next to each wheel
    on_progress        called with the wheel at work, and the bytes done and to do
    """

    gpus: "str | Iterable[str | GpuList]"
    variants: "Mapping[str, str | Iterable[str]] | Iterable[Share]"
    ptx: Literal["auto", "keep", "none"]
    strip: Literal["debug", "unneeded"] | None
    drop: Iterable[str]
    zstd: bool | None
    allow_unsupported: bool
    accept_license: bool
    force: bool
    provenance: bool
    on_progress: Callable[[str, int, int], None]


class SplitOptions(TypedDict, total=False):
    """Options of `split`.

    replace         require official wheels for bundled libraries that are theirs, byte for byte; True
    share           move libraries that several wheels have into a wheel of shared libraries; True
    rpath           also find CUDA libraries that are needed and not bundled, by RPATH
    cuda            the CUDA version that needed libraries are from, as in "12" or "12.6"
    keep            globs of libraries that stay where they are
    move            globs of libraries that move whatever may open them by their paths
    tries           commands to run before and after: what stays only because of its path moves if they do the same
    libs            the name of the wheel of shared libraries, with ==VERSION or without; PROJECT-libs
    against         a folder or a simple index: a wheel of shared libraries there is required if it has the same
    min_size        share libraries only if that saves this many bytes; 1,000,000
    provenance      write <wheel>.provenance.json, ready to sign, next to each wheel
    allow_builds    for *tries*, build requirements that have no wheel, which runs their code
    on_progress     called with what is done at the moment, and the bytes done and to do
    """

    replace: bool
    share: bool
    rpath: bool
    cuda: str | tuple[int, ...] | None
    keep: Iterable[str]
    move: Iterable[str]
    tries: str | Iterable[str]
    libs: str | None
    against: StrPath | None
    min_size: int
    provenance: bool
    allow_builds: bool
    on_progress: Callable[[str, int, int], None]


class StampOptions(TypedDict, total=False):
    """Options of `stamp`; give exactly one of *label*, *null* and *remove*.

    label       the variant label: a-z, 0-9, _ and dots
    null        make the null variant, which has no properties and ranks after all others
    remove      take the label and variant.json away
    properties  properties of the variant, as in "x86_64 :: level :: v3"
    metadata    a TOML file with a [variant] table: priorities and providers
    """

    label: str | None
    null: bool
    remove: bool
    properties: "Iterable[str | Property]"
    metadata: StrPath | None


class MirrorOptions(TypedDict, total=False):
    """Options of `mirror`.

    machines        files that describe the machines of the fleet, as `select` reads them
    gpus            lists of GPUs, as "H100" or "80,90": a machine for each, with what the next four say
    driver          NVIDIA's driver there, as "580", or its CUDA, as "12.8"; not known
    pythons         the Pythons there, a machine for each; the running one
    recompress      compress GPU code better, or do not; where the drivers of all machines are known to read it
    strip           "debug": debug data goes; "unneeded": all local symbols
    drop            globs of files to leave out
    accept_license  cut wheels whose licence forbids changes
    variants        besides, a variant wheel for each kind of GPUs, which uv chooses
    prune           remove files that no machine installs any more
    url             where the site will be served, which locks then name instead of paths
    originals       a folder that keeps the original files, and is looked into before anything is fetched
    allow_builds    build requirements that have no wheel, to ask what they require, which runs their code
    on_progress     called with the name of a file, the bytes fetched, and those to fetch
    """

    machines: "StrPath | Iterable[StrPath]"
    gpus: str | Iterable[str]
    driver: str | None
    pythons: str | Iterable[str]
    recompress: bool | None
    strip: Literal["debug", "unneeded"] | None
    drop: str | Iterable[str]
    accept_license: bool
    variants: bool
    prune: bool
    url: str | None
    originals: StrPath | None
    allow_builds: bool
    on_progress: Callable[[str, int, int], None]


class PublishOptions(TypedDict, total=False):
    """Options of `publish`. Those after *url* are for the layout that they name, and do nothing in the others.

    url             where the output folder will be served
    add             hwcaps: pairs of a CPU level and a wheel to add as that level, as in `[("v3", "other.whl")]`
    by_hardware     redirect: choose by CPU and GPU, not by tags only
    by_installed    redirect: one sdist of wheels built against several versions of a package; the one installed decides
    base            oci: the image layout to build on, DIR or DIR:NAME
    map             conda: names of required projects there, as in `{"torch": "pytorch"}`
    """

    url: str | None
    add: "Iterable[tuple[str | Cpu, StrPath]]"
    by_hardware: bool
    by_installed: bool
    base: StrPath | None
    map: Mapping[str, str] | Iterable[tuple[str, str]]
