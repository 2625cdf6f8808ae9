"""Releases for images: wheels of one real extension module at several levels, and bases that umoci makes."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.factories.extensions import MODULE, library
from tests.factories.variants import document, metadata, variant
from tests.factories.wheels import dist_info_of, wheel
from vbuild.publishing.oci.plan import Oci
from vbuild.publishing.publish import written
from vbuild.publishing.releases import releases_at

PYTHON = f"cp3{sys.version_info.minor}"
TAG = f"{PYTHON}-{PYTHON}-manylinux_2_17_x86_64"
PLAIN, V3, V4 = None, "x86-64-v3", "x86-64-v4"
ENTRY_POINTS = "[console_scripts]\ndemo = demo.program:main\n"
PROGRAM = 'import ctypes\nimport demo._c\n\ndef main():\n    print("level", ctypes.CDLL(demo._c.__file__).level())\n'
# some bytes that deflate to more than is copied as it is
TABLE = "\n".join(str(number * number) for number in range(40_000))

# what no program of a test needs
_PASSED_OVER = ("*-packages", "test", "tests", "__pycache__", "config-*", "idlelib", "ensurepip", "lib2to3", "tkinter")

_LEVEL = """
#if defined __AVX512F__
int level(void) { return 4; }
#elif defined __AVX2__
int level(void) { return 3; }
#else
int level(void) { return 1; }
#endif
"""


def levelled(folder: Path, level: str | None = PLAIN) -> Path:
    """The wheel of ``demo`` compiled for *level*, with a program, a script, a header, data and a large module."""
    march = () if level is None else (f"-march={level}",)
    label = "" if level is None else "-" + level.replace("-", "_")
    name = f"demo-1.0-{TAG}{label}.whl"
    files: dict[str, bytes | str] = {
        "demo/__init__.py": "",
        "demo/_c.so": library(None, source=MODULE + _LEVEL, flags=march),
        "demo/program.py": PROGRAM,
        "demo/table.py": f"table = '''{TABLE}'''\n",
        "demo-1.0.data/scripts/demo-script": "#!python\nimport demo.program\ndemo.program.main()\n",
        "demo-1.0.data/headers/demo.h": "int level(void);\n",
        "demo-1.0.data/data/share/demo/data.txt": "data\n",
        f"{dist_info_of(name)}/entry_points.txt": ENTRY_POINTS,
    }
    if level is not None:
        described = document(variant(level.replace("-", "_"), f"x86_64 :: level :: {level[-2:]}"))
        files[f"{dist_info_of(name)}/variant.json"] = described.pack()
    return wheel(folder, name, files, modes={"demo/_c.so": 0o755, "demo-1.0.data/scripts/demo-script": 0o755})


def labelled(
    folder: Path, label: str, *properties: str, tag: str = TAG, namespaces: Sequence[str] = (), **files: str
) -> Path:
    """A wheel of ``demo`` of the variant *label* that has these *properties*, and *files* in the package."""
    name = f"demo-1.0-{tag}-{label}.whl"
    shared = metadata(*(namespaces or dict.fromkeys(one.split(" ")[0] for one in properties)))
    described = document(variant(label, *properties), metadata=shared).pack()
    whole = {f"demo/{key}.py": text for key, text in files.items()} | {"demo/__init__.py": ""}
    return wheel(folder, name, {**whole, f"{dist_info_of(name)}/variant.json": described})


def release(folder: Path) -> list[Path]:
    """The plain wheel of ``demo``, and those of v3 and v4."""
    return [levelled(folder, level) for level in (PLAIN, V3, V4)]


def laid_out(wheels: Sequence[Path], folder: Path, **options: Any) -> Path:
    """The folder of the layout oci of *wheels*, in *folder*."""
    written(Oci(**options).plan(releases_at(list(wheels))), folder / "oci")
    return folder / "oci"


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def read(layout: Path, digest: str) -> Any:
    """The JSON blob of that *digest*."""
    return json.loads(blob(layout, digest).read_bytes())


def index_of(layout: Path, ref: str = PYTHON) -> Any:
    """The index that index.json calls *ref*."""
    listed = json.loads((layout / "index.json").read_bytes())["manifests"]
    named = {one["annotations"]["org.opencontainers.image.ref.name"]: one for one in listed if "annotations" in one}
    return read(layout, named[ref]["digest"])


def images_of(layout: Path, ref: str = PYTHON) -> list[tuple[Any, Any, Any]]:
    """Descriptor, manifest and config of each image of the index called *ref*."""
    found = []
    for image in index_of(layout, ref)["manifests"]:
        manifest = read(layout, image["digest"])
        found.append((image, manifest, read(layout, manifest["config"]["digest"])))
    return found


def base(
    folder: Path, files: Mapping[str, bytes], *, env: Sequence[str] = (), ref: str = "base", arch: str = "amd64"
) -> Path:
    """An image layout in *folder* with the image *ref* that umoci makes of *files*."""
    root = folder.with_name(f"{folder.name}-root")
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return _umoci_base(folder, root, env=env, ref=ref, arch=arch)


def python_base(folder: Path) -> Path:
    """An image layout in *folder* with the image ``python``: this machine's Python, and the libraries that it needs."""
    root = folder.with_name(f"{folder.name}-root")
    real = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    below = root / "opt" / "python"
    shutil.copytree(
        stdlib,
        below / "lib" / stdlib.name,
        ignore=shutil.ignore_patterns(*_PASSED_OVER),
    )
    (below / "bin").mkdir()
    shutil.copy2(real, below / "bin" / f"python3.{sys.version_info.minor}")
    programs = [real, Path("/usr/bin/env").resolve(), *(below / "lib").rglob("*.so")]
    for library_path in _libraries(programs):
        target = root / library_path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy2(library_path, target)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2("/usr/bin/env", root / "usr/bin/env")
    return _umoci_base(folder, root, env=("PATH=/opt/python/bin:/usr/local/bin:/usr/bin:/bin",), ref="python")


def _libraries(programs: Sequence[Path]) -> set[str]:
    run = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    words = (word for line in run.stdout.splitlines() for word in line.split() if line.startswith("\t"))
    return {word for word in words if word.startswith("/")}


def _umoci_base(folder: Path, root: Path, *, env: Sequence[str], ref: str, arch: str = "amd64") -> Path:
    image = f"{folder}:{ref}"
    umoci("init", "--layout", str(folder))
    umoci("new", "--image", image)
    umoci("insert", "--image", image, str(root), "/")
    variables = [word for line in env for word in ("--config.env", line)]
    umoci("config", "--image", image, "--architecture", arch, "--os", "linux", *variables)
    return folder


def umoci(*words: str) -> str:
    run = subprocess.run(["umoci", *words], capture_output=True, text=True, check=False, env={**os.environ})
    assert not run.returncode, run.stderr
    return run.stdout
