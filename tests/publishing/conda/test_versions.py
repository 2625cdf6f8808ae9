"""Version specifiers in conda's words: a table, and what py-rattler makes of every one of many."""

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.factories.rattler import rattler_answer
from vbuild.publishing.conda.plan import matchspec

# no post-release, local version or .dev: what conda does with these is said where they are mapped
VERSIONS = ["0.9", "1.3.9", "1.4a1", "1.4rc1", "1.4", "1.4.0", "1.4.2", "1.4.2.1", "1.40", "1.5a2", "1.5", "2.0a1", "2"]
VERSIONS += ["2.0.1", "3.0b1", "1!0.5", "10.0"]
OPERATORS = ["==", "!=", ">=", "<=", "<", ">", "~=", "==*", "!=*"]


@pytest.mark.parametrize(
    ("specifiers", "said"),
    [
        ("", ""),
        (">=2,<3", ">=2,<3a0"),
        ("<2.0.0", "<2a0"),
        ("<1.5.0", "<1.5a0"),
        ("<2rc1", "<2rc1"),
        ("<1.0.post1", "<1.0.post1"),
        ("<1!2.0", "<1!2a0"),
        (">=2.dev0,<3.1.dev2", ">=2a0,<3.1a0"),
        (">=2.0a1.dev2", ">=2.0a1.dev2"),
        ("~=1.4.2", ">=1.4.2,1.4.*"),
        ("~=2.2.post3", ">=2.2.post3,2.*"),
        ("~=1!2.3", ">=1!2.3,1!2.*"),
        ("==1.4.*", "1.4.*"),
        ("!=1.4.*", "!=1.4.*"),
        ("==1.0", "==1.0"),
        ("==1.0+cu126", "==1.0+cu126"),
        ("===1.0", "==1.0"),
        ("!=1.5,>=1.0RC1,<=v2", ">=1.0rc1,!=1.5,<=2"),
        (">1.7", ">1.7"),
    ],
)
def test_specifiers_are_said_in_conda_s_words(specifiers: str, said: str) -> None:
    assert matchspec(SpecifierSet(specifiers)) == said


def test_conda_allows_the_versions_that_pep_440_allows() -> None:
    specifiers = sorted({_specifier(operator, version) for operator in OPERATORS for version in VERSIONS} - {""})
    found = rattler_answer("matches", specs=[matchspec(SpecifierSet(text)) for text in specifiers], versions=VERSIONS)
    expected = [[SpecifierSet(text).contains(version, prereleases=True) for version in VERSIONS] for text in specifiers]
    assert dict(zip(specifiers, found, strict=True)) == dict(zip(specifiers, expected, strict=True))
    assert len(specifiers) > 100


def _specifier(operator: str, text: str) -> str:
    """The specifier of these parts; empty where PEP 440 has none."""
    release = ".".join(map(str, Version(text).release))
    if operator.endswith("*"):
        epoch = f"{Version(text).epoch}!" if Version(text).epoch else ""
        return f"{operator[:2]}{epoch}{release}.*"
    if operator == "~=" and "." not in release:
        return ""
    return f"{operator}{text}"
