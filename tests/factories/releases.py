"""A release of a pure project as plain and variant wheels, which differ in one file and bring all that wheels can."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.factories.variants import variant
from tests.factories.wheels import wheel
from vbuild.publishing.releases import OfferedRelease, releases_at
from vbuild.variants.stamp import stamped

V3, V4 = "x86_64_v3", "x86_64_v4"
LICENCE = "Do as you like.\n"
TOOL = "#!/bin/sh\necho tool\n"

_INIT = '"""Demo."""\n\nfrom .level import LEVEL\n\n\ndef main() -> None:\n    print(LEVEL)\n'


def release(
    folder: Path,
    project: str = "demo",
    version: str = "1.0",
    *,
    labels: Sequence[str] = (V3, V4),
    tag: str = "py3-none-any",
    metadata: str = "",
    files: Mapping[str, bytes | str] | None = None,
    plain: bool = True,
) -> list[Path]:
    """The wheels of *project* in *folder*: a plain one if there is to be one, and one for each of *labels*."""
    module = canonicalize_name(project).replace("-", "_")
    name = f"{module}-{version}-{tag}.whl"
    made = []
    for label in (None, *labels):
        members: dict[str, bytes | str] = {
            f"{module}/__init__.py": _INIT,
            f"{module}/level.py": f"LEVEL = {label or 'plain'!r}\n",
            f"{module}-{version}.data/scripts/{module}-tool": TOOL,
            f"{module}-{version}.dist-info/entry_points.txt": f"[console_scripts]\n{module}-level = {module}:main\n",
            f"{module}-{version}.dist-info/licenses/LICENSE": LICENCE,
            **(files or {}),
        }
        script = {f"{module}-{version}.data/scripts/{module}-tool": 0o755}
        if label is None and plain:
            made.append(wheel(folder, name, members, metadata=metadata, modes=script))
        elif label is not None:
            whole = wheel(folder / "unstamped" / label, name, members, metadata=metadata, modes=script)
            level = label[-2:] if label in {V3, V4} else "v3"
            made.append(stamped(whole, folder, variant=variant(label, f"x86_64 :: level :: {level}")))
    return made


def companion(folder: Path, project: str = "demo-libs", version: str = "0.187650320598251", metadata: str = "") -> Path:
    """A wheel as a split makes them beside others."""
    module = project.replace("-", "_")
    dist_info = f"{module}-{version}.dist-info"
    tells = "Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files: dict[str, bytes | str] = {
        f"{module}/lib/libdemo.so": b"library",
        f"{dist_info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n{metadata}",
        f"{dist_info}/WHEEL": tells,
    }
    return wheel(folder, f"{module}-{version}-py3-none-any.whl", files)


def offered(*paths: Path) -> tuple[OfferedRelease, ...]:
    """The releases whose wheels are at *paths*."""
    return releases_at(paths)


def commands(site: Path, use: str = "") -> list[str]:
    """The shell commands in README of the layout at *site*, from *use* on the first that are given for it."""
    blocks = (site / "README.md").read_text().partition(f"\n{use}")[2].split("```sh\n")[1:]
    lines = [block.partition("\n```")[0].splitlines() for block in blocks]
    return lines[0] if use else [line for block in lines for line in block]
