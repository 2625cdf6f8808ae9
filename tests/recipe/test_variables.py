"""Which variables of the user's a build sees, by the table and by what is asked for."""

import pytest

from vbuild.errors import RecipeError
from vbuild.recipe.variables import NAMES, PREFIXES, for_installers, passed, variable_pattern

SECRETS = {
    "GITHUB_TOKEN": "word",
    "ACTIONS_RUNTIME_TOKEN": "word",
    "CI_JOB_TOKEN": "word",
    "CI_COMMIT_SHA": "abc",
    "AWS_SECRET_ACCESS_KEY": "word",
    "AWS_PROFILE": "mine",
    "TWINE_PASSWORD": "word",
    "UV_PUBLISH_TOKEN": "word",
    "HATCH_INDEX_AUTH": "word",
    "MATURIN_PYPI_TOKEN": "word",
    "SSH_AUTH_SOCK": "/run/agent",
    "GIT_CONFIG_VALUE_0": "Authorization: word",
    "SCCACHE_REDIS": "redis://me:word@host",
    "DATABASE_URL": "postgres://host",
}


def test_secrets_and_all_that_no_build_needs_are_held_back() -> None:
    assert passed(SECRETS) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "SOURCE_DATE_EPOCH", "https_proxy", "SSL_CERT_FILE"),
        *("CC", "CXXFLAGS", "CMAKE_ARGS", "PKG_CONFIG_PATH", "CCACHE_DIR", "RUSTFLAGS", "CARGO_HOME", "MAKEFLAGS"),
        *("CUDA_HOME", "CUDAARCHS", "NVCC_PREPEND_FLAGS", "SETUPTOOLS_SCM_PRETEND_VERSION", "SKBUILD_CMAKE_DEFINE"),
    ],
)
def test_what_compilers_and_backends_need_is_passed(name: str) -> None:
    assert passed({name: "some text", **SECRETS}) == {name: "some text"}


@pytest.mark.parametrize(
    "name",
    [
        *("CARGO_REGISTRIES_MINE_TOKEN", "CMAKE_API_KEY", "CMAKE_APIKEY", "CUDA_PASSWORD", "VBUILD_SECRET"),
        *("CCACHE_CREDENTIALS", "cmake_token", "PYTHON_Auth", "CMAKE_TOKEN_FILE", "NVIDIA_LOGIN"),
    ],
)
def test_a_name_that_speaks_of_a_secret_is_held_back_though_its_beginning_is_known(name: str) -> None:
    assert passed({name: "word"}) == {}


@pytest.mark.parametrize("name", ["CMAKE_TOKENIZER", "CMAKE_AUTHORS", "CUDA_KEYS", "PYTHONPASSAGE", "CMAKE_MONKEY"])
def test_a_name_that_only_has_such_a_word_in_it_is_passed(name: str) -> None:
    assert passed({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("text", "is_passed"),
    [
        ("https://me:word@proxy:8080", False),
        ("https://word@proxy", False),
        ("-DURL=https://me:word@host/path -DX=1", False),
        ("http://proxy:8080", True),
        ("https://host/path@2", True),
        ("https://host?mail=a@b", True),
        ("me@host", True),
    ],
)
def test_a_login_in_a_url_holds_a_variable_back(text: str, *, is_passed: bool) -> None:
    for name in ("HTTPS_PROXY", "CMAKE_ARGS", "CCACHE_REMOTE_STORAGE"):
        assert bool(passed({name: text})) is is_passed
        assert passed({name: text}, [name]) == {name: text}


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ((), set()),
        (("GITHUB_TOKEN",), {"GITHUB_TOKEN"}),
        (("github_token",), set()),
        (("CI_*",), {"CI_JOB_TOKEN", "CI_COMMIT_SHA"}),
        (("CI_?OB_TOKEN", "AWS_[!S]*"), {"CI_JOB_TOKEN", "AWS_PROFILE"}),
        (("*",), set(SECRETS)),
    ],
)
def test_what_is_asked_for_is_passed_whatever_it_is(asked: tuple[str, ...], names: set[str]) -> None:
    assert passed(SECRETS, asked).keys() == names


def test_installers_have_their_own_settings_besides_and_no_others() -> None:
    own = {
        "UV_DEFAULT_INDEX": "https://me:word@index",
        "PIP_INDEX_URL": "https://me:word@index",
        "HTTPS_PROXY": "https://me:word@proxy",
        "NETRC": "/home/me/netrc",
    }
    assert for_installers({**own, **SECRETS, "CC": "gcc"}) == {**own, "CC": "gcc"}
    assert passed(own) == {}
    assert for_installers(SECRETS, ["AWS_PROFILE"]) == {"AWS_PROFILE": "mine"}


def test_no_line_of_the_table_is_in_vain() -> None:
    assert [name for name in NAMES if name.startswith(PREFIXES)] == []
    assert [one for one in PREFIXES if one.startswith(tuple(other for other in PREFIXES if other != one))] == []
    assert passed(dict.fromkeys(NAMES, "1")).keys() == NAMES


@pytest.mark.parametrize("text", ["", "A=1", "A B", "1A", "-x", "A\n"])
def test_what_is_no_name_of_a_variable_is_refused(text: str) -> None:
    with pytest.raises(RecipeError) as refused:
        variable_pattern(text)
    assert str(refused.value) == (
        f"{text!r} is not the name of a variable; expected a name, or a pattern such as 'DEMO_*'"
    )
