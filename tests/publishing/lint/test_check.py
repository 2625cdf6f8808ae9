"""A folder checked as a whole: all that is wrong at once, and nothing that is not there."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories.release_folders import (
    PLAIN,
    SDIST,
    V2,
    V3,
    plain_release,
    problems_found,
    release_folder,
    release_wheel,
)
from tests.factories.wheels import wheel
from vbuild.errors import RepackageError
from vbuild.publishing.check import Checklist, check


def test_a_sound_release_has_no_problem(tmp_path: Path) -> None:
    found = check(release_folder(tmp_path))
    assert found == Checklist(str(tmp_path), ("demo-1.0",), 5, ())
    assert not found.failed
    assert found.data() == {"releases": ["demo-1.0"], "files": 5, "failed": False, "findings": []}


def test_pypi_takes_a_sound_plain_release(tmp_path: Path) -> None:
    assert problems_found(plain_release(tmp_path), pypi=True) == []


def test_what_is_wrong_with_many_files_alike_is_said_once(tmp_path: Path) -> None:
    release_folder(tmp_path)
    [found] = check(tmp_path, pypi=True).problems
    assert found.places == (V2, V3)
    assert str(found) == (
        f"error: {V2} and 1 more: PyPI takes no variant wheels yet, nor variants.json (PEP 825); "
        "upload the other files alone, and serve these from an index of your own: vbuild index --simple [variant]"
    )


def test_what_is_no_folder_and_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RepackageError, match=r"nowhere: cannot be looked at: No such file.*; expected wheels, or a fol"
    ):
        check(tmp_path / "nowhere")
    with pytest.raises(RepackageError, match="file: no wheel and no sdist"):
        check(tmp_path / "file")


def test_wheels_are_checked_as_the_folder_of_them_is(tmp_path: Path) -> None:
    paths = [wheel(tmp_path, f"{name}-1.0-py3-none-any.whl") for name in ("demo", "other")]
    assert check(*paths).problems == check(tmp_path).problems
    assert check(paths[1]).releases == ("other-1.0",)


@pytest.mark.parametrize("limit", [0, -1, 1025])
def test_a_limit_that_pypi_never_grants_is_refused(limit: int, tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refusal:
        check(plain_release(tmp_path), limit=limit)
    assert str(refusal.value) == f"a limit of {limit} MB a file: expected 1 to 1024, PyPI's largest"


def test_a_damaged_wheel_is_a_problem_like_others(tmp_path: Path) -> None:
    plain_release(tmp_path)
    whole = (tmp_path / PLAIN).read_bytes()
    broken = tmp_path / PLAIN.replace("311", "312")
    random.seed(7)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(3):
            data[random.randrange(len(data))] = random.randrange(256)
        broken.write_bytes(data[: random.choice([len(data), random.randrange(len(data))])])
        assert isinstance(check(tmp_path, pypi=True), Checklist)
    broken.write_bytes(whole[:-30])
    [first, *_] = problems_found(tmp_path)
    assert first.startswith(f"error archive: {broken.name}: ")


def test_a_damaged_sdist_is_a_problem_like_others(tmp_path: Path) -> None:
    plain_release(tmp_path)
    whole = (tmp_path / SDIST).read_bytes()
    random.seed(8)
    for _ in range(150):
        data = bytearray(whole)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        (tmp_path / SDIST).write_bytes(data[: random.choice([len(data), random.randrange(len(data))])])
        assert isinstance(check(tmp_path, pypi=True), Checklist)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("demo.whl", "not a wheel's file name: 1 parts between dashes, expected 5, 6 or 7"),
        ("demo-1.0-py3-none-any-V3.whl", "variant label 'V3': expected only a-z, 0-9, _ and . (PEP 825)"),
    ],
)
def test_a_name_that_is_no_wheels_is_an_error(name: str, what: str, tmp_path: Path) -> None:
    plain_release(tmp_path)
    (tmp_path / name).write_bytes((tmp_path / PLAIN).read_bytes())
    [found] = check(tmp_path).problems
    assert (found.is_error, found.places, found.what) == (True, (name,), what)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="has no file that can be opened but not read")
@pytest.mark.parametrize("name", [PLAIN, SDIST])
def test_a_file_that_cannot_be_read_is_an_error(name: str, tmp_path: Path) -> None:
    (plain_release(tmp_path) / name).unlink()
    (tmp_path / name).symlink_to("/proc/self/mem")
    assert problems_found(tmp_path)[0].startswith(f"error archive: {name}: ")


def test_a_wheel_without_metadata_is_an_error(tmp_path: Path) -> None:
    plain_release(tmp_path)
    wheel(tmp_path, PLAIN, {"demo-1.0.dist-info/METADATA": "Name: demo\n"})
    assert problems_found(tmp_path)[0] == f"error archive: {PLAIN}: demo-1.0.dist-info/METADATA: no Metadata-Version"


def test_one_version_in_two_spellings_is_an_error(tmp_path: Path) -> None:
    plain_release(tmp_path)
    release_wheel(tmp_path, "demo-1.0.0-py3-none-any.whl")
    assert problems_found(tmp_path)[0] == (
        "error name: demo-1.0 and 1 more: demo-1.0 and demo-1.0.0 are one version in two spellings"
    )


SHAPES = st.fixed_dictionaries(
    {
        "pythons": st.lists(st.sampled_from(["311", "312", "313"]), min_size=1, max_size=3, unique=True),
        "labels": st.lists(st.sampled_from(["x86_64_v2", "x86_64_v3", "x86_64_v4"]), max_size=3, unique=True),
    }
)


@settings(max_examples=25)
@given(shape=SHAPES, data=st.data())
def test_a_whole_release_is_sound_and_one_that_lacks_a_wheel_is_not(
    shape: dict[str, list[str]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("release")
    plain = [PLAIN.replace("311", python) for python in shape["pythons"]]
    variants = [name.replace(".whl", f"-{label}.whl") for name in plain for label in shape["labels"]]
    release_folder(folder, *plain, *variants)
    assert check(folder).problems == ()
    if variants:
        lost = data.draw(st.sampled_from([*plain, *variants]))
        (folder / lost).unlink()
        assert {str(problem.rule) for problem in check(folder).problems} <= {"plain", "labels", "index"}
        assert check(folder).problems


@settings(max_examples=6)
@given(names=st.permutations([PLAIN, V2, V3]))
def test_the_order_in_which_files_came_does_not_count(
    names: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("order")
    for number, name in enumerate(sorted(names)):
        release_wheel(folder, name, metadata=f"Requires-Dist: n{number}\n")
    expected = problems_found(folder)
    again = tmp_path_factory.mktemp("order")
    for name in names:
        (again / name).write_bytes((folder / name).read_bytes())
    assert problems_found(again) == expected
