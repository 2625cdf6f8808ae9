"""Reports as vbuild writes them, of releases that nobody had to build: the smallest, with whatever a test is about."""

import hashlib
import json
from typing import Any

from msgspec import to_builtins

from vbuild.release.model import limits
from vbuild.release.report import MachineChoice, Report
from vbuild.verification.bench import BenchReport

MANYLINUX = "manylinux_2_28_x86_64"


def entry(
    label: str | None = None,
    *,
    cpu: str = "x86-64",
    size: int = 10_000_000,
    python: str = "cp312",
    version: str = "1.0",
    project: str = "demo",
    gpus: str | None = None,
    seconds: float = 12.5,
    isa: str = "ok",
    test: str = "passed",
    **more: Any,
) -> dict[str, Any]:
    """What a report says of a wheel; *more* takes the place of what is usual."""
    name = "-".join(filter(None, (project, version, python, python, MANYLINUX, label))) + ".whl"
    return {
        "python": ".".join((python[2], python[3:])),
        "cpu": cpu,
        "properties": [] if label is None else ["x86_64 :: level :: v3"],
        "choices": {},
        "requires": {},
        "local": "",
        "gpus": gpus,
        "compiled_for": gpus,
        "label": label,
        "wheel": name,
        "bytes": size,
        "unpacked_bytes": 3 * size,
        "sha256": hashlib.sha256(name.encode()).hexdigest(),
        "built": True,
        "kept": False,
        "build_seconds": seconds,
        "test": test,
        "emulation": None,
        "environment": {"CFLAGS": f"-march={cpu}"},
        "config_settings": {},
        "toolkit": {"version": "13.0", "identity": "0" * 64, "components": []} if gpus else None,
        "overrides": [],
        "architectures": [],
        "not_reproducible": None,
        "verdict": verdict(name, cpu, isa=isa),
    } | more


def verdict(name: str, cpu: str = "x86-64", *, isa: str = "ok", findings: list[dict[str, Any]] | None = None) -> Any:
    """What was proved of a wheel with one library."""
    library = {
        "member": "demo.so",
        "machine": "x86_64",
        "code_size": 1000,
        "level": cpu,
        "functions_above": 0,
        "accepted": {},
        "violations": [],
        "dispatched": [],
    }
    tested = int(isa.split()[1]) if "tested" in isa else 0
    if tested:
        library |= {"functions_above": tested, "accepted": {"runs after a test of the processor": tested}}
    return {
        "wheel": name,
        "cpu": cpu,
        "claimed": cpu != "x86-64",
        "failed": isa == "failed",
        "isa": isa,
        "functions": {"tested": tested} if tested else {},
        "gpu": "no code",
        "claimed_gpus": [],
        "findings": findings or ([finding("error", "needs more")] if isa == "failed" else []),
        "libraries": [library],
        "gpus": [],
    }


def finding(severity: str, what: str, *, rule: str = "isa-above", member: str | None = None) -> dict[str, Any]:
    return {"severity": severity, "rule": rule, "member": member, "what": what, "advice": ""}


def failure(label: str | None, error: str, *, cpu: str = "x86-64", log: str | None = None) -> dict[str, Any]:
    """What a report says of a wheel that there should be."""
    return {
        "python": "3.12",
        "cpu": cpu,
        "properties": [],
        "choices": {},
        "requires": {},
        "local": "",
        "gpus": None,
        "compiled_for": None,
        "label": label,
        "error": error,
        "log": log,
    }


def override(*removed: str, sources: tuple[str, ...] = ("src/kernel.c",), **more: Any) -> dict[str, Any]:
    """A compiler command of which flags were taken out."""
    lists = {"removed": list(removed), "added": [], "refused": [], "kept": [], "why": []}
    return {"program": "gcc", "sources": list(sources), **lists, "object": "", **more}


def choice(machine: str, wheel: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """What a report says of a machine that gets *wheel*."""
    got = (wheel["wheel"], wheel["label"], wheel["bytes"]) if wheel else (None, None, None)
    given = MachineChoice(
        machine=machine, python="3.12", cpu="x86-64-v3", wheel=got[0], label=got[1], size=got[2], why="best"
    )
    return {**to_builtins(given), **more}


def bench_data(bench: BenchReport) -> Any:
    """*bench* as `json.loads` gives it."""
    return json.loads(json.dumps(bench.data()))


def data(*wheels: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report of *wheels*; *more* takes the place of what is usual."""
    return {
        "format": 1,
        "name": "demo",
        "source": "demo==1.0",
        "wheels": list(wheels),
        "failures": [],
        "variants": [],
        "machines": [],
        "limits": to_builtins(limits()),
        "notes": [],
        "bench": [],
        "split": None,
    } | more


def report(*wheels: dict[str, Any], **more: Any) -> Report:
    return Report.of_data(data(*wheels, **more))
