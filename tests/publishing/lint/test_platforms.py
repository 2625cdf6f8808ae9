"""Which platform tags PyPI takes, compared with those that packaging and auditwheel know."""

import json
from importlib.resources import files

import pytest

from vbuild.publishing.lint.index import is_bare_linux, is_taken


@pytest.mark.parametrize("libc", ["manylinux", "musllinux"])
def test_what_auditwheel_writes_is_taken_and_what_it_starts_from_is_not(libc: str) -> None:
    policies = json.loads(files("auditwheel.policy").joinpath(f"{libc}-policy.json").read_text())
    written = {
        f"{name}_{architecture}"
        for policy in policies
        for name in (policy["name"], *policy["aliases"])
        for architecture in policy["symbol_versions"]
    }
    # auditwheel is ahead of PyPI there, and its images wait for PyPI
    written = {platform for platform in written if not platform.endswith("_loongarch64")}
    refused = {platform for platform in written if not is_taken(platform)}
    assert all(platform.startswith("linux_") for platform in refused)
    assert {platform for platform in written if is_bare_linux(platform)} == refused
