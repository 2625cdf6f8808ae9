"""What runs in a process of the vbuild that is measured, which may be an earlier release.

    python -P tests/benchmarks/inside.py FUNCTION ARGUMENT ...

Each function imports only what it needs of vbuild, and nothing of the tests: neither the other side nor another
release is to pay for it, or to fail of it.
"""

import sys
import time
import zipfile
import zlib
from pathlib import Path

MB = 10**6
CHUNK = 1 << 20
LOCAL_HEADER = 30
ROUNDS = 3


def inspected(wheel: str) -> None:
    from vbuild.inspection.inspect import inspect

    inspect(Path(wheel)).data()


def inflated_libraries(wheel: str) -> None:
    """Inflate the shared libraries with zlib, and drop them."""
    with Path(wheel).open("rb") as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if ".so" not in Path(info.filename).suffixes:
                continue
            file.seek(info.header_offset + LOCAL_HEADER - 4)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            file.seek(name + extra, 1)
            inflater, left = zlib.decompressobj(-zlib.MAX_WBITS), info.compress_size
            while left:
                piece = file.read(min(left, CHUNK))
                left -= len(piece)
                inflater.decompress(piece)


def inflated(*wheels: str) -> None:
    """Inflate every member once with the inflater that is fastest here, and drop it."""
    from vbuild.wheel.zip_read import ZipReader

    for path in wheels:
        with Path(path).open("rb") as file:
            source = ZipReader(file)
            for member in source.members:
                for _ in source.inflated(member):
                    pass


def scan_speed(library: str) -> None:
    """Print the MB of code that a core disassembles in a second of its own time, however many others want it."""
    from vbuild.dispatch.judge import scan
    from vbuild.elf.code import Elf

    elf = Elf.parse(Path(library).read_bytes())
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        scan(elf)
        seconds.append(time.process_time() - start)
    print(elf.code_size / MB / min(seconds))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
