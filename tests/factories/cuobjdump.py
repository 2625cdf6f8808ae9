"""What NVIDIA's cuobjdump finds in a library."""

import re
import subprocess
from collections import Counter
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

_LISTED = re.compile(r"\.(?P<name>sm_\w+\.(?:cubin|ptx))$", re.MULTILINE)


def listed_code(cuobjdump: Path, library: Path) -> tuple[Counter[str], bool]:
    """The cubins and PTX in *library*, as ``sm_90.cubin``, and whether cuobjdump went through to the end."""
    command: list[str | Path] = [cuobjdump, "-all", "-lelf", "-lptx", library]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    return Counter(match["name"] for match in _LISTED.finditer(result.stdout)), "Invalid ELF" not in result.stderr


def extracted_code(cuobjdump: Path, library: Path) -> Counter[str]:
    """The SHA-256 of every cubin and PTX in *library*, decompressed by cuobjdump, as far as it goes."""
    with TemporaryDirectory() as folder:
        command: list[str | Path] = [cuobjdump, "-all", "-xelf", "all", "-xptx", "all", library]
        subprocess.run(command, check=False, capture_output=True, cwd=folder)
        return Counter(sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir())
