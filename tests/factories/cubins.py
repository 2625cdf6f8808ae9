"""The kernels of a library: the machine code of each function in each cubin, by the name that it has in the source."""

import io
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256

from elftools.elf.elffile import ELFFile

from vbuild.elf.image import ElfImage
from vbuild.gpu_code.fatbin import decompressed
from vbuild.gpu_code.survey import device_code

_TEXT = ".text."
# nvcc puts this before the mangled name of what only one file sees, in relocatable code
_STATIC = re.compile(r"^__nv_static_\d+__\w*?_(?=_Z)")


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """A function's machine code: in which section of the library, for which architecture, and its SHA-256."""

    section: str
    arch: str
    name: str
    digest: str


def kernels(data: bytes) -> Counter[Kernel]:
    """How often each kernel is in the library *data*.

    What stands for an anonymous namespace in a mangled name is made of the file's path, the list of architectures and,
    in relocatable code, nvcc's process id; so names are demangled.
    """
    found = []
    for container in device_code(ElfImage.parse(data)).containers:
        for entry in container.entries:
            if entry.kind == "cubin":
                sections = ELFFile(io.BytesIO(decompressed(data, entry))).iter_sections()
                texts = [section for section in sections if section.name.startswith(_TEXT)]
                found += [(container.section, str(entry.arch), text.name, text.data()) for text in texts]
    names = _demangled([_STATIC.sub("", name.removeprefix(_TEXT)) for _, _, name, _ in found])
    return Counter(
        Kernel(section, arch, name, sha256(code).hexdigest())
        for (section, arch, _, code), name in zip(found, names, strict=True)
    )


def _demangled(names: list[str]) -> list[str]:
    ran = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()
