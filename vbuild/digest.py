"""The hash by which files are told apart and pinned."""

import hashlib
from pathlib import Path


def sha256_of(file: Path) -> str:
    """The SHA-256 of *file*, 64 hex digits, without its bytes in memory; `OSError` where it cannot be read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
