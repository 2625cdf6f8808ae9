"""What ``import vbuild`` gives: every command as a function, with arguments as a person has them.

Paths are texts or `Path`; names are those of the command's options. A verb is imported when it is called. What vbuild
refuses raises a `VbuildError`, whose message names the file and says what was expected. Sizes are in bytes unless a
unit is named; MB are 10^6 bytes.
"""

from collections.abc import Callable, Iterable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vbuild.api.arguments import (
    attestations_of,
    axes_of,
    codec_of,
    cut_of,
    cuts_of,
    fetch_of,
    gpus_of,
    known,
    layout_of,
    machine_of,
    matrix_request,
    path_of,
    paths_of,
    places_of,
    plugins_of,
    shares_of,
    silent,
    state_inputs,
    texts_of,
    value_of,
)
from vbuild.api.options import (
    Layout,
    MatrixOptions,
    MirrorOptions,
    PublishOptions,
    SlimOptions,
    SplitOptions,
    StampOptions,
    StrPath,
)
from vbuild.errors import RepackageError, VariantError

if TYPE_CHECKING:
    from vbuild.build.init import WrittenRecipe
    from vbuild.hardware.cpu import Cpu
    from vbuild.hardware.driver import Dotted
    from vbuild.hardware.gpu import GpuList
    from vbuild.hardware.machine import Machine
    from vbuild.inspection.doctor import Checkup
    from vbuild.inspection.model import Contents
    from vbuild.mirroring.check import MirrorCheck
    from vbuild.mirroring.mirror import Mirrored
    from vbuild.publishing.check import Checklist
    from vbuild.publishing.conda.channel import IndexedSubdir
    from vbuild.publishing.oci.select import ImageSelection
    from vbuild.publishing.oci.slimming import SlimmedImage
    from vbuild.publishing.publish import PublishedLayout
    from vbuild.recipe.target import Target
    from vbuild.release.model import ReleaseResult
    from vbuild.slimming.in_place import Undone
    from vbuild.slimming.results import Slimmed, SlimmedEnvironment
    from vbuild.splitting.results import Split
    from vbuild.variants.doctor import Diagnosis
    from vbuild.variants.index import Indexed
    from vbuild.variants.select import Selection
    from vbuild.verification.install_check import InstallCheck
    from vbuild.verification.level_emulation import LevelReport
    from vbuild.verification.model import BenchReport, Verdict


def matrix(source: StrPath, output_dir: StrPath, **options: Unpack[MatrixOptions]) -> "ReleaseResult":
    """Build *source* for every target: a recipe, a project's folder, an sdist, or a name such as "mmh3==5.3.1".

    *output_dir* gets the wheels, a variants.json, report.json, report.html, and the logs of builds that failed. A
    target that fails is in the result's ``failures``, and the others are finished. `RecipeError` if the
    recipe is wrong, `BuildError` or `FetchError` if no build can start; then nothing is written.
    """
    from vbuild.release.matrix import matrix as verb

    request = matrix_request(**options)
    return verb(str(source), Path(output_dir), request, on_progress=options.get("on_progress", silent))


def init(
    source: StrPath,
    *,
    output: StrPath | None = None,
    cpu: "str | Iterable[str | Cpu] | None" = None,
    cuda: "str | Iterable[str] | GpuList | None" = None,
    toolkit: "str | Dotted | Iterable[str | Dotted] | None" = None,
    python: str | Iterable[str] | None = None,
) -> "WrittenRecipe":
    """Write a recipe for *source*, as `matrix` takes it, into the file *output*; by default as ``vbuild init`` does.

    The axes are those of `matrix`. `RecipeError`, and nothing written, if there is a recipe already.
    """
    from vbuild.build.init import init as verb

    return verb(str(source), axes_of(cpu, cuda, toolkit, python), file=path_of(output))


def collect(
    parts: "StrPath | Iterable[StrPath]",
    output_dir: StrPath,
    *,
    recipe: StrPath | None = None,
    compare: StrPath | None = None,
    on_progress: "Callable[[Target, str], None] | None" = None,
) -> "ReleaseResult":
    """Make one release of the folders *parts*, which `matrix` made with ``part=True``.

    *recipe* is what they are parts of: targets that no part has are then among the ``failures``. *output_dir* gets what
    `matrix` writes; *compare* is an earlier report.json. A `VbuildError`, and nothing written, if a part cannot be read
    or the parts are not of one release.
    """
    from vbuild.release.collect import collect as verb

    return verb(
        paths_of(parts),
        Path(output_dir),
        recipe=path_of(recipe),
        compare=path_of(compare),
        on_progress=on_progress or silent,
    )


def slim(
    wheels: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[SlimOptions]
) -> "tuple[Slimmed, ...]":
    """Cut the GPU code in *wheels*, files or folders of them, down to the GPUs asked for.

    Returns a result for each wheel that comes out, with sizes in bytes and what was cut. *output_dir* gets the wheels,
    and a variants.json if they are variants; if it is None nothing is written and the result says what would be.
    `HardwareError` for a GPU that does not exist, `RepackageError` if a wheel has no code for a GPU or a licence
    forbids changes, `WheelError` if a wheel is damaged.
    """
    from vbuild.slimming.request import Share
    from vbuild.slimming.slim import slim as verb
    from vbuild.workers.executor import Executor

    asked = known(options, SlimOptions)
    gpus, shares = gpus_of(asked.get("gpus", ())), shares_of(asked.get("variants", ()))
    if gpus and shares:
        raise RepackageError("gpus and variants: expected one of them, GPUs for one wheel or labels for a family")
    results = verb(
        paths_of(wheels),
        path_of(output_dir),
        shares=shares or (Share(gpus),),
        cuts=cuts_of(asked),
        codec=codec_of(fast=asked.get("fast", False)),
        accept_license=asked.get("accept_license", False),
        verify=asked.get("verify", True),
        executor=value_of(asked.get("executor", "local"), Executor.parse),
        on_progress=asked.get("on_progress", silent),
    )
    if asked.get("provenance"):
        for result in results:
            state_inputs("slim", asked, [result.path] if result.path else [], [result.wheel])
    return results


def slim_environment(
    place: StrPath | None = None,
    *,
    root: StrPath | None = None,
    backup: StrPath | None = None,
    dry_run: bool = False,
    **options: Unpack[SlimOptions],
) -> "SlimmedEnvironment":
    """Cut the GPU code of all that is installed in *place*, where it lies: ``slim --environment``.

    *place* is a venv, a conda prefix or a folder of packages, or None for the Python on PATH; *root* instead is the
    tree of an unpacked image. *backup* is a folder that keeps the old files, for `undo_slim`; with *dry_run* nothing is
    written. Of the options, those apply that say what goes, *accept_license* and *on_progress*. Returns what became of
    each distribution, in bytes, and which files were left, with reasons. `RepackageError` if there is no environment,
    or it cannot be written to; `RecipeError` if the disk is full: every file is then the old or the new one.
    """
    from vbuild.slimming.environment import slim_environment as verb
    from vbuild.slimming.request import Share
    from vbuild.wheel.installed import Environment

    asked = known(options, SlimOptions)
    if root is not None:
        environment = Environment.under(Path(root))
    else:
        environment = Environment.of_system() if place is None else Environment.at(Path(place))
    return verb(
        environment,
        Share(gpus_of(asked.get("gpus", ()))),
        cuts_of(asked),
        dry_run=dry_run,
        backup=path_of(backup),
        accept_license=asked.get("accept_license", False),
        on_progress=asked.get("on_progress", silent),
    )


def slim_images(
    place: StrPath, output_dir: StrPath | None = None, **options: Unpack[SlimOptions]
) -> "tuple[SlimmedImage, ...]":
    """Cut the GPU code of all that is installed in the images of an OCI image layout: ``slim oci:DIR``.

    *place* is the layout, or ``DIR:NAME`` for one of its images; *output_dir* becomes a layout with the same names, in
    which the layers that hold GPU code are new. If it is None nothing is kept. Of the options, those apply that say
    what goes, *accept_license* and *on_progress*. Returns what became of each image. `RepackageError` if there is no
    layout, an image has no packages, or *output_dir* is not empty.
    """
    from vbuild.publishing.oci.slimming import slim_images as verb
    from vbuild.slimming.request import Share

    asked = known(options, SlimOptions)
    return verb(
        Path(place),
        path_of(output_dir),
        Share(gpus_of(asked.get("gpus", ()))),
        cuts_of(asked),
        accept_license=asked.get("accept_license", False),
        on_progress=asked.get("on_progress", silent),
    )


def slim_packages(
    packages: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[SlimOptions]
) -> "tuple[Slimmed, ...]":
    """Cut the GPU code in *packages* for conda, files or folders of them, to the GPUs asked for: ``slim PKG.conda``.

    *output_dir* becomes a channel, or more of one: the packages in the folders of their platforms, and repodata. With
    *variants* each gets a build for machines with these GPUs, and the whole package is beside them; if it is None
    nothing is written and the result says what would be. Of the options, those apply that say what goes, *fast*,
    *accept_license*, *verify* and *on_progress*. `RepackageError` if a package has no code for a GPU, is damaged or
    contradicts itself, or a licence forbids changes.
    """
    from vbuild.publishing.conda.slimming import slim_packages as verb
    from vbuild.slimming.request import Share

    asked = known(options, SlimOptions)
    gpus, shares = gpus_of(asked.get("gpus", ())), shares_of(asked.get("variants", ()))
    if gpus and shares:
        raise RepackageError("gpus and variants: expected one of them, GPUs for one package or labels for a family")
    return verb(
        paths_of(packages),
        path_of(output_dir),
        shares=shares or (Share(gpus),),
        cuts=cuts_of(asked),
        fast=asked.get("fast", False),
        accept_license=asked.get("accept_license", False),
        verify=asked.get("verify", True),
        on_progress=asked.get("on_progress", silent),
    )


def undo_slim(backup: StrPath) -> "Undone":
    """Put the files that `slim_environment` kept in *backup* back where they were; the folder goes if all are back.

    Returns how many files and bytes came back, and which were left because they were changed since. `RepackageError` if
    *backup* is not such a folder, or its environment is gone.
    """
    from vbuild.slimming.in_place import undo

    return undo(Path(backup))


def split(
    wheels: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[SplitOptions]
) -> "Split":
    """Move bundled shared libraries out of *wheels*, files or folders of them, into wheels that these require.

    Returns what went where, with sizes in bytes. *output_dir* gets all wheels; if it is None nothing is written and the
    result says what would be. `RepackageError` if libraries cannot be taken out as asked, `WheelError` if a wheel is
    damaged, `FetchError` if an official wheel cannot be downloaded.
    """
    from vbuild.splitting.request import SMALLEST, OfficialPin, SplitRequest, cuda_version, place_of, stub_policy
    from vbuild.splitting.split import split as verb

    asked = known(options, SplitOptions)
    paths, gpus = paths_of(wheels), gpus_of(asked.get("gpus", ()))
    pin, cuda = asked.get("pin"), asked.get("cuda")
    request = SplitRequest(
        **{name: asked[name] for name in asked.keys() & _SPLITS},
        pin=OfficialPin(pin) if pin else None,
        cuda=value_of(cuda, cuda_version) or (),
        keep=texts_of(asked.get("keep")),
        move=texts_of(asked.get("move")),
        tries=texts_of(asked.get("tries")),
        stubs=stub_policy(asked.get("stubs", "auto")),
        smallest=asked.get("min_size", SMALLEST),
        fetch=asked.get("fetch_official", False),
        against=value_of(asked.get("against"), place_of),
        bill=asked.get("sbom", True),
    )
    result = verb(
        paths,
        path_of(output_dir),
        request=request,
        cut=cut_of(paths, gpus) if gpus else None,
        codec=codec_of(fast=asked.get("fast", False)),
        verify=asked.get("verify", True),
        on_progress=asked.get("on_progress", silent),
    )
    if asked.get("provenance"):
        state_inputs("split", asked, result.paths, [one.wheel for one in result.wheels])
    return result


# options of `split` that are attributes of a SplitRequest under the same name
_SPLITS = frozenset({"replace", "share", "rpath", "libs", "drop_unneeded", "outputs", "preload"})


def install_check(
    wheels: "StrPath | Iterable[StrPath]",
    *,
    absent: Iterable[str] = (),
    against: StrPath | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> "tuple[InstallCheck, ...]":
    """Install *wheels*, files or folders of them, with pip and with uv; load and import them: ``vbuild split --check``.

    Returns a result for each wheel and installer, whose ``ok`` says whether it works. *absent* are the libraries that
    no path led to before a split either, ``absent`` of its result; *against* is a folder or an index with what they
    require besides. `RepackageError` if no wheel can be installed.
    """
    from vbuild.index_client.configuration import Indexes
    from vbuild.verification.install_check import check

    def indexes() -> Indexes:
        return Indexes.configured().with_place(against) if against else Indexes.configured()

    return check(paths_of(wheels), absent=texts_of(absent), indexes=indexes, on_progress=on_progress or silent)


def stamp(wheel: StrPath, output_dir: StrPath, **options: Unpack[StampOptions]) -> Path:
    """Write the copy of *wheel* that has a variant label, or no longer has one, into *output_dir*; returns its path.

    `VariantError` if label, properties and metadata do not go together, `WheelError` if the wheel is damaged.
    """
    from vbuild.variants.document import Schema
    from vbuild.variants.model import NULL, Property
    from vbuild.variants.stamp import declaration_at, described, stamped, unstamped

    asked = known(options, StampOptions)
    label, null, verify = asked.get("label"), asked.get("null", False), asked.get("verify", True)
    if sum((label is not None, asked.get("hash_label", False), null, asked.get("remove", False))) != 1:
        raise VariantError("expected exactly one of label, hash_label, null and remove")
    if asked.get("remove"):
        return unstamped(Path(wheel), Path(output_dir), verify=verify)
    properties = [value_of(each, Property.parse) for each in asked.get("properties", ())]
    file = path_of(asked.get("metadata"))
    declaration = declaration_at(file) if file else None
    return stamped(
        Path(wheel),
        Path(output_dir),
        variant=NULL if null else described(properties, label=label, declaration=declaration),
        metadata=declaration.metadata if declaration else None,
        schema=value_of(asked.get("schema", Schema.PEP_850), Schema.versioned),
        verify=verify,
    )


def index(
    folder: StrPath, *, simple: StrPath | None = None, remove: str | Iterable[str] = (), verify: bool = True
) -> "tuple[Indexed, ...]":
    """Write the variants.json of each release whose variant wheels are in *folder*, and return what each lists.

    *simple* is a folder that gets a static simple index (PEP 503, 691, 658) with copies of all files. An index that is
    there already keeps its other releases, but for those in *remove*: "demo==1.0", or "demo" for all of a project.
    Every wheel is compared with its RECORD first, unless *verify* is off. `VariantError` if two wheels contradict each
    other, `WheelError` if one is damaged; then nothing is written.
    """
    from vbuild.variants.index import index as verb

    return verb(Path(folder), simple=path_of(simple), remove=texts_of(remove), verify=verify)


def index_channel(folder: StrPath) -> "tuple[IndexedSubdir, ...]":
    """Write the repodata of the channel *folder*, whose folders have packages for conda, and return what each lists.

    `RepackageError` if a package is damaged, or lies in the folder of another platform; then nothing is written.
    """
    from vbuild.publishing.conda.channel import index_channel as verb

    return verb(Path(folder))


def select(
    name: str,
    find_links: "StrPath | Iterable[StrPath]",
    *,
    machine: "StrPath | Machine | None" = None,
    version: str | None = None,
    run_plugins: bool = False,
    plugin_timeout: float = 10.0,
) -> "Selection":
    """Returns the wheel of project *name* at the places *find_links* that a machine gets, and the ranking of all.

    A place is a folder, or the URL of a page of links or of a simple index.
    *machine* is a machine.toml, an info JSON of conda or pixi, or a `Machine`; this machine if it is None. *version*
    leaves other versions out. With *run_plugins* the plugins that the release names are run, each for *plugin_timeout*
    seconds at most. `VariantError` if no wheel fits or a plugin cannot be run,
    `HardwareError` if the machine's file is wrong, `FetchError` for a place that cannot be read. Nothing is written.
    """
    from vbuild.variants.select import select as verb

    ask = plugins_of(plugin_timeout, silent) if run_plugins else None
    return verb(name, places_of(find_links), machine=machine_of(machine), version=version, ask=ask)


def select_image(folder: StrPath, *, machine: "StrPath | Machine | None" = None) -> "ImageSelection":
    """Returns the image in the image layout *folder* that a machine gets, and the ranking of all: ``select oci:DIR``.

    A layout with several indexes is ``DIR:NAME``. *machine* is as for `select`. `RepackageError` if there is no such
    layout or index, or no image fits. Nothing is written.
    """
    from vbuild.publishing.oci.model import placed
    from vbuild.publishing.oci.select import select_image as verb

    place, ref = placed(Path(folder))
    return verb(place, machine_of(machine), ref=ref)


def doctor(*, python: StrPath | None = None, machine: "StrPath | Machine | None" = None) -> "tuple[Diagnosis, ...]":
    """Returns whether each installed variant wheel is right for a machine, wrong ones first: ``select --doctor``.

    *python* is the interpreter whose packages are looked at, by default the running one; *machine* is as for `select`.
    `HardwareError` if *python* is no interpreter. Nothing is written.
    """
    from vbuild.variants.doctor import diagnosed

    return diagnosed(path_of(python), machine_of(machine))


def checkup(places: "StrPath | Iterable[StrPath]", *, gpus: "str | Iterable[str] | GpuList" = "native") -> "Checkup":
    """Returns on which of *gpus* the GPU code in *places* runs, environments or wheels: ``vbuild doctor``.

    For each library there is whether it runs natively, by JIT or not at all, the oldest driver, and what slimming would
    save in bytes; for "native" also whether installed variants are for this machine. `HardwareError` for a GPU that
    does not exist, or if this machine has none and none is named, `RepackageError` for a place that is not an
    environment, `WheelError` for a wheel that cannot be read.
    """
    from vbuild.hardware.driver import Nvidia
    from vbuild.inspection.doctor import checkup as verb

    asked = gpus_of(gpus)
    here = machine_of(None) if gpus == "native" else None
    return verb(paths_of(places), asked.every if asked else (), driver=Nvidia.here().driver, machine=here)


def verify(
    wheel: StrPath,
    *,
    cpu: "str | Cpu | None" = None,
    baseline: StrPath | None = None,
    allow: Iterable[str] = (),
    fetch: bool = False,
    attestations: bool = False,
    publisher: str | None = None,
    trust_root: StrPath | None = None,
) -> "Verdict":
    """Compare the code in *wheel* with what its name and metadata promise, and return the findings.

    *cpu* is the level to compare with if the wheel names none, as in "x86-64-v3"; *baseline* is the plain wheel of the
    same build, whose run-time dispatch is allowed; *allow* are regular expressions of functions or files that may
    exceed the level. With *attestations*, those of PEP 740 are checked without a network: against the trusted_root.json
    *trust_root*, by default Sigstore's, and *publisher*, the URL of a repository, if it is given. With *fetch*, -libs
    wheels that it requires, and attestations, are fetched if they do not lie beside it. ``failed`` of the result says
    whether a promise is broken. `WheelError` if the wheel cannot be read, `FetchError` if no index answers. Nothing is
    written.
    """
    from vbuild.hardware.cpu import Cpu
    from vbuild.verification.verify import verify as verb

    verdict = verb(
        Path(wheel),
        cpu=value_of(cpu, Cpu.parse),
        baseline=path_of(baseline),
        allow=texts_of(allow),
        fetch=fetch_of(fetch=fetch),
    )
    if not attestations:
        return verdict
    asked = attestations_of(publisher=publisher, trust_root=path_of(trust_root), fetch=fetch)
    from vbuild.verification.attestations import attested

    return attested(verdict, asked)


def run_levels(
    wheel: StrPath,
    *,
    cpu: "str | Cpu | None" = None,
    recipe: StrPath | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> "LevelReport":
    """Install *wheel* and import it as a CPU of each level in it would: ``vbuild verify --run-levels``.

    *cpu* is the level of a wheel that claims none, by default the baseline. *recipe* is one whose test is run at each
    level, too. ``failures`` of the result say what does not work, ``untried`` which levels this machine cannot run.
    `WheelError` if the wheel cannot be installed, `RecipeError` if the recipe is wrong.
    """
    from vbuild.hardware.cpu import Cpu
    from vbuild.recipe.model import Check, Recipe
    from vbuild.verification.level_runs import LevelSettings
    from vbuild.verification.level_runs import run_levels as verb

    check = Recipe.load(Path(recipe)).test if recipe else Check()
    settings = LevelSettings(check=check, cpu=value_of(cpu, Cpu.parse))
    return verb(Path(wheel), settings, on_progress=on_progress or silent)


def bench(
    wheels: "StrPath | Iterable[StrPath]",
    script: StrPath,
    *,
    rounds: int = 5,
    requires: Iterable[str] = (),
    on_progress: Callable[[str], None] | None = None,
) -> "BenchReport":
    """Time *script* with each of *wheels*, files or folders of them, in turns, and compare with the first.

    *script* prints lines such as "encrypt 12.5 ms", uses pyperf, or is a file of pytest-benchmark. Each wheel is run
    *rounds* times, at least twice, in an environment of its own that also has what the script *requires*. ``wheels`` of
    the result have seconds and ratios; ``untried`` of one says that this machine cannot run its level. `WheelError` if
    a wheel cannot be installed, or if the script fails or prints no figures.
    """
    from vbuild.recipe.model import Bench
    from vbuild.verification.bench import bench as verb
    from vbuild.verification.bench import wheels_to_compare

    settings = Bench(script=Path(script), requires=texts_of(requires), rounds=rounds)
    return verb(wheels_to_compare(paths_of(wheels)), settings, on_progress=on_progress or silent)


def inspect(wheel: StrPath, *, closure: bool = False, html: StrPath | None = None) -> "Contents":
    """Returns what is in *wheel*: libraries, GPU code by architecture, duplicates, and sizes in bytes.

    With *closure* also which library loads which. *html* is a file to write a page about the wheel to. `WheelError` if
    the wheel cannot be read, `RepackageError` if the page cannot be written.
    """
    from vbuild.inspection.inspect import compared, save_page
    from vbuild.inspection.inspect import inspect as verb

    (contents,) = compared([verb(Path(wheel), closure=closure)])
    if html:
        save_page(contents, Path(html))
    return contents


def publish(
    wheels: "StrPath | Iterable[StrPath]",
    output_dir: StrPath | None = None,
    *,
    layouts: Iterable[Layout],
    **options: Unpack[PublishOptions],
) -> "tuple[PublishedLayout, ...]":
    """Lay *wheels*, files or folders of them, out in each of *layouts*: ``output_dir/<layout>``, with a README.md.

    Returns a result for each layout, with its files and how to use them. If *output_dir* is None nothing is written and
    the result says what would be. `RepackageError`, and nothing written, if the wheels do not belong together, a layout
    has no place for one of them, or a layout's folder is there and not empty.
    """
    from vbuild.publishing.publish import publish as verb

    asked = known(options, PublishOptions)
    return verb(
        paths_of(wheels),
        path_of(output_dir),
        layouts=[layout_of(name, asked) for name in dict.fromkeys(layouts)],
        verify=asked.get("verify", True),
    )


def check(
    place: StrPath, *, pypi: bool = False, limit: int = 100, layout: Layout | None = None, verify: bool = True
) -> "Checklist":
    """Returns what keeps the releases at *place* from being published: for any index, or with *pypi* for PyPI, too.

    A place is a folder, or the URL of a page of links or of a simple index, whose releases are compared with what the
    pages say, too. *limit* is the size that the index allows a file, in PyPI's MB of 2^20 bytes. With *layout* the
    folder that `publish` made in that layout is checked instead. Members of the wheels in a folder are compared with
    RECORD, unless *verify* is off. ``failed`` of the result says whether there are
    errors. `RepackageError` if there is no such folder or nothing in it to publish, `FetchError` if there is no such
    page. Nothing is written.
    """
    from vbuild.publishing.check import check as verb
    from vbuild.publishing.check import check_layout

    if layout:
        return check_layout(Path(place), layout)
    return verb(places_of(place)[0], pypi=pypi, limit=limit, verify=verify)


def mirror(
    sources: "StrPath | Iterable[StrPath]", output_dir: StrPath | None = None, **options: Unpack[MirrorOptions]
) -> "Mirrored":
    """Make *output_dir* an index of what *sources* come to on a fleet's machines, cut to the GPUs that these have.

    *sources* are requirements.txt, pylock.toml or uv.lock files, or requirements such as "torch==2.9.1". Returns what
    the site has, with sizes in bytes. Without *output_dir* nothing is written, and what is fetched is thrown away.
    `HardwareError` for a machine or GPU that is not known, `BuildError` if requirements cannot be resolved,
    `FetchError` for a file that cannot be had, `WheelError` for one that is damaged, `RepackageError` if *output_dir*
    is something else: a site that was there is then as it was.
    """
    from vbuild.binary.edits import Strip
    from vbuild.hardware.gpu import Ptx
    from vbuild.hardware.machine import cpus_asked
    from vbuild.mirroring.fleet import Common, fleet_of
    from vbuild.mirroring.mirror import mirror as verb
    from vbuild.mirroring.model import MirrorRequest
    from vbuild.publishing.model import folder_url

    asked = known(options, MirrorOptions)
    (cpu, *_) = cpus_asked(str(asked.get("cpu") or "x86-64"))
    gpus = texts_of(asked.get("gpus")) or (("",) if asked.get("cpu") else ())
    common = Common(cpu, asked.get("driver"), asked.get("glibc") or "2.28", texts_of(asked.get("pythons")))
    request = MirrorRequest(
        per_machine=asked.get("per_machine", False),
        ptx=Ptx(asked.get("ptx", "auto")),
        recompress=asked.get("recompress"),
        strip=Strip(asked.get("strip") or Strip.NOTHING),
        drop=texts_of(asked.get("drop")),
        accept_license=asked.get("accept_license", False),
        local=asked.get("local", False),
        variants=asked.get("variants", False),
        prune=asked.get("prune", False),
        url=folder_url(url) if (url := asked.get("url")) else None,
        originals=path_of(asked.get("originals")),
    )
    return verb(
        [str(source) for source in ([sources] if isinstance(sources, str | PathLike) else sources)],
        path_of(output_dir),
        fleet_of(paths_of(asked.get("machines", ())), gpus, common),
        request,
        on_progress=asked.get("on_progress") or silent,
    )


def verify_mirror(folder: StrPath, *, attestations: bool = False, trust_root: StrPath | None = None) -> "MirrorCheck":
    """Hold every file, index page and lock of the mirror in *folder* against what its mirror.json says.

    With *attestations* also who published the originals (PEP 740), by the trusted_root.json *trust_root*, or Sigstore's
    own. Returns what is wrong, a sentence each. `RepackageError` if *folder* is no mirror, `WheelError` if the root of
    trust, or what reads attestations, is not there.
    """
    from vbuild.mirroring.check import checked_mirror

    if not attestations:
        return checked_mirror(Path(folder))
    asked = attestations_of(publisher=None, trust_root=path_of(trust_root), fetch=False)
    from vbuild.verification.attestations import attested_files

    return checked_mirror(Path(folder), attested=partial(attested_files, asked=asked))
