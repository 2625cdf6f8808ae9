"""Licence texts that go with libraries which move, and libraries that no text names."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import release
from tests.factories.tools import needs
from tests.factories.wheels import contents
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.companion import unnamed
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc")

ZLIB = library("libz2.so.1", source="int zee(void) { return 1; }")
CRYPTO = library(
    "libcrypto.so.3",
    source="int crypt(void) { return 2; }",
    script="OPENSSL_3.0.0 { global: crypt; };",
)
LIBRARIES = {"libz2.so.1": ZLIB, "libcrypto.so.3": CRYPTO}
INFO = "demo-1.0.dist-info"
OWN = "Copyright demo\n\nYou may link the program with the OpenSSL library.\n"


def thin(folder: Path, files: Mapping[str, bytes | str], libraries: Mapping[str, bytes] = LIBRARIES) -> Split:
    fat = release(folder / "fat", {"demo/_c.so": module(*libraries), **files}, libraries)
    request = SplitRequest(smallest=0)
    return split(fat, folder / "thin", request=request, indexes=lambda: Indexes(no_index=True))


def unlicensed(result: Split) -> set[str]:
    (libs,) = result.companions
    return {name.partition("-")[0] for name in libs.unlicensed}


def test_a_text_that_only_speaks_of_a_library_does_not_name_it(tmp_path: Path) -> None:
    assert unlicensed(thin(tmp_path, {f"{INFO}/licenses/LICENSE": OWN})) == {"libz2", "libcrypto"}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (f"{INFO}/licenses/openssl/LICENSE.txt", "As is."),
        (f"{INFO}/licenses/LICENSE_OPENSSL", "As is."),
        (f"{INFO}/licenses/LICENSE", "demo\n\n===== openssl-3.5.1 =====\n\nAs is."),
        (f"{INFO}/licenses/LICENSE", "demo: MIT\n\nName: OpenSSL\nFiles: demo.libs/libcrypto*\nLicense: Apache\n"),
        (f"{INFO}/licenses/LICENSE", "Files: demo.libs/libcrypto*.so.3\nDescription: bundled\n"),
        ("demo/data/libcrypto/copyright", "Format: https://www.debian.org/doc/\n"),
    ],
)
def test_a_text_names_a_library_in_its_path_a_heading_or_a_field(tmp_path: Path, path: str, text: str) -> None:
    result = thin(tmp_path, {path: text})
    assert unlicensed(result) == {"libz2"}
    (libs,) = result.companion_paths
    inside = path.removeprefix(f"{INFO}/licenses/")
    assert [data for name, data in contents(libs).items() if name.endswith(f"/licenses/{inside}")] == [text.encode()]


def test_the_package_in_auditwheels_bill_is_a_name_of_the_library(tmp_path: Path) -> None:
    place = sha256(b"/usr/lib64/libz2.so.1").hexdigest()
    found = {"bom-ref": f"pkg:rpm/almalinux/zed-libs@1.2#{place}", "name": "zed-libs", "version": "1.2"}
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.4", "components": [{"bom-ref": "demo", "name": "demo"}, found]}
    files = {f"{INFO}/licenses/COPYING.zed": "As is.", f"{INFO}/sboms/auditwheel.cdx.json": json.dumps(bill)}
    assert unlicensed(thin(tmp_path, files)) == {"libcrypto"}


@pytest.mark.parametrize("bill", ["", "[]", '{"components": 1}', '{"components": [{"name": 1}]}'])
def test_a_bill_that_cannot_be_read_names_nothing(tmp_path: Path, bill: str) -> None:
    assert unlicensed(thin(tmp_path, {f"{INFO}/sboms/auditwheel.cdx.json": bill})) == {"libz2", "libcrypto"}


def test_the_own_name_of_the_project_names_no_library(tmp_path: Path) -> None:
    libraries = {"libdemo_core.so.1": library("libdemo_core.so.1", source="int core(void) { return 3; }")}
    assert unlicensed(thin(tmp_path, {f"{INFO}/licenses/LICENSE": "demo\n\nAs is."}, libraries)) == {"libdemo_core"}


def test_a_heading_names_the_parts_of_a_project() -> None:
    libraries = {
        "libbrotlidec.so": frozenset({"brotlidec"}),
        "libopenjp2.so": frozenset({"openjp2", "openjp"}),
        "libavif.so": frozenset({"avif"}),
    }
    text = b"BROTLI\n\nx\n\nOpenJPEG\n========\n\na long line that has avif in it\n"
    assert unnamed(libraries, {"LICENSE": text}, projects=["demo"]) == ("libavif.so",)
