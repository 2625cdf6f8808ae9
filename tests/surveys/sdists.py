"""Projects of many backends, built for plain and v3 from their sdists and judged by other tools.

    python -m tests.surveys.sdists FOLDER [NAME or NAME==VERSION …]

builds the projects of `PROJECTS`, or those named, below FOLDER, and prints a row of a Markdown table for each as soon
as it is there. FOLDER/NAME keeps the recipe, the log, the report and the wheels. `nm` and `objdump` compare the plain
wheel with the published one of the same version, and the test of each wheel runs under qemu, on a processor of its
level. The exit status is 1 if a project does not build, lacks something, or fails its test.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vbuild.build.source import fetched_source
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.packages import files_of
from vbuild.recipe.model import Recipe

HEAD = """\
| project | backend | result | seconds for plain, v3 | above the baseline | lost | MB, published | qemu64, Haswell |
|---|---|---|---|---|---|---|---|"""
LIMIT, TIMED_OUT = 900, 124
# of qemu's processors those that have a level and little more
PROCESSORS = {None: "qemu64", "x86_64_v3": "Haswell"}
MB = 1e6
_ABI_TAG = re.compile(r"\.(abi3|cpython-[\w-]+)(?=\.so$)")
_BACKENDS = {"setuptools.build_meta": "setuptools", "mesonpy": "meson-python", "poetry.core.masonry.api": "poetry-core"}
_HELPERS = ("Cython", "cffi", "pybind11", "nanobind", "setuptools-rust", "cmake")
# what objdump shows of code for newer processors
_FEATURES = {
    "SSSE3": r"\tpshufb|\tpmaddubsw|\tpalignr",
    "SSE4": r"\tpcmp[ei]str|\tpinsr[dq]|\tpextr[dq]|\tptest|\tpminud|\tpmulld|\tpcmpgtq|\tcrc32",
    "AES": r"\tv?aes(enc|dec|imc|keygen)",
    "PCLMUL": r"\tv?pclmul",
    "SHA": r"\tsha(1|256)",
    "AVX": r"%ymm",
    "AVX-512": r"%zmm",
}


@dataclass(frozen=True, slots=True)
class Project:
    """A project of the index, code that uses it, what that code needs, and variables that its build needs."""

    requirement: str
    test: str
    requires: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return Requirement(self.requirement).name

    @property
    def version(self) -> str:
        return str(Requirement(self.requirement).specifier).removeprefix("==")


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a wheel without their ABI tags: the symbols that they export, and the features in use.

    *bundled* are the symbols of libraries that a repair tool put beside them.
    """

    symbols: Mapping[str, frozenset[str]]
    features: Mapping[str, frozenset[str]]
    bundled: frozenset[str]

    @classmethod
    def of(cls, wheel: Path, folder: Path) -> "Modules":
        symbols: dict[str, frozenset[str]] = {}
        features: dict[str, frozenset[str]] = {}
        bundled: set[str] = set()
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if not re.search(r"\.so(\.|$)", member):
                    continue
                path, name = archive.extract(member, folder), _ABI_TAG.sub("", member)
                given = output("nm", "-D", "--defined-only", "--format=posix", path).splitlines()
                # C++ and Rust symbols depend on the compiler's choices
                names = frozenset(line.split()[0].partition("@")[0] for line in given if not line.startswith("_"))
                if ".libs/" in member:
                    bundled |= names
                else:
                    symbols[name] = names
                    code = output("objdump", "-d", "--no-show-raw-insn", path)
                    features[name] = frozenset(feature for feature, what in _FEATURES.items() if re.search(what, code))
        return cls(symbols, features, frozenset(bundled))


_ROUND = "d = bytes(9999); assert z.decompress(z.compress(d)) == d"
PROJECTS = (
    # with dispatch of their own
    Project(
        "pycryptodome==4.4.0",
        "from Crypto.Cipher import AES; from Crypto.Hash import SHA256; k = b'0' * 16; "
        "c, t = AES.new(k, AES.MODE_GCM, nonce=k).encrypt_and_digest(k * 99); "
        "assert AES.new(k, AES.MODE_GCM, nonce=k).decrypt_and_verify(c, t) == k * 99; SHA256.new(c).digest()",
    ),
    Project(
        "crc32c==2.9.post0",
        "import crc32c; assert crc32c.crc32c(b'123456789') == 0xE3069283; crc32c.crc32c(bytes(9999))",
    ),
    Project(
        "pillow==13.0.0",
        "from PIL import Image, features; i = Image.new('RGB', (99, 77)).resize((55, 33)); "
        "assert len(i.tobytes()) == 55 * 33 * 3; assert features.check('jpg')",
    ),
    Project(
        "pybase64==1.5.1", "import pybase64; d = bytes(9999); assert pybase64.b64decode(pybase64.b64encode(d)) == d"
    ),
    Project(
        "zlib-ng==1.1.0", f"from zlib_ng import zlib_ng as z; import zlib; {_ROUND}; assert z.crc32(d) == zlib.crc32(d)"
    ),
    Project(
        "isal==1.9.1", f"from isal import isal_zlib as z; import zlib; {_ROUND}; assert z.crc32(d) == zlib.crc32(d)"
    ),
    Project(
        "xxhash==4.1.0", "import xxhash; assert xxhash.xxh3_64_hexdigest(bytes(9999)); xxhash.xxh128(b'a').digest()"
    ),
    Project("zstandard==0.25.0", f"import zstandard as z; {_ROUND}"),
    Project("brotli==1.2.1", f"import brotli as z; {_ROUND}"),
    Project(
        "pyroaring==1.2.0",
        "from pyroaring import BitMap as B; assert len(B(range(9999)) & B(range(0, 9999, 3))) == 3333",
    ),
    Project(
        "cramjam==2.14.0",
        "from cramjam import zstd, snappy; d = bytes(9999); "
        "assert all(bytes(z.decompress(z.compress(d))) == d for z in (zstd, snappy))",
    ),
    Project("bcrypt==5.0.0", "import bcrypt; assert bcrypt.checkpw(b'a', bcrypt.hashpw(b'a', bcrypt.gensalt(4)))"),
    Project("pysimdjson==7.0.2", "import simdjson; assert simdjson.loads(b'[1, 2.5, {\\x22a\\x22: null}]')[1] == 2.5"),
    Project("stringzilla==5.3.2", "import stringzilla as s; assert s.Str('abc' * 999).find('ca') == 2"),
    Project(
        "orjson==3.13.0",
        "import orjson; assert orjson.loads(orjson.dumps({'a': ['é' * 99, 1.5]})) == {'a': ['é' * 99, 1.5]}",
    ),
    Project(
        "blake3==1.0.11",
        "from blake3 import blake3; assert blake3(bytes(99999)).digest() != blake3(b'').digest(); "
        "assert blake3(b'').hexdigest().startswith('af1349b9')",
    ),
    Project("tiktoken==0.14.0", "import tiktoken, tiktoken._tiktoken"),
    Project(
        "cryptography==50.0.2",
        "from cryptography.fernet import Fernet as F; f = F(F.generate_key()); t = f.encrypt(b'a'); "
        "assert f.decrypt(t) == b'a'",
    ),
    Project(
        "rapidfuzz==3.14.6",
        "from rapidfuzz import fuzz, process; assert fuzz.ratio('abcd' * 9, 'abcd' * 9) == 100; "
        "assert process.extractOne('ab', ['xy', 'abc'])[0] == 'abc'; import rapidfuzz.fuzz_cpp",
    ),
    Project(
        "numcodecs==0.16.6",
        "from numcodecs import Blosc, Zstd; d = bytes(9999); "
        "assert all(bytes(c.decode(c.encode(d))) == d for c in (Blosc(), Zstd()))",
        ("numpy",),
    ),
    Project("argon2-cffi-bindings==26.2.0", "import _argon2_cffi_bindings as a; assert a.lib.ARGON2_VERSION_NUMBER"),
    # without
    Project(
        "msgpack==1.2.4",
        "import msgpack; assert msgpack.unpackb(msgpack.packb([1, 'a'] * 99)) == [1, 'a'] * 99; "
        "import msgpack._cmsgpack",
    ),
    Project("lz4==4.4.5", "import lz4.frame as z; d = bytes(9999); assert z.decompress(z.compress(d)) == d"),
    Project("ujson==6.1.0", "import ujson; assert ujson.loads(ujson.dumps({'a': [1.5] * 99})) == {'a': [1.5] * 99}"),
    Project(
        "yarl==1.25.1", "from yarl import URL; assert str(URL('http://a/ä').with_query(b=1)); import yarl._quoting_c"
    ),
    Project(
        "frozenlist==1.8.0",
        "from frozenlist import FrozenList; assert list(FrozenList([1, 2])) == [1, 2]; import frozenlist._frozenlist",
    ),
    Project(
        "multidict==7.2.1",
        "from multidict import MultiDict as M; assert M(a=1).getall('a') == [1]; import multidict._multidict",
    ),
    Project("regex==2026.11.15", "import regex; assert regex.findall(r'(?:ab){e<=1}', 'abcacab')"),
    Project("pyyaml==6.0.3", "import yaml; assert yaml.load('a: [1, 2]', yaml.CSafeLoader) == {'a': [1, 2]}"),
    Project("rpds-py==2026.9.1", "from rpds import HashTrieMap as M; assert M({1: 2}).insert(3, 4)[3] == 4"),
    Project(
        "contourpy==1.3.3",
        "import contourpy; assert contourpy.contour_generator(z=[[0, 1], [1, 0]]).lines(0.5)",
        ("numpy",),
    ),
    Project("stl-reader==0.2.3", "import stl_reader", ("numpy",)),
    Project(
        "ulid-transform==2.2.9",
        "import ulid_transform as u; assert len(u.ulid_now()) == 26; import ulid_transform._ulid_impl",
    ),
    Project("fnv-hash-fast==2.0.3", "import fnv_hash_fast as f; assert f.fnv1a_32(b'a') == 0xE40C292C"),
    Project("pynanoid==0.2.0", "import pynanoid; assert len(pynanoid.generate()) == 21"),
    Project(
        "aiohttp==3.14.5",
        "import aiohttp, aiohttp._http_parser, aiohttp._websocket.mask as m; assert m._websocket_mask_cython",
    ),
    Project("editdistance==0.8.1", "import editdistance as e; assert e.eval('banana', 'bahama') == 2"),
    Project(
        "black==26.10.1",
        "import black; assert black.__file__.endswith('.so'); assert black.format_str('a  = 1', mode=black.Mode())",
        env=(("HATCH_BUILD_HOOKS_ENABLE", "1"),),
    ),
    Project(
        "pywavelets==1.9.0",
        "import pywt; a, d = pywt.dwt([1.0, 2, 3, 4], 'db2'); assert len(a) == 3",
        ("numpy",),
    ),
    Project("cffi==2.1.1", "import cffi; assert cffi.FFI().sizeof('long') == 8"),
    Project(
        "kiwisolver==1.5.1", "import kiwisolver as k; x = k.Variable('x'); s = k.Solver(); s.addConstraint(x == 3)"
    ),
)


def main(arguments: Sequence[str]) -> int:
    folder, names = Path(arguments[0]).resolve(), arguments[1:]
    known = {project.name: project for project in PROJECTS}
    unsound = 0
    print(HEAD)
    for name in names or known:
        project = known.get(name) or Project(name, f"import {Requirement(name).name.replace('-', '_')}")
        cells, is_sound = surveyed(project, folder / project.name)
        unsound += not is_sound
        print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
    return 1 if unsound else 0


def surveyed(project: Project, folder: Path) -> tuple[list[str], bool]:
    """The row of *project*, and whether all is as it should be."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sdist, recipe = written(project, folder)
    command = ["timeout", str(LIMIT), sys.executable, "-m", "vbuild", "matrix"]
    with (folder / "log").open("w", encoding="utf-8") as log:
        status = subprocess.run(
            [*command, recipe, "-o", folder / "dist"], stdout=log, stderr=log, check=False
        ).returncode
    report = folder / "dist" / "report.json"
    if status == TIMED_OUT or not report.exists():
        *_, last = ["", *(folder / "log").read_text(encoding="utf-8").strip().splitlines()]
        why = f"not within {LIMIT} s" if status == TIMED_OUT else last
        return [sdist, backend(recipe), why, "", "", "", "", ""], False
    found = json.loads(report.read_text(encoding="utf-8"))
    wheels = {wheel["label"]: wheel for wheel in found["wheels"]}
    failures = [f"{one['label'] or 'plain'}: {one['error'].splitlines()[0]}" for one in found["failures"]]
    seconds = [f"{wheels[label]['build_seconds']:.0f}" if label in wheels else "none" for label in PROCESSORS]
    runs = [
        ran(project, folder / "dist" / wheels[label]["wheel"], cpu, folder / cpu) if label in wheels else "none"
        for label, cpu in PROCESSORS.items()
    ]
    lost, size = compared(sdist, folder / "dist" / wheels[None]["wheel"], folder) if None in wheels else ("", "")
    row = [sdist, backend(recipe), "; ".join(failures) or "ok", ", ".join(seconds), above(wheels.get(None))]
    sound = not failures and not lost and set(runs) == {"passed"}
    return [*row, lost or "nothing", size, ", ".join(runs)], sound


def written(project: Project, folder: Path) -> tuple[str, Path]:
    """The sdist as ``name==version``, of the newest release if none is named, and the recipe for it in *folder*."""
    listed = files_of(project.name, indexes=Indexes.configured())
    found = (
        file
        for file in listed
        if file.file.endswith((".tar.gz", ".zip"))
        and (str(file.version) == project.version if project.version else not file.version.is_prerelease)
    )
    if not (sdist := next(found, None)):
        sys.exit(
            f"{project.requirement}: no index has an sdist of it; expected the name of a project, or name==version"
        )
    name = f"{project.name}=={sdist.version}"
    text = f"""\
name = "{project.name}"

[source]
sdist = "{name}"
sha256 = "{sdist.sha256}"

[matrix]
cpu = ["x86-64", "x86-64-v3"]

[test]
command = '''python -c "{project.test}"'''
requires = {json.dumps(project.requires)}

[verify]
against = "index"
"""
    if project.env:
        text += "\n".join(["", "[build.env]", *(f"{name} = {json.dumps(value)}" for name, value in project.env), ""])
    path = folder / f"{project.name}.toml"
    path.write_text(text, encoding="utf-8")
    return name, path


def backend(recipe: Path) -> str:
    """The backend of the project of *recipe*, and what else of importance it builds with."""
    source = Recipe.load(recipe).source
    with tarfile.open(fetched_source(source)) as archive:
        top = min(archive.getnames(), key=len).partition("/")[0]
        has_settings = f"{top}/pyproject.toml" in archive.getnames()
        settings = archive.extractfile(f"{top}/pyproject.toml") if has_settings else None
        table = tomllib.loads(settings.read().decode())["build-system"] if settings else {}
    name = table.get("build-backend", "setuptools.build_meta")
    needed = {canonicalize_name(Requirement(one).name) for one in table.get("requires", ())}
    main = _BACKENDS.get(name) or next((one for one in sorted(needed) if name.startswith(one.replace("-", "_"))), name)
    return ", ".join((main, *(helper for helper in _HELPERS if helper.lower() in needed)))


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def above(wheel: Mapping[str, Any] | None) -> str:
    """How many functions of *wheel* are above its level, by what the report says of them."""
    if not wheel:
        return ""
    counts: Counter[str] = Counter()
    for library in wheel["verdict"]["libraries"]:
        counts["tested"] += sum(library["accepted"].values())
        for function in library["violations"]:
            counts["in doubt" if function["doubt"] else "shown untested"] += 1
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"


def compared(sdist: str, ours: Path, folder: Path) -> tuple[str, str]:
    """What the wheel *ours* lacks of the published wheel of *sdist*, and the sizes of both."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d"]
    subprocess.run([*command, folder / "published", sdist], check=False)
    published = next((folder / "published").glob("*.whl"), None)
    if not published:
        return "", f"{ours.stat().st_size / MB:.2f}, none"
    there, here = Modules.of(published, folder / "theirs"), Modules.of(ours, folder / "ours")
    missing = sorted(there.symbols.keys() - here.symbols.keys())
    lost = [f"{len(missing)} modules: {', '.join(missing[:3])}"] if missing else []
    given = here.bundled.union(*here.symbols.values())
    if names := sorted(frozenset().union(*there.symbols.values()) - given):
        lost.append(f"{len(names)} symbols: {', '.join(names[:3])}")
    lost += [
        f"{', '.join(sorted(features))} in {name}"
        for name in sorted(there.features.keys() & here.features.keys())
        if (features := there.features[name] - here.features[name])
    ]
    return "; ".join(lost), f"{ours.stat().st_size / MB:.2f}, {published.stat().st_size / MB:.2f}"


def ran(project: Project, wheel: Path, cpu: str, folder: Path) -> str:
    """What becomes of the test of *project* with the installed *wheel* on qemu's processor *cpu*, or one for numpy."""
    cpu = "Nehalem" if "numpy" in project.requires and cpu == PROCESSORS[None] else cpu
    folder.mkdir()
    plain = folder / re.sub(r"-x86_64_v3\.whl$", ".whl", wheel.name)  # pip does not know variants
    shutil.copyfile(wheel, plain)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target"]
    subprocess.run([*command, str(folder / "site"), str(plain), *project.requires], check=True)
    try:
        run = subprocess.run(
            ["qemu-x86_64", "-cpu", cpu, sys.executable, "-c", project.test],
            env={"PYTHONPATH": str(folder / "site"), "HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not within {LIMIT} s"
    return "passed" if not run.returncode else f"exit {run.returncode} on {cpu}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
