"""Licences that forbid changes, and texts that only look like it; none takes longer than it is."""

import time
from pathlib import Path

import pytest

from tests.factories.wheels import wheel
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.licence import Prohibition, prohibitions

SDK = """1.2 Limitations.
(2) Except as expressly provided in this license, you
may not copy, sell, rent, sublicense, transfer, distribute,
modify, or create derivative works of any portion of the SDK.
"""


def found(folder: Path, text: str | bytes, *, name: str = "licenses/LICENSE.txt") -> list[Prohibition]:
    with open_wheel(wheel(folder, files={f"demo-1.0.dist-info/{name}": text})) as source:
        return list(prohibitions(source))


def test_a_sentence_that_forbids_changes_is_found_with_its_place(tmp_path: Path) -> None:
    (said,) = found(tmp_path, SDK)
    assert str(said) == (
        "demo-1.0.dist-info/licenses/LICENSE.txt, line 3: 'may not copy, sell, rent, sublicense, transfer, distribute, "
        "modify, or create derivative works of any portion of the SDK'"
    )


@pytest.mark.parametrize("name", ["LICENSE", "License.txt", "licenses/sub/EULA.pdf", "COPYING.lib", "NOTICE"])
def test_every_file_with_the_name_of_a_licence_is_read(tmp_path: Path, name: str) -> None:
    assert len(found(tmp_path, SDK, name=name)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You may not copy, modify, or distribute the Program except as expressly provided under this License.",
        "You may modify it and make derivative works. You may not sell it.",
        "You may not sell it; modify it, or make derivative works of it, as you like.",
        "You may modify it, but not sell derivative works. You must not.",
        "derivative works modify may not",
        "You may notify us of modified derivative works.",
    ],
)
def test_what_forbids_something_else_is_no_prohibition(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text) == []


@pytest.mark.parametrize(
    "text",
    ["may not " * 60_000, "may not modify " * 30_000, "modify " * 30_000 + "may not " * 30_000, "may" + " " * 500_000],
)
def test_a_licence_made_to_be_searched_for_hours_takes_no_time(tmp_path: Path, text: str) -> None:
    start = time.process_time()
    assert found(tmp_path, text) == []
    assert time.process_time() - start < 2


def forbidding(folder: Path, texts: dict[str, str], fields: str = "") -> list[tuple[str, bool]]:
    """The files with words that forbid changes, and whether they are the distribution's own."""
    files = {"demo/__init__.py": "", "demo/sub/more.py": "", "other/__init__.py": "", **texts}
    with open_wheel(wheel(folder, files=files, metadata=fields)) as source:
        return [(found.place.partition(",")[0], found.is_own) for found in prohibitions(source)]


@pytest.mark.parametrize(
    "path", ["LICENSE", "demo/LICENSE.txt", "demo/demo-EULA.txt", "demo-1.0.dist-info/licenses/EULA"]
)
def test_the_distributions_own_licence_counts_wherever_it_lies(tmp_path: Path, path: str) -> None:
    assert forbidding(tmp_path, {path: SDK}, "License-Expression: Apache-2.0\n") == [(path, True)]


@pytest.mark.parametrize(
    "path",
    [
        *("demo-1.0.dist-info/cuda-LICENSE", "demo-1.0.dist-info/licenses/LICENSE-CUDA.txt"),
        *("demo-1.0.dist-info/licenses/third_party/cuda/LICENSE", "demo/third_party/cuda/LICENSE"),
    ],
)
def test_a_components_licence_counts_only_if_nothing_says_what_the_distributions_is(tmp_path: Path, path: str) -> None:
    assert forbidding(tmp_path / "alone", {path: SDK}) == [(path, True)]
    assert forbidding(tmp_path / "field", {path: SDK}, "License-Expression: Apache-2.0\n") == [(path, False)]
    assert forbidding(tmp_path / "text", {path: SDK, "LICENSE": "As you like."}) == [(path, False)]


@pytest.mark.parametrize(
    "fields",
    [
        "License: NVIDIA Proprietary Software\n",
        "License-Expression: LicenseRef-Demo-Proprietary\n",
        "Classifier: License :: Other/Proprietary License\n",
        "License: You may not copy, modify\n        or create derivative works.\n",
    ],
)
def test_fields_that_forbid_are_read(tmp_path: Path, fields: str) -> None:
    assert forbidding(tmp_path, {}, fields) == [("demo-1.0.dist-info/METADATA", True)]


def test_the_field_that_forbids_is_shown_and_not_another(tmp_path: Path) -> None:
    """As NCCL's packages have had it."""
    fields = "License: BSD-3-Clause\nClassifier: License :: Other/Proprietary License\n"
    made = wheel(tmp_path, "demo-1.0-py3-none-any.whl", {}, metadata=fields)
    with open_wheel(made) as opened:
        (found,) = prohibitions(opened)
    assert found.sentence == "License :: Other/Proprietary License"


def test_fields_that_allow_forbid_nothing(tmp_path: Path) -> None:
    assert forbidding(tmp_path, {}, "License: MIT\nClassifier: License :: OSI Approved :: MIT License\n") == []
