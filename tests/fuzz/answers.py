"""What other programs, and servers, answer with: index pages as JSON, bills of materials, locks."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cache

import httpx2
from unearth import PackageFinder
from unearth.fetchers import PyPIClient

from tests.fuzz.target import Target, written
from tests.fuzz.values import json_changed
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import finders, listed_in, packages_at
from vbuild.inspection.model import bill_line
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.sbom.keeping import renamed_bill
from vbuild.sbom.model import (
    Bill,
    BillChange,
    BillFile,
    Gone,
    GpuCut,
    Making,
    Material,
    MaterialRole,
    Treatment,
    package_url,
    packed,
    read,
)
from vbuild.wheel.name import WheelName

_HASH = "0123456789abcdef" * 4
_OPEN = ExitStack()
_INDEX = Indexes(index_url="http://localhost/simple")
_NAMES = (
    WheelName.parse("demo-1.0-py3-none-any.whl"),
    WheelName.parse("other-2.0-py3-none-any.whl"),
)
_WORDS = (b'":{', b'":[', b"null", b"true", b"1e999", b"NaN", b"\\ud800", b"[[[[[[[[", b"}}", b'""')
_LINK_WORDS = (b'"url":"', b'"hashes":{"sha256":', b'"yanked":', b"http://[", b"file://", b"../", b"#sha256=")


class _Answering(httpx2.BaseTransport):
    """A server that answers every request with *page*, which it says is an index page as JSON."""

    page = b""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        return httpx2.Response(200, headers=kind, content=self.page, request=request)


_SERVER = _Answering()


def _read_listing(data: bytes) -> None:
    """*data* as the page of a project, in JSON, on an index (PEP 691)."""
    _SERVER.page = data
    [finder] = _finders()
    with suppress(httpx2.HTTPError):  # which those that ask make a `FetchError` of
        for found in listed_in(packages_at(finder, "demo")):
            assert found.file, "a file without a name"
            assert found.sha256 is None or bytes.fromhex(found.sha256), "a hash that is none"


@cache
def _finders() -> tuple[PackageFinder, ...]:
    return tuple(finders(_client(), _INDEX))


@cache
def _client() -> PyPIClient:
    return _OPEN.enter_context(PyPIClient(mounts={"http://": _SERVER}))


def _read_bill(data: bytes) -> None:
    renamed_bill(data, *_NAMES)
    if (bill := read(data)) is not None:
        assert bill_line(bill), "nothing to tell"
        again = read(packed(bill))
        assert again, "no bill after it was written"
        assert packed(again) == packed(bill), "another bill after it was written"


def _read_lock(data: bytes) -> None:
    lock = Lock.load(written("demo.lock", data))
    for one in lock.requirements:
        assert lock.packages(one.requires, one.python) is not None, "what is listed is not found"
    again = Lock.load(written("again.lock", lock.pack().encode()))
    assert again.pack() == lock.pack(), "another lock after it was written"


def _listings() -> Iterator[bytes]:
    wheel = {
        "filename": "demo-1.0-py3-none-any.whl",
        "url": "demo-1.0-py3-none-any.whl",
        "hashes": {"sha256": _HASH},
        "requires-python": ">=3.9",
        "core-metadata": {"sha256": _HASH},
        "upload-time": "2024-01-02T03:04:05.678901Z",
    }
    sdist = {"filename": "demo-1.0.tar.gz", "url": "https://files/demo-1.0.tar.gz", "hashes": {}, "yanked": "broken"}
    yield json.dumps({"meta": {"api-version": "1.1"}, "name": "demo", "files": [wheel, sdist]}).encode()


def _bills() -> Iterator[bytes]:
    libs = package_url("demo_libs", "0.1", file="demo_libs-0.1-py3-none-any.whl")
    source = Material(MaterialRole.SOURCE, "demo", url="https://git.example/demo", commit="a1" * 20)
    native = Material(MaterialRole.NATIVE, "zlib", "1.3", "pkg:generic/zlib@1.3", _HASH)
    toolkit = Material(MaterialRole.TOOLKIT, "CUDA Toolkit", "12.6", identity=_HASH)
    yield packed(
        Bill(
            "demo",
            "1.0",
            "0.1.0",
            (
                BillFile(
                    "demo/_C.so",
                    _HASH,
                    (BillChange(_HASH, "vbuild slim", GpuCut(("sm_80",), ("sm_80",), "1 of 3: 0x4")),),
                    GpuCut(("sm_90",), ("sm_90",), "2 of 3: 0x3"),
                ),
            ),
            (Gone("demo.libs/libb.so.2", _HASH, "libb.so.2", Treatment.MOVED, libs, "demo_libs/lib/libb.so.2"),),
            (Making((source, native, toolkit), (("cpu", "x86-64-v3"),)),),
        )
    )


def _locks() -> Iterator[bytes]:
    package = f"setuptools==80.9.0 --hash=sha256:{_HASH}"
    yield (
        Lock(
            vbuild="0.5",
            recipe=_HASH,
            source=f"sdist {_HASH}",
            natives=(("gmp", f"debian {_HASH}"),),
            toolkits=(("13.0 cublas", (("nvidia_cublas-13.0-py3-none-any.whl", _HASH),)),),
            requirements=(LockedRequirement("cpython-3.12-linux-x86_64", ("setuptools>=61",), (package,)),),
        )
        .pack()
        .encode()
    )


TARGETS = (
    Target("listing", _read_listing, _listings, (*_WORDS, *_LINK_WORDS), json_changed),
    Target("bill", _read_bill, _bills, (*_WORDS, b"vbuild:", b'"properties"', b"#gone-"), json_changed),
    Target("lock", _read_lock, _locks, (*_WORDS, b"==1 --hash=sha256:"), json_changed),
)
