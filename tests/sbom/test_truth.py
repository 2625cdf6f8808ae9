"""What `vbuild verify` has against a bill of materials that contradicts its wheel."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.factories.wheels import wheel
from vbuild.sbom.keeping import contradictions, listed, revised
from vbuild.sbom.model import FILE, Bill, BillFile, Gone, Treatment, packed
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel
from vbuild.wheel.metadata import RecordRow
from vbuild.wheel.name import WheelName

NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
PATH = f"demo-1.0.dist-info/{FILE}"
FILES: dict[str, bytes | str] = {"demo/a.so": b"a", "demo/b.so.1": b"b", "demo/c.txt": b"c"}


def true(folder: Path) -> bytes:
    """The bill of the wheel of FILES."""
    with open_wheel(wheel(folder, NAME, FILES)) as found:
        return revised(found.name, [found.row(member) for member in found.members])


def said(folder: Path, bill: bytes) -> list[str]:
    with open_wheel(wheel(folder, NAME, {**FILES, PATH: bill})) as found:
        return [*contradictions(found)]


def changed(bill: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(bill)
    change(document)
    return json.dumps(document).encode()


A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another release": (
        lambda bill: bill["metadata"]["component"].update(version="1.1"),
        "is of demo 1.1, expected demo 1.0",
    ),
    "another project": (
        lambda bill: bill["metadata"]["component"].update(name="other"),
        "is of other 1.0, expected demo 1.0",
    ),
    "a library left out": (lambda bill: bill["components"].pop(0), "does not list demo/a.so"),
    "a library too many": (
        lambda bill: bill["components"][0]["properties"][0].update(value="demo/no.so"),
        "lists demo/no.so, not in the wheel, or without SHA-256 in RECORD",
    ),
    "another hash": (
        lambda bill: bill["components"][0]["hashes"][0].update(content="ab" * 32),
        "has another hash than RECORD for demo/a.so",
    ),
    "no bill": (lambda bill: bill.pop("metadata"), "cannot be read; expected CycloneDX 1.6 as vbuild writes it"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_bill_that_contradicts_the_wheel_is_told(name: str, tmp_path: Path) -> None:
    change, message = LIES[name]
    assert message in said(tmp_path / "lie", changed(true(tmp_path), change))


def test_a_true_bill_is_content_and_so_is_a_wheel_without_one(tmp_path: Path) -> None:
    assert said(tmp_path / "new", true(tmp_path)) == []
    assert said(tmp_path / "spelled", true(tmp_path).replace(b'"version": "1.0"', b'"version": "1.0.0"')) == []
    with open_wheel(wheel(tmp_path, NAME, FILES)) as found:
        assert [*contradictions(found)] == []


def test_a_library_that_is_said_to_have_gone_must_not_be_there(tmp_path: Path) -> None:
    files = (
        BillFile("demo/a.so", A),
        BillFile("demo/b.so.1", "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d"),
    )
    lie = Bill("demo", "1.0", "0", files, (Gone("demo/a.so", A, "a.so", Treatment.DROPPED),))
    assert said(tmp_path, packed(lie)) == ["says that demo/a.so has been dropped, but it is in the wheel"]


def test_verify_counts_it_as_an_error(tmp_path: Path) -> None:
    lie = true(tmp_path).replace(b'"version": "1.0"', b'"version": "2.0"')
    verdict = verify(wheel(tmp_path / "lie", NAME, {**FILES, PATH: lie}))
    found = [finding for finding in verdict.findings if finding.rule == "sbom"]
    assert [(str(each.severity), each.place) for each in found] == [("error", PATH)]
    assert verdict.failed


def test_a_bill_is_made_of_what_is_there_whatever_an_earlier_one_said() -> None:
    name = WheelName.parse(NAME)
    there = f"sha256={'A' * 43}"
    lie = Bill(
        "x", "9", "0", (BillFile("no.so", "ab" * 32),), (Gone("demo/a.so", "00" * 32, "a.so", Treatment.DROPPED),)
    )
    rows = [RecordRow("demo/a.so", there, 1), RecordRow(PATH, there, 1), RecordRow("demo/c.txt", there, 1)]
    assert revised(name, rows, earlier=[lie]) == revised(name, rows)
    assert listed(rows) == {"demo/a.so": "00" * 32}
