"""What goes to workers: values that mean the same on another machine."""

import sys
from pathlib import Path

from msgspec.structs import replace

from tests.factories.recipes import recipe
from vbuild.recipe.target import Target
from vbuild.release.cache import BuildCache
from vbuild.release.model import ReleaseContext, ReleaseFamily
from vbuild.release.remote import PythonHome, RunMessage
from vbuild.workers.executor import opened, packed

TEXT = """
[matrix]
cpu = ["x86-64", "x86-64-v2"]
python = ["3.12", "3.13"]
[build]
env = { A = "b" }
[variant.providers.x86_64]
requires = ["provider-variant-x86-64"]
[split]
"""


def context(folder: Path) -> ReleaseContext:
    read = recipe(folder, TEXT.replace('python = ["3.12", "3.13"]\n', ""))
    targets = read.targets
    return ReleaseContext(
        recipe=read,
        targets=targets,
        folder=folder,
        stage=folder,
        family=ReleaseFamily.of(read, targets),
        cache=BuildCache(folder, fresh=True),
        is_part=True,
    )


def target(folder: Path, python: str) -> Target:
    return replace(context(folder).targets[1], python=python)


def test_a_parcel_is_the_same_on_the_other_side(tmp_path: Path) -> None:
    made = context(tmp_path)
    parcel = RunMessage.of("name", made, source="digest")
    arrived = opened(packed(parcel))
    assert arrived == parcel
    assert (arrived.is_part, arrived.fresh, arrived.source) == (True, True, "digest")
    assert arrived.recipe.build == made.recipe.build
    for there, here in zip(opened(packed(made.targets)), made.targets, strict=True):
        assert there == here
        assert arrived.family.document(there) == made.family.document(here)


def test_what_workers_do_not_read_stays_here(tmp_path: Path) -> None:
    sent = RunMessage.of("name", context(tmp_path), source="digest").recipe
    assert (sent.variant, sent.split, sent.matrix.cpus) == (None, None, ())


def test_a_python_that_is_named_by_version_or_path_is_meant_so_everywhere(tmp_path: Path) -> None:
    for python in ("3.12", "/opt/python/bin/python"):
        sent = target(tmp_path, python)
        assert PythonHome("/usr/bin/python3", "cpython@3.12").local(sent) is sent


def test_the_python_that_runs_vbuild_is_one_of_its_version_there(tmp_path: Path) -> None:
    here, elsewhere = PythonHome.of_this(), "/elsewhere/bin/python"
    sent = target(tmp_path, elsewhere)
    assert PythonHome(elsewhere, here.version).local(sent).python == sys.executable
    assert PythonHome(elsewhere, "cpython@3.9").local(sent).python == "cpython@3.9"
    assert here.version.startswith(f"{sys.implementation.name}@{sys.version_info[0]}.{sys.version_info[1]}")
