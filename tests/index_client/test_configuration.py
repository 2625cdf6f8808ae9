"""pip's configuration: read from pip itself, and handed on."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories.sources import index, pinned, sdist, served
from vbuild.build.source import fetched_source
from vbuild.errors import FetchError
from vbuild.index_client import configuration
from vbuild.index_client.configuration import Indexes, find_python


def _env(tmp_path: Path, conf: str = "", **more: str) -> dict[str, str]:
    """An environment in which pip has only the configuration *conf*, and the variables in *more*."""
    (tmp_path / "pip.conf").write_text(conf)
    bare = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    empty = {name: str(tmp_path / "nothing") for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "HOME")}
    return {**bare, **empty, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), **more}


def test_a_file_an_install_section_and_the_environment_override_in_this_order(tmp_path: Path) -> None:
    conf = """
    [global]
    index-url = https://global.example/simple
    extra-index-url =
        https://one.example/simple
        https://two.example/it's
    trusted-host = one.example
    timeout = 60
    [install]
    index-url = https://install.example/simple
    no-index = true
    [download]
    find-links = https://download.example
    """
    indexes = Indexes.configured(_env(tmp_path, conf, PIP_TRUSTED_HOST="two.example three.example", PIP_QUIET="3"))
    assert indexes == Indexes(
        index_url="https://install.example/simple",
        extra_index_urls=("https://one.example/simple", "https://two.example/it's"),
        no_index=True,
        trusted_hosts=("two.example", "three.example"),
        timeout=60.0,
        cert=indexes.cert,
    )


def test_without_a_configuration_the_tools_keep_their_defaults(tmp_path: Path) -> None:
    indexes = Indexes.configured(_env(tmp_path, PIP_CERT=""))
    assert indexes == Indexes(cert=indexes.cert)
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"} & indexes.environment().keys()


def test_paths_become_urls(tmp_path: Path) -> None:
    indexes = Indexes.configured(_env(tmp_path, PIP_FIND_LINKS=f"{tmp_path}/a,b https://x.example"))
    assert indexes.find_links == (f"{tmp_path.as_uri()}/a%2Cb", "https://x.example")
    assert indexes.environment()["UV_FIND_LINKS"] == f"{tmp_path.as_uri()}/a%2Cb,https://x.example"


def test_every_setting_has_its_variable_for_uv() -> None:
    indexes = Indexes(
        index_url="https://a.example/simple",
        extra_index_urls=("https://b.example/simple", "https://c.example/simple"),
        no_index=True,
        trusted_hosts=("b.example", "c.example:8080"),
        cert="/ca.pem",
        client_cert="/me.pem",
        proxy="http://proxy.example:3128",
        timeout=30.0,
        keyring="subprocess",
    )
    assert indexes.environment() == {
        "UV_DEFAULT_INDEX": "https://a.example/simple",
        "UV_INDEX": "https://b.example/simple https://c.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_NO_INDEX": "1",
        "UV_INSECURE_HOST": "b.example c.example:8080",
        "UV_HTTP_TIMEOUT": "30",
        "UV_KEYRING_PROVIDER": "subprocess",
        "SSL_CERT_FILE": "/ca.pem",
        "SSL_CLIENT_CERT": "/me.pem",
        "ALL_PROXY": "http://proxy.example:3128",
    }


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ("global.timeout='soon'", "pip config list: timeout 'soon' is not a number of seconds"),
        ("global.timeout='nan'", "pip config list: timeout 'nan' is not a number of seconds"),
        ("global.timeout='-1'", "pip config list: timeout '-1' is not a number of seconds"),
        ("global.timeout='inf'", "pip config list: timeout 'inf' is not a number of seconds"),
        (
            "global.index-url='~no-such-user/simple'",
            "pip config list: '~no-such-user/simple' is not a path: Could not determine home directory.",
        ),
        ("global.cert='/a", 'pip config list: "global.cert=\'/a" is not a setting that can be read'),
    ],
)
def test_settings_that_cannot_be_read_are_refused(listing: str, message: str) -> None:
    with pytest.raises(FetchError) as refused:
        Indexes.parse(listing)
    assert str(refused.value) == message


def test_a_configuration_that_pip_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="pip config list: exit status"):
        Indexes.configured(_env(tmp_path, "not a section"))


_URLS = st.lists(st.from_regex(r"https://[a-z]{1,9}\.example/[a-z']{0,9}", fullmatch=True), max_size=3).map(tuple)


@given(_URLS, _URLS, st.booleans())
def test_what_pip_prints_is_read_back(extra: tuple[str, ...], links: tuple[str, ...], no_index: bool) -> None:  # noqa: FBT001 - drawn
    settings = {"extra-index-url": "\n".join(extra), "find-links": " ".join(links), "no-index": str(no_index).lower()}
    listing = "\n".join(f"global.{key}={value!r}" for key, value in settings.items())
    assert Indexes.parse(listing) == Indexes(extra_index_urls=extra, find_links=links, no_index=no_index)


@pytest.mark.nightly
def test_uv_finds_what_pip_is_configured_for(tmp_path: Path) -> None:
    with served(index(tmp_path / "simple", sdist(tmp_path))) as url:
        env = _env(tmp_path, PIP_INDEX_URL=url, PIP_EXTRA_INDEX_URL=str(tmp_path / "none"))
        env |= {**Indexes.configured(env).environment(), "UV_CACHE_DIR": str(tmp_path / "cache")}
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--no-header",
            "--no-annotate",
            "--no-deps",
            "-",
        ]
        ran = subprocess.run(command, env=env, input="demo", capture_output=True, text=True, check=True)
    assert ran.stdout == "demo==1.0\n"


def test_a_proxy_is_used(tmp_path: Path) -> None:
    archive = sdist(tmp_path)
    # a static server is proxy enough: it is asked for http://nowhere.example/demo/, and answers by the path
    with (
        served(tmp_path) as proxy,
        pytest.raises(FetchError, match=r"no sdist of this version on http://nowhere\.example"),
    ):
        fetched_source(
            pinned(archive), tmp_path / "cache", indexes=Indexes(index_url="http://nowhere.example", proxy=proxy)
        )


def test_a_python_of_pyenv_is_found_wherever_its_shims_lead(tmp_path: Path) -> None:
    """A shim of a version that is not chosen ends with a message; other shims are left to uv."""
    name = "python{}.{}".format(*sys.version_info)
    (shim := tmp_path / "shims" / name).parent.mkdir()
    shim.write_text(f"#!/bin/sh\necho 'pyenv: {name}: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    installed = tmp_path / "versions" / platform.python_version() / "bin" / name
    installed.parent.mkdir(parents=True)
    installed.symlink_to(Path(sys.base_prefix, "bin", name))
    environment = {
        "PATH": str(shim.parent),
        "PYENV_ROOT": str(tmp_path),
        "UV_PYTHON_INSTALL_DIR": str(tmp_path / "none"),
    }
    version = name.removeprefix("python")
    ran = find_python(version, environment)
    assert (ran.returncode, ran.stdout.strip()) == (0, str(installed)), ran.stderr
    installed.unlink()
    assert find_python(version, environment).returncode


def test_a_python_of_the_current_folder_is_found_by_its_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], check=True)
    environment = {"PATH": "", "UV_PYTHON_INSTALL_DIR": str(tmp_path / "none"), "PYENV_ROOT": str(tmp_path / "none")}
    assert find_python("{}.{}".format(*sys.version_info), environment).returncode
    assert find_python(".venv/bin/python", environment).stdout.strip() == str(tmp_path / ".venv/bin/python")


def _counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conf: str, **more: str) -> tuple[dict[str, str], Path]:
    """As `_env`, with a cache of its own; every Python that starts in it writes a line to the file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log, code = tmp_path / "started", tmp_path / "code"
    code.mkdir()
    (code / "sitecustomize.py").write_text(f"with open({str(log)!r}, 'a') as file:\n    file.write('one\\n')\n")
    log.touch()
    return _env(tmp_path, conf, PYTHONPATH=str(code), **more), log


def _in_another_process(env: dict[str, str]) -> Indexes:
    configuration._LISTINGS.clear()  # noqa: SLF001 - what another process does not have
    return Indexes.configured(env)


def test_pip_is_asked_once_by_all_processes_and_again_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, log = _counted(tmp_path, monkeypatch, "[global]\ntimeout = 60\n", PIP_FIND_LINKS="wheels")
    first = _in_another_process(env)
    assert first.timeout == 60
    assert _in_another_process(env) == first
    assert log.read_text() == "one\n"
    (tmp_path / "pip.conf").write_text("[global]\ntimeout = 100\n")
    assert _in_another_process(env).timeout == 100
    assert _in_another_process({**env, "PIP_TIMEOUT": "7"}).timeout == 7
    assert log.read_text() == "one\n" * 3


@pytest.mark.parametrize(
    "setting", ["index-url = https://name:secret@a.example/simple", "proxy = name:secret@a.example:3128"]
)
def test_settings_that_may_have_a_password_are_kept_nowhere(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, log = _counted(tmp_path, monkeypatch, f"[global]\n{setting}\n")
    assert _in_another_process(env) == _in_another_process(env) == Indexes.configured(env)
    assert log.read_text() == "one\n" * 2
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_what_no_setting_here_reads_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, _ = _counted(tmp_path, monkeypatch, "[global]\ntimeout = 60\n", PIP_OTHER="secret")
    _in_another_process(env)
    kept = [path.read_text() for path in (tmp_path / "cache").rglob("*.json")]
    assert len(kept) == 1
    assert "timeout" in kept[0]
    assert "secret" not in kept[0]
