"""Texts: variant documents, recipes, index pages, image layouts, reports, a machine's description, file names.

Seeds of recipes are those in `recipes`, with every block of TOML in what is told there about keys.
"""

import atexit
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import jsonschema  # noqa: F401 - the first report read would load it, in more time than an input may take
from msgspec.structs import replace
from unearth import PackageFinder
from unearth.fetchers import PyPIClient

from tests.factories.reports import data as report_of
from tests.factories.reports import entry, failure
from tests.factories.variants import document, metadata, variant
from tests.fuzz.target import Target, folder, written
from tests.fuzz.values import html_changed, json_changed, toml_changed
from vbuild.config.table import Table
from vbuild.errors import VbuildError
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.driver import Dotted
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import Problems, client_of, finders, listed_in, packages_at
from vbuild.mirroring.model import FleetMachine
from vbuild.mirroring.resolution import resolved
from vbuild.publishing.conda.channel import checked_index
from vbuild.publishing.oci.model import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE, ImageFolder
from vbuild.recipe.model import Recipe
from vbuild.release.report import Report
from vbuild.splitting.request import SplitRequest
from vbuild.variants.document import Document, Schema, combine
from vbuild.variants.model import VariantProvider
from vbuild.wheel.name import WheelName

_MACHINE = FleetMachine("m", Machine.described(Cpu.parse("x86-64-v3"), glibc="2.28", python="3.12"))
RECIPES = Path(__file__).parents[2] / "recipes"
_OPEN = ExitStack()
atexit.register(_OPEN.close)
_HASH = "0123456789abcdef" * 4
_TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
_JSON_WORDS = (b'":{', b'":[', b"null", b"true", b"1e999", b"NaN", b"\\ud800", b"[[[[[[[[", b"}}", b'""')
_TOML_WORDS = (
    b"[[",
    b"]]\n",
    b" = ",
    b'"""',
    b"'''",
    b"= [",
    b"{",
    b"inf",
    b"nan",
    b"2024-01-01",
    b"0x",
    b"\n[matrix]\n",
)
_HTML_WORDS = (
    b'<a href="',
    b"#sha256=",
    b"data-yanked",
    b"data-requires-python=",
    b"&gt;",
    b"<base href=",
    b"http://[",
    b"file://",
    b".whl",
)
_NAMES = (
    "demo-1.0-py3-none-any.whl",
    "torch-2.9.1+cu128-1_a-cp313-cp313t-manylinux_2_28_x86_64.manylinux2014_x86_64-x86_64_v3.whl",
    "a.b-1!2.0rc1.post2.dev3-cp311.cp312-abi3.none-macosx_11_0_arm64.whl",
)


def _read_variant(data: bytes) -> None:
    found = Document.parse(data)
    # what was odd about it before is not, once it is written
    assert Document.parse(found.pack()) == replace(found, notes=()), "another document after it was written"
    combine([("a", found), ("b", found)])


def _read_recipe(data: bytes) -> None:
    recipe = Recipe.load(written("demo.toml", data))
    if recipe.split is not None:
        SplitRequest.read(recipe.split)


def _read_split(data: bytes) -> None:
    """*data* as a recipe's table of `vbuild split`."""
    SplitRequest.read(Table.load(written("split.toml", data)))


def _read_page(data: bytes) -> None:
    """*data* as the page of a project on an index."""
    page = written("simple/demo/index.html", data)
    for finder in _finders(page.parents[1].as_uri()):
        with suppress(httpx2.HTTPError):  # which those that ask make a `FetchError` of
            assert all(found.file for found in listed_in(packages_at(finder, "demo"))), "a file without a name"


@cache
def _finders(index_url: str) -> tuple[PackageFinder, ...]:
    # the tags of this machine take longer to list than a page to read
    return tuple(finders(_client(), Indexes(index_url=index_url)))


@cache
def _client() -> PyPIClient:
    # certificates take longer to read than a page
    return _OPEN.enter_context(client_of(Indexes(), Problems().note))


def _read_image(data: bytes) -> None:
    """*data* as index.json of a layout, and as index, manifest and config that one names."""
    digest = hashlib.sha256(data).hexdigest()
    with folder() as room:
        (room / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        blobs = room / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        (blobs / digest).write_bytes(data)
        listed = [_described(kind, digest, len(data)) for kind in (INDEX_TYPE, MANIFEST_TYPE)]
        for index in (data, json.dumps({"manifests": listed}).encode()):
            (room / "index.json").write_bytes(index)
            with suppress(VbuildError):
                _look_through(ImageFolder.of(room))


def _look_through(layout: ImageFolder) -> None:
    for each in layout.manifests:
        for read in (layout.images, layout.manifest, layout.config):
            with suppress(VbuildError):
                read(each)


def _read_report(data: bytes) -> None:
    report = Report.load(written("report.json", data))
    assert report.size >= 0, "a release of fewer bytes than none"


def _read_machine_file(data: bytes) -> None:
    """*data* as the machine.toml that select and lock take."""
    machine = Machine.parse(data.decode(errors="replace"))
    assert Machine.parse(str(machine)) == machine, "another machine after it was written"


def _read_pylock(data: bytes) -> None:
    """*data* as the lock of another tool, for a machine; what is to be mirrored has a name, a file and a hash."""
    with folder() as room:
        lock = room / "pylock.toml"
        lock.write_bytes(data)
        for original in resolved([str(lock)], _MACHINE, room):
            assert re.fullmatch(r"[0-9a-f]{64}", original.sha256), "no hash"
            assert "/" not in original.file, "a file in another folder"
            assert original.file not in {"", ".", ".."}, "a file without a name"


def _read_conda_index(data: bytes) -> None:
    """*data* as index.json of a conda package."""
    assert checked_index(data, "demo-1.0-h1_0")["build_number"] >= 0, "a build of a negative number"


def _read_name(data: bytes) -> None:
    name = WheelName.parse(data.decode(errors="surrogateescape"))
    assert WheelName.parse(str(name)) == name, "another name after it was written"
    assert name.normalised().release, "no release"
    assert name.tags, "no tags"
    assert name.build_order in {(), name.build_order}


def _described(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def _variants() -> Iterator[bytes]:
    yield document().pack()
    yield document(variant("null"), variant("x86_64_v3", "x86_64 :: level :: v3")).pack()
    plugin = VariantProvider(requires=("a-plugin >=1; python_version >= '3.11'",), plugin_api="a.b:c")
    both = metadata("nvidia", "blas", nvidia=plugin, blas=VariantProvider.static({"library": ["openblas", "mkl"]}))
    yield document(variant("cu_mkl", "nvidia :: sm :: 90", "blas :: library :: mkl"), metadata=both).pack()
    alone = json.loads(document().pack()) | {"$schema": Schema.PEP_825.value}
    yield json.dumps({key: value for key, value in alone.items() if key != "providers"}).encode()


def _recipes() -> Iterator[bytes]:
    for recipe in sorted(RECIPES.glob("*.toml")):
        yield recipe.read_bytes()
    start = f'name = "demo"\nsource = {{sdist = "demo==1.0", sha256 = "{_HASH}"}}\n'
    for block in _TOML.findall((RECIPES.parent / "docs" / "reference" / "recipe.md").read_text(encoding="utf-8")):
        cpu = "" if "[matrix" in block else 'matrix.cpu = ["x86-64-v3"]\n'
        yield (block if "[source]" in block else start + cpu + block).encode()


def _splits() -> Iterator[bytes]:
    lines = ('cuda = "12.6"', 'keep = ["*.so"]', 'libs = "demo-libs"', "min-size = 9", "rpath = true")
    yield "\n".join(lines).encode()


def _pages() -> Iterator[bytes]:
    yield (
        f'<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.1"><base href="https://files/"></head>'
        f'<body><a href="demo-1.0-py3-none-any.whl#sha256={_HASH}" data-requires-python="&gt;=3.9">demo</a><br>'
        f'<a href="../demo-1.0.tar.gz#sha256={_HASH}" data-yanked="broken">demo-1.0.tar.gz</a></body></html>'
    ).encode()


def _images() -> Iterator[bytes]:
    platform = {"architecture": "amd64", "os": "linux", "variant": "v3"}
    image = _described(MANIFEST_TYPE, _HASH, 9) | {
        "platform": platform,
        "annotations": {"org.opencontainers.image.ref.name": "a"},
    }
    yield json.dumps(
        {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [image], "annotations": {"a": "b"}}
    ).encode()
    layers = [_described(LAYER_TYPE, _HASH, 9)]
    yield json.dumps(
        {"schemaVersion": 2, "config": _described(CONFIG_TYPE, _HASH, 9), "layers": layers, "subject": image}
    ).encode()
    config = {"Env": ["PATH=/bin"], "Labels": {"a": "b"}}
    yield json.dumps(
        platform | {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{_HASH}"]}, "config": config, "history": [{}]}
    ).encode()


def _machine_files() -> Iterator[bytes]:
    cpu = Cpu.parse("x86-64-v3")
    yield str(Machine.described(cpu, [Dotted(9, 0), Dotted(8, 6)], driver="570", glibc="2.28", python="3.12")).encode()
    yield str(Machine.described(cpu, glibc="2.17", python="3.11.4", processors=["gfx942"])).encode()
    yield (
        b'python = "3.12"\nglibc = "2.28"\ncpu = "x86-64-v3"\nwithout = ["a"]\nnamespace-order = ["b", "nvidia"]\n'
        b'[nvidia]\ndriver = "12.8"\ncapabilities = ["9.0"]\n[supported.toaster]\narch = ["k2", "k1"]\n'
    )
    yield b'python = "3.13"\nplatforms = ["manylinux_2_28_x86_64", "any"]\ntags = ["cp313-cp313", "py3-none-any"]\n'


def _pylocks() -> Iterator[bytes]:
    hashes = f'hashes = {{ sha256 = "{_HASH}" }}'
    yield (
        'lock-version = "1.0"\ncreated-by = "uv"\nrequires-python = ">=3.9"\n'
        '[[packages]]\nname = "demo"\nversion = "1.0"\n'
        "marker = \"sys_platform == 'linux' and 'gpu' not in extras\"\n"
        f'wheels = [{{ url = "https://files.example/demo-1.0-py3-none-any.whl", size = 9, {hashes} }}]\n'
        '[[packages]]\nname = "other"\nversion = "2.0"\nindex = "https://pypi.example/simple"\n'
        f'sdist = {{ path = "other-2.0.tar.gz", upload-time = 2024-01-02T03:04:05Z, {hashes} }}\n'
    ).encode()


def _conda_indexes() -> Iterator[bytes]:
    index = {"name": "demo", "version": "1.0", "build": "h1_0", "subdir": "linux-64", "build_number": 0}
    yield json.dumps({**index, "depends": ["__glibc >=2.17"], "license": "MIT"}).encode()


def _reports() -> Iterator[bytes]:
    yield json.dumps(report_of(entry())).encode()
    yield json.dumps(report_of(entry(), failures=[failure("x86_64_v4", "gcc: no")])).encode()


def _names() -> Iterator[bytes]:
    yield from (name.encode() for name in _NAMES)


TARGETS = (
    Target("variant", _read_variant, _variants, _JSON_WORDS, json_changed),
    Target("recipe", _read_recipe, _recipes, _TOML_WORDS, toml_changed),
    Target("split", _read_split, _splits, _TOML_WORDS, toml_changed),
    Target("index", _read_page, _pages, _HTML_WORDS, html_changed, ("vbuild.index_client", "vbuild.files")),
    Target("oci", _read_image, _images, _JSON_WORDS, json_changed, ("vbuild.publishing.oci", "vbuild.files")),
    Target("report", _read_report, _reports, _JSON_WORDS, json_changed),
    Target(
        "machine-file",
        _read_machine_file,
        _machine_files,
        (*_TOML_WORDS, b"[nvidia]\n", b"[supported.", b'"9.0"'),
        toml_changed,
    ),
    Target("pylock", _read_pylock, _pylocks, (*_TOML_WORDS, b"[[packages]]\n", b"marker = "), toml_changed),
    Target("conda-index", _read_conda_index, _conda_indexes, _JSON_WORDS, json_changed),
    Target("name", _read_name, _names, (b"-", b".whl", b"+", b"!", b"_", b"none-any")),
)
