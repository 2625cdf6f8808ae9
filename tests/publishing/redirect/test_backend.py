"""The backend that goes into redirecting sdists, hook by hook: which wheel, from where, and when it refuses."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import packaging
import pytest

from tests.factories.redirect_installs import (
    NAME,
    URL,
    V3,
    closed,
    dripping,
    interpreters,
    laid_out,
    redirected,
    release,
    self_signed,
    served,
    unpacked,
)
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.files.hashing import sha256_of
from vbuild.publishing.redirect import redirectbackend as backend

Source = Callable[..., Path]

# which knows no --version
OPENSSL = pytest.mark.skipif(not shutil.which("openssl"), reason="openssl not on this machine")

_LEGACY = {"manylinux1_": "manylinux_2_5_", "manylinux2010_": "manylinux_2_12_", "manylinux2014_": "manylinux_2_17_"}
_PLACES = ("VBUILD_FIND_LINKS", "PIP_FIND_LINKS", "UV_FIND_LINKS", "VBUILD_MIRROR", "VBUILD_SELECT")
_NETWORK = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "http_proxy", "https_proxy")
_BACKEND = Path(backend.__file__).parent
_TAGS = (
    "import sys; sys.path.insert(0, sys.argv[1]); import redirectbackend; print(*redirectbackend._tags(), sep='\\n')"
)
# packaging 26.4 does not run on Python 3.9, and pip has an older one in it; uv has linux_x86_64 after manylinux
_PACKAGING = """
import itertools, sys
sys.path.append(sys.argv[1])
try:
    from packaging.tags import sys_tags
except SyntaxError:
    sys.path.insert(0, sys.argv[1])
    from pip._vendor.packaging.tags import sys_tags
for _, group in itertools.groupby(sys_tags(), key=lambda tag: (tag.interpreter, tag.abi)):
    print(*sorted(group, key=lambda tag: tag.platform.startswith("linux_")), sep="\\n")
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_PLACES, *_NETWORK):
        # set, so that it is as before in the end: the backend sets some
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Lays the wheels in ``dist`` out, and goes into what the sdist holds, as installers do."""

    def inside(url: str = URL, *, by_hardware: bool = False) -> Path:
        laid = laid_out(tmp_path / "dist", tmp_path / "out", url, by_hardware=by_hardware)
        monkeypatch.chdir(unpacked(laid))
        (tmp_path / "got").mkdir()
        return laid

    return inside


def got(tmp_path: Path) -> str:
    return backend.build_wheel(str(tmp_path / "got"))


def refused(tmp_path: Path) -> str:
    with pytest.raises(SystemExit) as refusal:
        got(tmp_path)
    assert list((tmp_path / "got").iterdir()) == []
    return str(refusal.value)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters())
def test_its_tags_are_those_of_packaging_in_the_same_order(python: Path) -> None:
    command = [str(python), "-I", "-c", _TAGS, str(_BACKEND)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    expected = []
    command = [str(python), "-I", "-c", _PACKAGING, str(Path(packaging.__file__).parents[1])]
    for tag in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split():
        for old, new in _LEGACY.items():
            tag = tag.replace(old, new)  # noqa: PLW2901 - one after the other
        expected.append(tag)
    # packaging knows no glibc before 2.5, for which there was never a platform tag
    assert [tag for tag in found if tag in set(expected)] == list(dict.fromkeys(expected))
    assert all("linux_2_" in tag for tag in set(found) - set(expected))


@needs("musl-gcc")
def test_an_interpreter_on_musl_takes_wheels_for_musl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }")
    subprocess.run(["musl-gcc", "-o", tmp_path / "python", tmp_path / "main.c"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    found = list(backend._platforms())  # noqa: SLF001 - no interpreter on musl is at hand
    machine = os.uname().machine
    assert found[-3:] == [f"musllinux_1_1_{machine}", f"musllinux_1_0_{machine}", f"linux_{machine}"]


def test_an_interpreter_of_32_bits_takes_pure_wheels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "maxsize", 2**31 - 1)
    assert all(tag.endswith("-any") for tag in backend._tags())  # noqa: SLF001 - none is at hand


def test_the_wheel_of_the_best_tag_is_handed_over_as_it_is(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist", name=NAME)
    best = f"demo-1.0-py3{sys.version_info[1]}-none-any.whl"
    wheel(tmp_path / "dist", best)
    laid = source()
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(laid / "wheels"))
    assert got(tmp_path) == best
    assert (tmp_path / "got" / best).read_bytes() == (tmp_path / "dist" / best).read_bytes()


def test_a_variant_is_taken_where_its_label_is_asked_for(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist", "v3")
    laid = source()
    monkeypatch.setenv("VBUILD_FIND_LINKS", (laid / "wheels").as_uri())
    monkeypatch.setenv("VBUILD_SELECT", "x86_64_v3")
    assert got(tmp_path) == NAME
    assert sha256_of(tmp_path / "got" / NAME) == sha256_of(tmp_path / "dist" / V3)
    monkeypatch.setenv("VBUILD_SELECT", "x86_64_v9")
    (tmp_path / "got" / NAME).unlink()
    python, tag = sys.version.split()[0], backend._tags()[0]  # noqa: SLF001 - what the message names
    assert refused(tmp_path) == f"demo-1.0: no x86_64_v9 wheel for Python {python}, {tag}; there are\n{V3}\n{NAME}"


def test_a_release_without_variants_does_not_mind_which_is_asked_for(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable may be for another project of the same installation."""
    release(tmp_path / "dist")
    laid = source()
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(laid / "wheels"))
    monkeypatch.setenv("VBUILD_SELECT", "x86_64_v3")
    assert got(tmp_path) == NAME


def test_hardware_chooses_where_the_sdist_has_an_order(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist", "v1")
    laid = source(by_hardware=True)
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(laid / "wheels"))
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "redirecthardware", raising=False)
    assert got(tmp_path) == NAME
    taken = V3.replace("v3", "v1") if os.uname().machine == "x86_64" else NAME
    assert sha256_of(tmp_path / "got" / NAME) == sha256_of(tmp_path / "dist" / taken)


def test_a_wheel_for_other_pythons_is_left_alone(tmp_path: Path, source: Source) -> None:
    wheel(tmp_path / "dist", NAME, metadata="Requires-Python: >=3.99\n")
    wheel(tmp_path / "dist", "demo-1.0-cp399-none-any.whl")
    source()
    assert refused(tmp_path).endswith("there are\ndemo-1.0-cp399-none-any.whl\ndemo-1.0-py3-none-any.whl")


def test_folders_come_before_mirrors_and_mirrors_before_the_url(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist")
    laid = source("https://last.example.org")
    places = [laid.with_name(name) for name in ("o urs", "pip", "pip2", "uv")]
    for place in places:
        place.mkdir()
        (place / NAME).hardlink_to(tmp_path / "dist" / NAME)
    ours, pip, pip2, uv = places
    monkeypatch.setenv("VBUILD_FIND_LINKS", f"file://{ours}")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{pip} https://example.org/page.html file://localhost{pip2}")
    monkeypatch.setenv("UV_FIND_LINKS", f"https://example.org,{uv}")
    monkeypatch.setenv("VBUILD_MIRROR", "https://first.example.org/a/ https://first.example.org/b")
    table = json.loads(Path("wheels.json").read_text())
    assert list(backend._places(table, NAME)) == [  # noqa: SLF001 - the order, without asking anyone
        *((place / NAME).as_uri() for place in places),
        *(f"https://first.example.org/{part}/{NAME}" for part in "ab"),
        f"https://last.example.org/wheels/{NAME}",
    ]


def test_folders_of_pip_and_uv_that_cannot_be_looked_into_are_left_alone(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    source((tmp_path / "out" / "redirect").as_uri())
    # to root, every folder is open; but no name is that long
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / ("x" * 300)))
    assert got(tmp_path) == NAME
    assert capsys.readouterr().err == ""


def test_mirrors_that_are_none_are_passed_over_with_a_line(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    source((tmp_path / "out" / "redirect").as_uri())
    monkeypatch.setenv("VBUILD_MIRROR", "/srv/wheels http://me:pw@[x http://me:pw@x:port")
    assert got(tmp_path) == NAME
    assert capsys.readouterr().err.splitlines() == [
        f"passed over /srv/wheels/{NAME}: unknown url type: '/srv/wheels/{NAME}'",
        f"passed over http://[x/{NAME}: Invalid IPv6 URL",
        f"passed over http://x:port/{NAME}: nonnumeric port: 'port'",
    ]


def test_a_folder_without_the_wheel_is_told(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    laid = source((tmp_path / "out" / "redirect").as_uri())
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(laid / "whels"))
    assert got(tmp_path) == NAME
    missing = laid / "whels" / NAME
    said = f"<urlopen error [Errno 2] No such file or directory: '{missing}'>"
    assert capsys.readouterr().err == f"passed over {missing.as_uri()}: {said}\n"


def test_bytes_that_are_not_pinned_are_refused_wherever_they_are(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(tmp_path / "dist") / NAME
    size, pinned = path.stat().st_size, sha256_of(path)
    laid = source(closed())
    other = laid.with_name("other")
    other.mkdir()
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(other))
    found = {}
    for data in (bytes(size), path.read_bytes()[:-1], path.read_bytes() + b"x"):
        (other / NAME).write_bytes(data)
        assert refused(tmp_path) == f"{NAME}: not found as pinned, see above"
        found[len(data)] = sha256_of(other / NAME)
    said = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()[::2]]
    assert said == [f"{bytes_} bytes of sha256 {sha}, pinned {size} of {pinned}" for bytes_, sha in found.items()]


@pytest.mark.nightly
def test_a_mirror_sends_on_without_the_login_and_to_no_file(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    source(closed())
    with served(tmp_path / "dist") as (url, asked):
        with redirected((tmp_path / "dist").as_uri()) as disk, redirected(url) as elsewhere:
            monkeypatch.setenv("VBUILD_MIRROR", " ".join(one.replace("//", "//me:pw@") for one in (disk, elsewhere)))
            assert got(tmp_path) == NAME
        assert asked == [(f"/{NAME}", "")]
    there = f"{(tmp_path / 'dist').as_uri()}/{NAME}"
    assert capsys.readouterr().err == (
        f"passed over {disk}/{NAME}: HTTP Error 302: Found - Redirection to url '{there}' is not allowed\n"
    )


def test_an_answer_without_end_is_not_read_to_its_end(tmp_path: Path, source: Source) -> None:
    release(tmp_path / "dist")
    with served(tmp_path / "out" / "redirect") as (url, asked):
        laid = source(url)
        (laid / "wheels" / NAME).unlink()
        with (laid / "wheels" / NAME).open("wb") as file:
            file.truncate(1 << 34)
        assert refused(tmp_path).endswith("not found as pinned, see above")
    assert len(asked) == 1


def test_an_answer_that_drips_is_passed_over(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    with dripping() as url:
        source(url)
        now = time.time
        monkeypatch.setattr(time, "time", lambda: 100 * now())  # so that a minute is soon over
        assert refused(tmp_path).endswith("not found as pinned, see above")
    assert re.search(r"passed over .*: \d+ bytes of sha256 \w+, pinned \d{3,} of ", capsys.readouterr().err)


def test_a_login_in_the_url_is_sent_and_never_told(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    release(tmp_path / "dist")
    source(closed())
    with served(tmp_path / "dist") as (url, asked):
        monkeypatch.setenv("VBUILD_MIRROR", f"{url.replace('//', '//me:s%40cret@')}/none {url.replace('//', '//me@')}")
        assert got(tmp_path) == NAME
    logins = [base64.b64decode(login.removeprefix("Basic ")).decode() for _, login in asked]
    # a name alone, as of a token, has no password (RFC 7617)
    assert logins == ["me:s@cret", "me:"]
    assert capsys.readouterr().err == f"passed over {url}/none/{NAME}: HTTP Error 404: File not found\n"


@pytest.mark.sampled(1)
@OPENSSL
@pytest.mark.parametrize("variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_certificate_of_ones_own_is_trusted_where_a_variable_names_it(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    release(tmp_path / "dist")
    with served(tmp_path / "out" / "redirect", certificate := self_signed(tmp_path)) as (url, asked):
        source(url)
        assert refused(tmp_path) == f"{NAME}: not found as pinned, see above"
        assert "certificate verify failed: self-signed certificate" in capsys.readouterr().err
        monkeypatch.setenv(variable, str(certificate))
        assert got(tmp_path) == NAME
    assert len(asked) == 1


@OPENSSL
def test_certificates_may_be_a_folder_and_files_need_none(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist")
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("PIP_CERT", str(trusted))
    with served(tmp_path / "out" / "redirect", certificate) as (url, _):
        laid = source(url)
        assert refused(tmp_path) == f"{NAME}: not found as pinned, see above"
        shutil.copy(certificate, trusted)
        subprocess.run(["openssl", "rehash", trusted], check=True)
        assert got(tmp_path) == NAME
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "none"))
    monkeypatch.setenv("VBUILD_FIND_LINKS", str(laid / "wheels"))
    assert got(tmp_path) == NAME


def test_a_proxy_is_asked_where_a_variable_names_it(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    release(tmp_path / "dist")
    source("http://wheels.example.org/demo")
    # what a proxy is asked for is a whole URL, which is a path as well
    (tmp_path / "proxy" / "http:" / "wheels.example.org").mkdir(parents=True)
    (tmp_path / "out" / "redirect").rename(tmp_path / "proxy" / "http:" / "wheels.example.org" / "demo")
    with served(tmp_path / "proxy") as (url, asked):
        monkeypatch.setenv("http_proxy", url)
        assert got(tmp_path) == NAME
    assert asked == [(f"http://wheels.example.org/demo/wheels/{NAME}", "")]


def test_metadata_takes_no_wheel(tmp_path: Path, source: Source) -> None:
    wheel(tmp_path / "dist", NAME, metadata="Summary: Größe\nRequires-Dist: six\n")
    source(closed())
    assert backend.prepare_metadata_for_build_wheel(str(tmp_path / "got")) == "demo-1.0.dist-info"
    assert (tmp_path / "got" / "demo-1.0.dist-info" / "METADATA").read_bytes() == Path("PKG-INFO").read_bytes()


def test_metadata_has_the_fields_of_the_wheel_that_fits(tmp_path: Path, source: Source) -> None:
    wheel(tmp_path / "dist", NAME, metadata="Requires-Dist: six\n")
    wheel(tmp_path / "dist", "demo-1.0-cp399-none-any.whl", metadata="Requires-Dist: attrs\n")
    source(closed())
    backend.prepare_metadata_for_build_wheel(str(tmp_path / "got"))
    said = (tmp_path / "got" / "demo-1.0.dist-info" / "METADATA").read_text()
    assert said == "Requires-Dist: six\n" + Path("PKG-INFO").read_text()


def test_nothing_can_be_edited_or_packed_again() -> None:
    for hook in (backend.build_editable, backend.build_sdist):
        with pytest.raises(SystemExit) as refusal:
            hook("folder", {}, None)
        assert str(refusal.value) == "no source here: this sdist only hands over finished wheels"
