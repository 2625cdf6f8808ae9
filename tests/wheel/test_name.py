import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from packaging.utils import parse_wheel_filename

from tests.factories.texts import TEXTS
from vbuild.errors import WheelError
from vbuild.wheel.name import WheelName

# more tags than the name of a file can stand for on most systems
TAGS = f"demo-1.0-{'.'.join(['py3'] * 20)}-{'.'.join(['none'] * 20)}-{'.'.join(['any'] * 20)}.whl"
REFUSED = {
    TAGS: f"'{TAGS}': stands for 8000 compatibility tags; expected 4096 at most",
    "demo-1.0-py3-none-any.zip": "'demo-1.0-py3-none-any.zip': not a wheel's file name: expected it to end in .whl",
    "demo-1.0-none-any.whl": (
        "'demo-1.0-none-any.whl': not a wheel's file name: 4 parts between dashes, expected 5, 6 or 7"
    ),
    "demo-1.0-1-py3-none-any-v3-x.whl": (
        "'demo-1.0-1-py3-none-any-v3-x.whl': not a wheel's file name: 8 parts between dashes, expected 5, 6 or 7"
    ),
    "../demo-1.0-py3-none-any.whl": (
        "'../demo-1.0-py3-none-any.whl': name '../demo': expected letters, digits, _ and . between letters or digits"
    ),
    "de/mo-1.0-py3-none-any.whl": (
        "'de/mo-1.0-py3-none-any.whl': name 'de/mo': expected letters, digits, _ and . between letters or digits"
    ),
    "demö-1.0-py3-none-any.whl": (
        "'demö-1.0-py3-none-any.whl': name 'demö': expected letters, digits, _ and . between letters or digits"
    ),
    "demo-x-py3-none-any.whl": "'demo-x-py3-none-any.whl': version 'x': expected a version as PEP 440 writes it",
    "demo-../1-py3-none-any.whl": (
        "'demo-../1-py3-none-any.whl': version '../1': expected a version as PEP 440 writes it"
    ),
    "demo-1.0-x-py3-none-any-v3.whl": (
        "'demo-1.0-x-py3-none-any-v3.whl': build tag 'x': expected a digit, then letters, digits, _ and ."
    ),
    "demo-1.0-1/2-py3-none-any.whl": (
        "'demo-1.0-1/2-py3-none-any.whl': build tag '1/2': expected a digit, then letters, digits, _ and ."
    ),
    "demo-1.0-py3.0-none-any.whl": (
        "'demo-1.0-py3.0-none-any.whl': Python tag 'py3.0': "
        "expected letters, digits and _, joined by dots, not starting with a digit"
    ),
    "demo-1.0-3py-none-any.whl": (
        "'demo-1.0-3py-none-any.whl': Python tag '3py': "
        "expected letters, digits and _, joined by dots, not starting with a digit"
    ),
    "demo-1.0-py3-no/ne-any.whl": (
        "'demo-1.0-py3-no/ne-any.whl': ABI tag 'no/ne': expected letters, digits and _, joined by dots"
    ),
    "demo-1.0-py3-none-../any.whl": (
        "'demo-1.0-py3-none-../any.whl': platform tag '../any': expected letters, digits and _, joined by dots"
    ),
    "demo-1.0-py3-none-a..b.whl": (
        "'demo-1.0-py3-none-a..b.whl': platform tag 'a..b': expected letters, digits and _, joined by dots"
    ),
    "demo-1.0-py3-none-any-V3.whl": (
        "'demo-1.0-py3-none-any-V3.whl': variant label 'V3': expected only a-z, 0-9, _ and . (PEP 825)"
    ),
    "demo-1.0-py3-none-any-.whl": (
        "'demo-1.0-py3-none-any-.whl': variant label '': expected only a-z, 0-9, _ and . (PEP 825)"
    ),
    "demo-1.0-py3-none-any-a\n.whl": (
        "'demo-1.0-py3-none-any-a\\n.whl': variant label 'a\\n': expected only a-z, 0-9, _ and . (PEP 825)"
    ),
}

words = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]*", fullmatch=True)
versions = st.builds(
    lambda release, tail: ".".join(map(str, release)) + tail,
    st.lists(st.integers(0, 2000), min_size=1, max_size=4),
    st.sampled_from(["", "a1", ".dev3", ".post1", "+cu12.6", "rc2.post1.dev4+local"]),
)
names = st.builds(
    WheelName,
    st.from_regex(r"[a-z0-9]([a-z0-9._]*[a-z0-9])?", fullmatch=True),
    versions,
    st.none() | st.from_regex(r"[0-9]{1,4}[a-z0-9_.]*", fullmatch=True),
    words,
    words,
    st.lists(words, min_size=1).map(".".join),
    st.none() | st.from_regex(r"[0-9a-z_.]+", fullmatch=True),
)


@pytest.mark.nightly
@given(names)
def test_every_name_is_found_again_in_its_text(name: WheelName) -> None:
    assert WheelName.parse(str(name)) == name


@pytest.mark.nightly
@given(names)
def test_packaging_reads_the_plain_name_alike(name: WheelName) -> None:
    assume("__" not in name.distribution)  # packaging refuses what setuptools once wrote
    project, version, build, tags = parse_wheel_filename(str(name.plain()))
    assert project == name.project
    assert name.release == f"{project.replace('-', '_')}-{version}"
    assert build == name.build_order
    assert tags == name.tags


@pytest.mark.parametrize(("filename", "message"), REFUSED.items())
def test_what_is_no_wheel_name_is_refused(filename: str, message: str) -> None:
    with pytest.raises(WheelError, match=f"^{re.escape(message)}$"):
        WheelName.parse(filename)


@given(TEXTS | st.text(alphabet="ab1.-_/\\!+ w").map(lambda text: text + ".whl"))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        name = WheelName.parse(text)
    except WheelError:
        return
    assert str(name) == text
    assert not set(text) & set("/\\ \n")


def test_a_normalised_name_is_the_one_new_wheels_must_have() -> None:
    name = WheelName.parse("My.Demo-1.0.RC1-1-py3-none-any-v3.whl")
    assert str(name.normalised()) == "my_demo-1.0rc1-1-py3-none-any-v3.whl"
    assert name.release == "my_demo-1.0rc1"
    assert name.project == "my-demo"
