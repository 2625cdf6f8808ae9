"""`vbuild check` of a redirect layout: pins that do not hold, and PKG-INFO that is not of the wheels."""

import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.redirect_installs import NAME, V3, V4, laid_out, release
from tests.factories.texts import CHARACTERS
from tests.factories.variants import document, variant, variant_wheel
from tests.factories.wheels import wheel
from vbuild.files.hashing import sha256_of
from vbuild.publishing.redirect.plan import problems

SDIST = "demo-1.0.tar.gz"


@pytest.fixture
def laid(tmp_path: Path) -> Path:
    return laid_out(release(tmp_path / "dist", "v3", "v4"), tmp_path / "out", by_hardware=True)


def found(laid: Path) -> list[str]:
    return [f"{problem.places[0]}: {problem.what} [{problem.rule}]" for problem in problems(laid)]


def rewritten(laid: Path, name: str, change: Callable[[str], str]) -> None:
    """The sdist in *laid* with its file *name* changed, and requirements.txt with its new hash."""
    path = laid / SDIST
    before, file = sha256_of(path), io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=file, mode="w") as new:
        for entry in old:
            data = (old.extractfile(entry) or io.BytesIO()).read()
            if entry.name == f"demo-1.0/{name}":
                data = change(data.decode()).encode()
                entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
    path.write_bytes(gzip.compress(file.getvalue()))
    pins = laid / "requirements.txt"
    pins.write_text(pins.read_text().replace(before, sha256_of(path)))


def row_changed(**keys: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        table = json.loads(text)
        table["wheels"][-1].update(keys)
        return json.dumps(table)

    return change


def test_what_was_made_has_no_problem(laid: Path, tmp_path: Path) -> None:
    wheel(tmp_path / "two", NAME, metadata="Requires-Dist: six\nLicense-File: LICENSE\n\nwords\n")
    wheel(tmp_path / "two", "demo-1.0-py311-none-any.whl", metadata="Requires-Dist: attrs\n")
    assert found(laid) == []
    assert found(laid_out(tmp_path / "two", tmp_path / "out2")) == []


def test_a_wheel_that_is_not_as_pinned_is_told_with_its_hash(laid: Path) -> None:
    path = laid / "wheels" / NAME
    size, pinned = path.stat().st_size, sha256_of(path)
    path.unlink()
    path.write_bytes(b"other")
    (laid / "wheels" / V3).unlink()
    (laid / "wheels" / "more.txt").write_text("")
    assert found(laid) == [
        f"{V3}: is pinned, and cannot be read: No such file or directory [pins]",
        f"{NAME}: 5 bytes of sha256 {sha256_of(path)}, pinned {size} of {pinned} [pins]",
        f"{SDIST}: has its variants in another order than their wheels give [variant]",
        "more.txt: is in no wheels.json, so it is never installed [pins]",
    ]


def test_a_pinned_file_that_is_no_wheel_is_told(laid: Path) -> None:
    path = laid / "wheels" / NAME
    path.unlink()
    path.write_bytes(b"other")
    rewritten(laid, "wheels.json", row_changed(size=5, sha256=sha256_of(path)))
    (problem,) = found(laid)
    assert problem.startswith(f"{NAME}: ")
    assert problem.endswith(" [archive]")


def test_variants_that_contradict_each_other_are_told(laid: Path) -> None:
    path = laid / "wheels" / V4
    path.unlink()
    variant_wheel(laid / "wheels", V4, document(variant("x86_64_v4", "x86_64 :: level :: v3")))

    def change(text: str) -> str:
        table = json.loads(text)
        table["wheels"][1].update(size=path.stat().st_size, sha256=sha256_of(path))
        return json.dumps(table)

    rewritten(laid, "wheels.json", change)
    assert found(laid)[-1] == (
        f"{SDIST}: {V3} and {V4}: the labels 'x86_64_v3' and 'x86_64_v4' stand for the same properties: "
        "x86_64 :: level :: v3 (PEP 825, variant label) [variant]"
    )


def test_pkg_info_that_is_not_of_the_wheels_is_told(laid: Path) -> None:
    rewritten(laid, "PKG-INFO", lambda text: text.replace(">=3.9", ">=3.8"))
    assert found(laid) == [
        f"{SDIST}: {name} is not as its PKG-INFO says: Requires-Python: lacks '>=3.8' and has '>=3.9' [metadata]"
        for name in (V3, V4, NAME)
    ]
    rewritten(laid, "PKG-INFO", lambda text: text.replace(">=3.8", ">=3.9").replace("Name: demo", "Name: other"))
    assert found(laid)[0] == f"{SDIST}: hands over {V3}, and its PKG-INFO is of other [metadata]"
    rewritten(laid, "PKG-INFO", lambda text: text.replace("Name: other\n", ""))
    assert found(laid) == [f"{SDIST}: PKG-INFO: no Name [metadata]"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _: "{}", "has no PKG-INFO and wheels.json as a redirecting sdist has them"),
        (lambda _: "[]", "has no PKG-INFO and wheels.json as a redirecting sdist has them"),
        (lambda _: "{", "cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (row_changed(file="../x.whl"), "has no PKG-INFO and wheels.json as a redirecting sdist has them"),
        (row_changed(file="a\0b.whl"), "has no PKG-INFO and wheels.json as a redirecting sdist has them"),
        (row_changed(file=5), "has no PKG-INFO and wheels.json as a redirecting sdist has them"),
    ],
    ids=["empty", "list", "no json", "a path", "no text", "a number"],
)
def test_a_table_that_is_none_is_told(laid: Path, change: Callable[[str], str], what: str) -> None:
    rewritten(laid, "wheels.json", change)
    assert found(laid)[0] == f"{SDIST}: {what} [archive]"


def test_an_sdist_that_is_damaged_or_misnamed_is_told(laid: Path) -> None:
    (laid / SDIST).rename(laid / "demo.tar.gz")
    assert found(laid)[0] == ("demo.tar.gz: has no PKG-INFO and wheels.json as a redirecting sdist has them [archive]")
    (laid / "demo.tar.gz").write_bytes(b"x")
    what = "not a gzipped tar archive, or damaged: Not a gzipped file (b'x')"
    assert found(laid)[0] == f"demo.tar.gz: {what} [archive]"
    (laid / "demo.tar.gz").unlink()
    assert found(laid)[0] == "redirect: has no sdist [sdist]"


def test_a_table_that_is_too_deep_is_told(laid: Path) -> None:
    rewritten(laid, "wheels.json", lambda _: "[" * 100_000)
    assert found(laid)[0].startswith(f"{SDIST}: cannot be read: maximum recursion depth exceeded")


@pytest.mark.nightly
@settings(max_examples=50)
@given(
    st.sampled_from(["file", "size", "sha256", "tags", "python", "label", "fields", "order"]),
    st.recursive(
        st.none() | st.integers() | st.text(CHARACTERS, max_size=9) | st.just(NAME),
        lambda one: st.lists(one, max_size=2) | st.dictionaries(st.text(CHARACTERS, max_size=3), one, max_size=2),
        max_leaves=4,
    ),
)
def test_whatever_a_table_says_is_told(key: str, value: Any) -> None:
    """A problem, or none where it stands for the same; never a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        laid = laid_out(release(Path(folder, "dist"), "v3"), Path(folder, "out"), by_hardware=True)

        def change(text: str) -> str:
            table = json.loads(text)
            (table if key == "order" else table["wheels"][-1])[key] = value
            return json.dumps(table)

        rewritten(laid, "wheels.json", change)
        assert all(problem.endswith("]") for problem in found(laid))
