"""Whether the binaries in a wheel are of the kind that its tags say.

any, Root-Is-Purelib   no binaries at all
x86_64, aarch64 ...    binaries for that machine
cp311, abi3, none      extension modules that such a Python imports
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from vbuild.binary.elf import Elf
from vbuild.binary.policy import Platform
from vbuild.verdict.model import Finding, Rule, Severity
from vbuild.wheel.archive import Wheel

# foo.cpython-311-x86_64-linux-gnu.so: only that Python looks for it (PEP 3149)
_TAGGED = re.compile(r"\.cpython-(?P<version>\d+)(?P<flags>[a-z]*)-[\w-]+\.so$")
_ABI_TAG = re.compile(r"cp(?P<module>\d+[a-z]*)")
# i386 to i686, armv6l to armv8l: one instruction set to ELF
_KINDS = (re.compile(r"i[3-6]86"), re.compile(r"armv[678]l"))

_GRAFTED = re.compile(r"(^|/)[^/]+\.libs/")


def is_grafted(path: str) -> bool:
    """Whether a repair tool put the library at *path* beside the package: others built it, before the wheel."""
    return _GRAFTED.search(path) is not None


def content_findings(wheel: Wheel, libraries: Mapping[str, Elf]) -> Iterator[Finding]:
    """What the *libraries* of *wheel* contradict in its tags and its WHEEL file."""
    tags = wheel.name.platform.split(".")
    linked = {path: elf for path, elf in libraries.items() if elf.is_loadable}
    if linked and "any" in tags:
        what = (
            f"{len(linked)} binaries, {next(iter(linked))} first, in a wheel for any platform; expected a platform tag"
        )
        yield Finding(Severity.ERROR, Rule.PURE, None, what)
    elif linked and wheel.wheel_file().root_is_purelib:
        what = "Root-Is-Purelib is true in a wheel with binaries; expected false (they belong to the platform's folder)"
        yield Finding(Severity.WARNING, Rule.PURE, None, what)
    machines = {platform.machine for tag in tags if (platform := Platform.parse(tag))}
    for path, elf in linked.items():
        if machines and not any(_same_machine(machine, elf.machine) for machine in machines):
            what = f"code for {elf.machine} in a wheel for {', '.join(sorted(machines))}"
            yield Finding(Severity.ERROR, Rule.MACHINE, path, what)
    yield from _module_findings(wheel, linked)


def _same_machine(tag: str, machine: str) -> bool:
    return tag == machine or any(kind.fullmatch(tag) and kind.fullmatch(machine) for kind in _KINDS)


def _module_findings(wheel: Wheel, paths: Iterable[str]) -> Iterator[Finding]:
    """The extension modules that no Python of the wheel's tags looks for, or only one of many."""
    modules: dict[str, dict[str, str]] = {}
    for path in paths:
        if match := _TAGGED.search(path):
            modules.setdefault(path[: match.start()], {})[match["version"] + match["flags"]] = path
    abis = wheel.name.abi.split(".")
    exact = {found["module"] for abi in abis if (found := _ABI_TAG.fullmatch(abi))}
    for copies in modules.values():
        module, path = next(iter(copies.items()))
        said = f"an extension module of CPython {module} only, in a wheel for {wheel.name.python}-{wheel.name.abi}"
        if exact and exact.isdisjoint(copies):
            yield Finding(Severity.ERROR, Rule.EXTENSION, path, f"{said}, which does not look for it")
        elif not exact and len(copies) == 1:
            yield Finding(Severity.WARNING, Rule.EXTENSION, path, f"{said}; expected .abi3.so, or a copy for each")
