"""Fuzz what reads strangers' files: every format that vbuild takes, each for its share of the time.

    python -m tests.fuzz [--seconds N] [--corpus FOLDER] [--minimize] [TARGET ...]

*N* is for all targets together; a night, eight hours, where it is left out. A finding is written to
``tests/fuzz/findings/TARGET/SHA-256.bin`` and told with the command that reads it alone; the exit status is then 1.
Where atheris is installed (the extra ``fuzz``, CPython 3.11 to 3.13) inputs are led by the branches they reach, and
those that reached new ones are kept in the corpus for the next time; elsewhere they are mutants that Hypothesis makes.
``--minimize`` does not fuzz: of the corpus it leaves the shortest inputs that reach as much as all of them.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

from platformdirs import user_cache_path

from tests.fuzz.target import ROOM, short_lived

if IS_GUIDED := importlib.util.find_spec("atheris") is not None:
    from tests.fuzz.guided import fuzz, spare, trace
else:
    from tests.fuzz.mutated import fuzz

from tests.fuzz.targets import TARGETS  # after what has to see it imported

FINDINGS = Path(__file__).parent / "findings"
_NIGHT = 8 * 60 * 60
# a target that does not end when it should: the last input, and atheris looking back at its corpus
_PATIENCE = 120
_TAIL = 12
# characters of what a process said last
_SHOWN = 2000
# libFuzzer says it at times, and both fuzzers at the end
_COUNT = re.compile(r"^(?:#|Done )(\d+)", re.MULTILINE)
# what libFuzzer says of branches, of these with how often each was taken, and of the inputs that reached them
_REACHED = re.compile(r" cov: (\d+) ft: (\d+) corp: (\d+)")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=_NIGHT, metavar="N")
    parser.add_argument("--corpus", type=Path, default=user_cache_path("vbuild") / "fuzz", metavar="FOLDER")
    parser.add_argument("--minimize", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    asked = parser.parse_args(words)
    if unknown := [name for name in asked.targets if name not in TARGETS]:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    names = asked.targets or list(TARGETS)
    if asked.minimize:
        if not IS_GUIDED:
            parser.error("a corpus is minimized by atheris: the extra fuzz")
        for name in names:
            minimize(name, asked.corpus / name)
        return 0
    found = 0
    until = time.monotonic() + asked.seconds
    for place, name in enumerate(names):
        share = (until - time.monotonic()) / (len(names) - place)
        found += fuzzed(name, max(1, share), asked.corpus / name)
    return int(found > 0)


def fuzzed(name: str, seconds: float, corpus: Path) -> int:
    """How many findings fuzzing the target *name* for so many *seconds* gave; they are written down."""
    corpus.mkdir(parents=True, exist_ok=True)
    with short_lived() as made:
        folder = Path(made)
        begun, processed = time.monotonic(), _processed()
        process = _started(folder, fuzz, name, seconds, folder, corpus)
        process.join(seconds + _PATIENCE)
        ended = "without an end" if process.exitcode is None else process.exitcode
        process.kill()
        process.join()
        took, worked = time.monotonic() - begun, max(_processed() - processed, 0.01)
        inputs = _count(folder)
        if ended == 0:  # else the latest input is what ended it
            (folder / "latest").unlink(missing_ok=True)
        findings = list(_findings(name, folder))
        how = "guided" if IS_GUIDED else "mutated"
        speed = f"{took:.0f} s, {inputs / worked:.0f} a second of CPU"
        reached = _reached(folder)
        print(f"{name}: {inputs} inputs in {speed}, {how}{reached}: {len(findings)} findings", flush=True)
        if not findings and (ended != 0 or not inputs):
            log_of = (folder / "log").read_text(errors="replace").splitlines()
            print(f"{name}: the fuzzer ended {ended}:", *log_of[-_TAIL:], sep="\n    ", flush=True)
            return 1
        for finding, said in findings:
            print(f"{name}: {said}\n    python -m tests.fuzz.alone {name} {finding}", flush=True)
    return len(findings)


def minimize(name: str, corpus: Path) -> None:
    """Delete from the *corpus* of the target *name* what reaches nothing but what shorter inputs do."""
    inputs = sorted(corpus.glob("*"), key=lambda path: path.stat().st_size)
    if not inputs:
        return
    with short_lived() as made:
        folder = Path(made)
        _started(folder, trace, name, folder, inputs).join()
        gone = list(spare(folder, inputs))
    size = sum(path.stat().st_size for path in inputs)
    for path in gone:
        path.unlink()
    left = sum(path.stat().st_size for path in corpus.iterdir())
    print(f"{name}: {len(inputs)} inputs, {size / 1e6:.1f} MB, now {len(inputs) - len(gone)}, {left / 1e6:.1f} MB")


def _started(folder: Path, run: Callable[..., None], *given: object) -> ForkProcess:
    """A process that does *run* with what is *given*; what it says is in the file ``log`` of *folder*."""
    process = get_context("fork").Process(target=_alone, args=(folder, run, *given))
    process.start()
    return process


def _alone(folder: Path, run: Callable[..., None], *given: object) -> None:
    """Do *run* in this process, which may be ended at any moment."""
    os.environ[ROOM] = str(folder)
    with (folder / "log").open("wb") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    run(*given)


def _processed() -> float:
    """The processor time in seconds of processes that this one started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _count(folder: Path) -> int:
    """About how many inputs were read, as the fuzzer says last; 0 where it said nothing."""
    said = _COUNT.findall((folder / "log").read_text(errors="replace"))
    return int(said[-1]) if said else 0


def _reached(folder: Path) -> str:
    """How many branches were taken, and by how many inputs that are kept; nothing where the fuzzer does not count."""
    said = _REACHED.findall((folder / "log").read_text(errors="replace"))
    return ", {} branches ({} with counts) by {} inputs".format(*said[-1]) if said else ""


def _findings(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """The suspects in *folder* that break a law when they are read alone, where they are now, with what was said."""
    for suspect in (*sorted(folder.glob("suspect-*")), *folder.glob("latest")):
        ran = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.alone", name, suspect], check=False, capture_output=True, text=True
        )
        if ran.returncode == 1 and not ran.stdout:
            sys.exit(f"nothing can be read alone: {ran.stderr}")
        if ran.returncode:
            data = suspect.read_bytes()
            finding = FINDINGS / name / f"{hashlib.sha256(data).hexdigest()}.bin"
            finding.parent.mkdir(parents=True, exist_ok=True)
            finding.write_bytes(data)
            said = ran.stdout.strip() or f"ended with status {ran.returncode}: {ran.stderr.strip()[-_SHOWN:]}"
            yield finding, said.replace(str(suspect), finding.name)


if __name__ == "__main__":
    sys.exit(main())
