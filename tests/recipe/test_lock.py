"""The file of a lock: what is written is read again, what is none is refused, and what a binding one lets through."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from vbuild.errors import RecipeError
from vbuild.recipe.lock import Lock, LockedRequirement
from vbuild.recipe.model import lock_file

KIND = "cpython-3.12-linux-x86_64"
HASH = f" --hash=sha256:{'5' * 64}"
LOCK = Lock(
    vbuild="1.0",
    recipe="0" * 64,
    source=f"sdist {'1' * 64}",
    natives=(("gmp", f"debian {'2' * 64}"),),
    toolkits=(("13.0 cublas", (("nvidia_cublas-13.0-py3-none-any.whl", "3" * 64),)),),
    requirements=(
        LockedRequirement(KIND, ("cython", "setuptools>=61"), (f"cython==3.0 --hash=sha256:{'4' * 64}",)),
        LockedRequirement(
            KIND,
            ("meson",),
            (f"meson==1.0 ; python_version < '3.13' --hash=sha256:{'5' * 64} --hash=sha256:{'6' * 64}",),
        ),
    ),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "demo.lock").write_text(LOCK.pack())
    assert Lock.load(tmp_path / "demo.lock") == LOCK


def test_a_lock_stands_beside_its_recipe() -> None:
    assert lock_file(Path("recipes/demo.toml")) == Path("recipes/demo.lock")
    assert lock_file(Path("demo/pyproject.toml")) == Path("demo/vbuild.lock")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lock": 2}, "lock: found 2, expected 1"),
        ({"lock": None}, "lock: missing; expected an integer"),
        ({"vbuild": 1}, "vbuild: expected a string, got 1"),
        ({"requirements": [{"python": KIND, "extra": 1}]}, "requirements[0].extra: no such key; known here: "),
        ({"toolkits": {"13.0": {"a.whl": 1}}}, "toolkits.13.0.a.whl: expected a string, got 1"),
        ({"more": 1}, "more: no such key; known here: "),
        *(
            (
                {"requirements": [{"python": KIND, "packages": [line]}]},
                f"requirements[0].packages[0]: {line!r} is not a pack",
            )
            for line in (
                "meson==1.0",
                "--index-url=x",
                f"-r x{HASH}",
                f"m==1\n-r x{HASH}",
                f"m=={HASH}",
                f"m==1 ; x\ny==1{HASH}",
            )
        ),
    ],
    ids=[
        "version",
        "no version",
        "no text",
        "key of a requirement",
        "hash",
        "key",
        "no hash",
        "index",
        "file",
        "line",
        "version missing",
        "line behind a marker",
    ],
)
def test_a_lock_that_says_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    data = {**json.loads(LOCK.pack()), **changes}
    file = tmp_path / "demo.lock"
    file.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    with pytest.raises(RecipeError) as refused:
        Lock.load(file)
    assert str(refused.value).replace('"', "").startswith(f"{file}: {message}")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON: Expecting value at line 1, column 1"),
        (b"{", "not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
        (b"[]", "expected a JSON object, got list"),
        (b"\xff", "not UTF-8 at byte 0x0"),
        (b"[" * 100_000, "JSON nested too deeply, of far too many values, or with a number too long"),
        (b"12", "expected a JSON object, got int"),
    ],
    ids=["empty", "cut", "list", "no text", "deep", "number"],
)
def test_what_is_no_lock_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "demo.lock").write_bytes(data)
    with pytest.raises(RecipeError) as refused:
        Lock.load(tmp_path / "demo.lock")
    assert str(refused.value) == f"{tmp_path}/demo.lock: {message}"


def test_requirements_are_found_by_what_they_were_resolved_with() -> None:
    cython, meson = (one.packages for one in LOCK.requirements)
    assert LOCK.packages(["setuptools>=61"], KIND) == LOCK.packages(["cython", "setuptools>=61"], KIND) == cython
    assert LOCK.packages({"meson"}, KIND) == meson
    assert LOCK.packages(["numpy"], KIND) is None
    assert LOCK.packages(["meson"], "cpython-3.13-linux-x86_64") is None


@pytest.mark.parametrize(
    ("requirements", "kind", "message"),
    [
        (["numpy", "meson"], KIND, f"--locked: numpy: not in the lock for {KIND}; write it again: vbuild lock"),
        (
            ["cython", "meson"],
            KIND,
            f"--locked: cython, meson: not in the lock for {KIND}; write it again: vbuild lock",
        ),
        (["meson"], "pypy-3.10-linux-x86_64", "--locked: meson: not in the lock for pypy-3.10-linux-x86_64; write it "),
    ],
)
def test_a_binding_lock_refuses_what_it_does_not_have(requirements: list[str], kind: str, message: str) -> None:
    with pytest.raises(RecipeError) as refused:
        replace(LOCK, is_binding=True).packages(requirements, kind)
    assert str(refused.value).startswith(message)
