"""Attestations of PEP 740: those with which pypi-attestations tests itself, made by Sigstore's two public instances."""

import json
import shutil
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from click.testing import CliRunner
from packaging.version import Version

from tests.factories.mirrors import fleet, lock_of
from tests.factories.wheels import wheel
from vbuild.api.shipping import verify_mirror
from vbuild.cli.main import main
from vbuild.errors import FetchError, WheelError
from vbuild.index_client.configuration import Indexes
from vbuild.index_client.located import Wanted
from vbuild.index_client.packages import download
from vbuild.index_client.pages import provenance_of
from vbuild.mirroring.mirror import mirror
from vbuild.mirroring.model import MirrorRequest
from vbuild.verification.model import VerifyRule
from vbuild.verification.verify import verify

attestations = pytest.importorskip("vbuild.verification.attestations", exc_type=ImportError)

VERSION, SHA256 = "0.0.30", "14ff13c76bbef02a483c2b77532da02bfd746b5141b881f355e06b9807434423"
SDIST = f"pypi_attestations-{VERSION}.tar.gz"
CIRCLE = "circleci_sign_publish_example-0.0.1.dev137-py3-none-any.whl"
REPOSITORY = "https://github.com/CircleCI-Public/sign-and-publish-examples"
# signed by a person, for the staging instance
PERSON = "rfc8785-0.1.2-py3-none-any.whl"
STAGING = "https%3A%2F%2Ftuf-repo-cdn.sigstage.dev"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheels and their attestations."""
    folder = tmp_path_factory.mktemp("published")
    try:
        download(
            Wanted("pypi-attestations", Version(VERSION), SHA256, SDIST), folder / SDIST, indexes=Indexes.configured()
        )
    except FetchError as error:
        pytest.skip(str(error))
    assets = folder / "assets"
    assets.mkdir()
    with tarfile.open(folder / SDIST) as archive:  # Debian 12's Python 3.11.2 knows no filter= of extractall
        for member in archive:
            file = archive.extractfile(member)
            if file and "/test/assets/" in member.name:
                (assets / PurePosixPath(member.name).name).write_bytes(file.read())
    return assets


@pytest.fixture
def given(published: Path, tmp_path: Path) -> Path:
    """The wheel that CircleCI published, with its provenance beside it."""
    for name in (CIRCLE, f"{CIRCLE}.provenance"):
        shutil.copy(published / name, tmp_path)
    return tmp_path / CIRCLE


def said(path: Path, **asked: Any) -> list[str]:
    """What is found of the attestations of the wheel at *path*."""
    found = attestations.attested(verify(path), attestations.AttestationRequest(**asked)).findings
    return [f"{one.severity}: {one.what}" for one in found if one.rule is VerifyRule.ATTESTATION]


def changed(given: Path, **fields: str) -> None:
    """Another publisher in the provenance of *given*."""
    path = given.with_name(f"{given.name}.provenance")
    data = json.loads(path.read_bytes())
    data["attestation_bundles"][0]["publisher"] |= fields
    path.write_text(json.dumps(data))


def test_who_published_a_wheel_is_told(given: Path) -> None:
    (note,) = said(given)
    assert note.startswith(
        "note: published by github.com/CircleCI-Public/sign-and-publish-examples, https://circleci.com/"
    )
    assert note.endswith(f"/attestations/publish/v1 in {CIRCLE}.provenance)")
    assert said(given, publisher=f"{REPOSITORY}.git") == [note]
    assert not attestations.attested(verify(given), attestations.AttestationRequest()).failed


def test_an_attestation_alone_is_as_good(given: Path, published: Path) -> None:
    given.with_name(f"{CIRCLE}.provenance").unlink()
    shutil.copy(published / f"{CIRCLE}.publish.attestation", given.parent)
    (note,) = said(given, publisher=REPOSITORY)
    assert note.startswith("note: published by github.com/CircleCI-Public")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"project_id": "00000000-0000-0000-0000-000000000000"},
            "says that https://circleci.com/api/v2/projects/00000000-0000-0000-0000-000000000000/pipeline-definitions/",
        ),
        (
            {"kind": "GitHub", "repository": "other/project", "workflow": "release.yml"},
            "says that https://token.actions.githubusercontent.com published it, and its certificate https://oidc.circleci",
        ),
        (
            {"kind": "GitLab", "repository": "other/project", "workflow_filepath": ".gitlab-ci.yml"},
            "says that https://gitlab.com published it, and its certificate https://oidc.circleci.com",
        ),
        ({"kind": "Google", "email": "somebody@example.org"}, "not signed as it says: "),
    ],
    ids=["project", "GitHub", "GitLab", "Google"],
)
def test_a_publisher_that_the_certificate_does_not_name_is_refused(
    given: Path, fields: Mapping[str, str], message: str
) -> None:
    changed(given, **fields)
    (error,) = said(given)
    assert error.startswith(f"error: {CIRCLE}.provenance: {message}")


def test_another_wheel_with_that_name_is_refused(given: Path) -> None:
    wheel(given.parent, CIRCLE)
    (error,) = said(given)
    assert f"is for {CIRCLE} of sha256 8cb34da1" in error
    assert f"and this is {CIRCLE} of sha256 " in error
    ran = CliRunner().invoke(main, ["verify", "--attestations", str(given)])
    assert (ran.exit_code, ran.stderr) == (1, f"vbuild: {CIRCLE}: not what the name and metadata promise\n")


def test_another_publisher_than_the_one_expected_is_refused(given: Path) -> None:
    (error,) = said(given, publisher="https://github.com/other/project")
    assert error.endswith(
        "published by github.com/CircleCI-Public/sign-and-publish-examples, expected https://github.com/other/project"
    )


def test_a_signature_that_was_tampered_with_is_refused(given: Path) -> None:
    path = given.with_name(f"{CIRCLE}.provenance")
    data = json.loads(path.read_bytes())
    envelope = data["attestation_bundles"][0]["attestations"][0]["envelope"]
    envelope["signature"] = envelope["signature"][:20] + "AAAA" + envelope["signature"][24:]
    path.write_text(json.dumps(data))
    (error,) = said(given)
    assert error.startswith(f"error: {CIRCLE}.provenance: not signed as it says: ")


def test_the_root_of_trust_decides(published: Path, tmp_path: Path) -> None:
    for name in (PERSON, f"{PERSON}.publish.attestation"):
        shutil.copy(published / name, tmp_path)
    (error,) = said(tmp_path / PERSON)
    assert error.startswith(f"error: {PERSON}.publish.attestation: not signed as it says: ")
    with as_file(files("sigstore") / "_store" / STAGING / "trusted_root.json") as root:
        (note,) = said(tmp_path / PERSON, trust_root=root)
    assert "@" in note  # a person's address
    assert note.startswith("note: published by ")


@pytest.mark.parametrize("end", ["provenance", "publish.attestation"])
@pytest.mark.parametrize("data", [b"", b"[1]", b'{"version": 1}'])
def test_files_that_are_none_are_told(tmp_path: Path, end: str, data: bytes) -> None:
    path = wheel(tmp_path)
    path.with_name(f"{path.name}.{end}").write_bytes(data)
    no_such, none = said(path)
    assert no_such.startswith(f"error: {path.name}.{end}: no {end.rpartition('.')[2]}: ")
    assert none == "error: has no attestation beside it"


@pytest.mark.parametrize(
    ("data", "message"), [("{", "no root of trust"), ("{}", "no root of trust"), (None, "cannot be read")]
)
def test_a_root_of_trust_that_is_none_is_refused(tmp_path: Path, data: str | None, message: str) -> None:
    path, root = wheel(tmp_path), tmp_path / "root.json"
    if data is not None:
        root.write_text(data)
    with pytest.raises(WheelError, match=f"^{root}: {message}: "):
        said(path, trust_root=root)


class _Index(BaseHTTPRequestHandler):
    """A simple index of one wheel, in JSON, with a provenance at *where*."""

    def __init__(self, *args: Any, folder: Path, where: str) -> None:
        self.folder, self.where = folder, where
        super().__init__(*args)

    def do_GET(self) -> None:
        kind = "application/vnd.pypi.simple.v1+json"
        if self.path.endswith((".provenance", ".whl")):
            data = (self.folder / self.path.rpartition("/")[2]).read_bytes()
        else:
            row = {"filename": CIRCLE, "url": CIRCLE, "hashes": {}, "provenance": self.where}
            data = json.dumps({"meta": {"api-version": "1.3"}, "name": "demo", "files": [row]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def index(folder: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Index, folder=folder, where=where)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
        yield
        server.shutdown()


def test_an_index_has_the_provenance_where_nothing_lies_beside_the_wheel(
    given: Path, published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given.with_name(f"{CIRCLE}.provenance").unlink()
    with index(published, f"../../integrity/{CIRCLE}.provenance", monkeypatch):
        (note,) = said(given, fetch=provenance_of)
        assert note.startswith("note: published by github.com/CircleCI-Public")
        other = wheel(given.parent, "circleci_sign_publish_example-9-py3-none-any.whl")
        assert said(other, fetch=provenance_of) == ["error: has no attestation beside it or on the index"]


def test_a_mirror_keeps_what_the_index_attests_of_an_original(
    given: Path, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with index(published, f"../../integrity/{CIRCLE}.provenance", monkeypatch):
        url = f"{Indexes.configured().index_url}/{CIRCLE}"
        lock = lock_of(tmp_path / "pylock.toml", given, path=None, url=url)
        mirror([str(lock)], site, fleet("9.0"), MirrorRequest())
    found = verify_mirror(site, attestations=True)
    assert (found.attested, found.problems) == (1, ())
    assert found.publishers[0].startswith("published by github.com/CircleCI-Public/")
    kept = site / "attestations" / f"{CIRCLE}.provenance"
    assert kept.read_bytes() == (published / kept.name).read_bytes()
    kept.write_bytes(b"{}")
    assert verify_mirror(site, attestations=True).problems[0].startswith(f"{CIRCLE}.provenance: no provenance: ")


def test_a_provenance_that_is_a_file_of_this_machine_is_not_read(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = (published / f"{CIRCLE}.provenance").as_uri()
    with index(published, ours, monkeypatch), pytest.raises(FetchError, match="expected http or https"):
        provenance_of(CIRCLE)
