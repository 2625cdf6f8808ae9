"""What each kind of machine is called in pixi.toml, so that pixi locks the build that is made for it.

    platforms             since pixi 0.71: rich platforms, of which pixi takes the first that the machine satisfies
    system_requirements   before: an environment for each kind of machine

pixi solves for what a manifest says a machine has, not for the machine at hand: without one of these it takes the plain
build everywhere. What is said is the least that a machine must have.
https://pixi.prefix.dev/latest/workspace/system_requirements/
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vbuild.hardware.driver import Dotted
from vbuild.layout.conda.hardware import LEVEL_PACKAGE
from vbuild.layout.conda.record import NOARCH, CondaRecord

_ASKED = (LEVEL_PACKAGE, "__cuda", "__glibc")
_BOUND = re.compile(r"(>=|==|<)(?P<version>[\d.]+)")
_NAME = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Machines, by what they have at least; *arch* is the compute capability of their GPUs."""

    name: str
    subdir: str
    level: str | None
    cuda: Dotted | None
    arch: Dotted | None
    glibc: Dotted | None


def platforms(records: Sequence[CondaRecord], asked: Mapping[str, str], *, channels: Sequence[str]) -> str:
    """The manifest of a workspace with the projects *asked*, by version, for the machines of *records*."""
    lines = [*_workspace(asked, channels), "platforms = ["]
    for kind in _kinds(records):
        driver = str(kind.cuda or Dotted(0, 0))
        keys = {
            "name": kind.name,
            "platform": kind.subdir,
            "archspec": f"x86_64_v{kind.level}" if kind.level else None,
            "cuda": {"driver": driver, "arch": str(kind.arch)} if kind.arch else kind.cuda and driver,
            "glibc": kind.glibc and str(kind.glibc),
        }
        lines.append(f"  {_inline(keys)},")
    return "\n".join([*lines, "]", "", *_dependencies(asked)])


def system_requirements(records: Sequence[CondaRecord], asked: Mapping[str, str], *, channels: Sequence[str]) -> str:
    """The same with an environment for each kind of machine, builds for some GPUs alone excepted."""
    kinds = [kind for kind in _kinds(records) if not kind.arch]
    subdirs = list(dict.fromkeys(kind.subdir for kind in kinds))
    lines = [*_workspace(asked, channels), f"platforms = {json.dumps(subdirs)}", "", *_dependencies(asked)]
    for kind in kinds:
        lines += ["", f"[feature.{kind.name}]", f"platforms = {json.dumps([kind.subdir])}"]
        lines += [f"[feature.{kind.name}.system-requirements]"]
        lines += [f'archspec = "x86_64_v{kind.level}"'] if kind.level else []
        lines += [f'cuda = "{kind.cuda}"'] if kind.cuda else []
        lines += [f'libc = {{ family = "glibc", version = "{kind.glibc}" }}'] if kind.glibc else []
    return "\n".join([*lines, "", "[environments]", *(f'{kind.name} = ["{kind.name}"]' for kind in kinds)])


def _kinds(records: Sequence[CondaRecord]) -> list[_Kind]:
    """The kinds of machines, the most preferred first, each once; of builds of one label the newest glibc counts."""
    found: dict[str, _Kind] = {}
    for record in sorted(records, key=lambda record: -record.number):
        for kind in _kinds_of(record):
            known = found.setdefault(kind.name, kind)
            newest = max(filter(None, (known.glibc, kind.glibc)), default=None)
            found[kind.name] = replace(known, glibc=newest)
    best: dict[_Kind, _Kind] = {}
    for kind in found.values():
        best.setdefault(replace(kind, name=""), kind)
    return list(best.values())


def _kinds_of(record: CondaRecord) -> Iterator[_Kind]:
    """The machines that *record* is for: with bounds on GPUs, one for each bound, the highest first.

    Above the highest the build does not run, so that this kind gets another one.
    """
    asked = {name: versions for name, _, versions in (said.partition(" ") for said in record.depends)}
    subdir = "linux-64" if record.subdir == NOARCH else record.subdir
    level, cuda, glibc = (min(_bounds(asked.get(name, "")), default=None) for name in _ASKED)
    archs: Iterable[Dotted | None] = sorted(_bounds(asked.get("__cuda_arch", "")), reverse=True) or (None,)
    for arch in archs:
        words = (subdir, record.label or "plain", *([str(arch)] if arch else []))
        name = _NAME.sub("-", "-".join(words)).strip("-")
        yield _Kind(name, subdir, str(level.major) if level else None, cuda, arch, glibc)


def _bounds(versions: str) -> frozenset[Dotted]:
    """The versions that *versions* begin or end with."""
    return frozenset(Dotted.parse(match["version"]) for match in _BOUND.finditer(versions))


def _workspace(asked: Mapping[str, str], channels: Sequence[str]) -> list[str]:
    return ["[workspace]", f"name = {json.dumps(next(iter(asked), 'demo'))}", f"channels = {json.dumps([*channels])}"]


def _dependencies(asked: Mapping[str, str]) -> list[str]:
    return ["[dependencies]", *(f'{json.dumps(name)} = "=={version}"' for name, version in asked.items())]


def _inline(keys: Mapping[str, object]) -> str:
    """*keys* as an inline table, those without a value left out."""
    found = ((key, value) for key, value in keys.items() if value is not None)
    pairs = (f"{key} = {_inline(value) if isinstance(value, dict) else json.dumps(value)}" for key, value in found)
    return f"{{ {', '.join(pairs)} }}"
