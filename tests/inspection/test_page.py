"""The page, as its source says and as Chromium shows it."""

import json
import re
from pathlib import Path
from typing import Any

from tests.factories.browser import Tags, browsed
from tests.factories.bundles import GFX90A, GFX942, HOST, bundle
from tests.factories.elf import MODULE, shared_object
from tests.factories.fatbins import device_library, entry, fatbin
from tests.factories.linked_libraries import DEEP, files
from tests.factories.tools import needs
from tests.factories.wheels import wheel
from vbuild.gpu_code.fatbin import FatbinKind
from vbuild.hardware.architectures import ARCHITECTURES
from vbuild.hardware.gpu import GpuList
from vbuild.inspection.inspect import inspect
from vbuild.inspection.model import Contents
from vbuild.inspection.page import page
from vbuild.slimming.request import Cuts, Share
from vbuild.slimming.slim import slim

NAME = "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"
HOSTILE = "demo/<script>alert('x')<!--&amp;\"--></script>.so"
CODES = [entry(arch=80, code=bytes(200_000)), entry(arch=90, code=bytes(300_000)), entry(FatbinKind.PTX, 90)]


def contents(folder: Path) -> Contents:
    files = {
        HOSTILE: device_library(fatbin(*CODES)),
        "demo/host.so": shared_object(MODULE),
        "demo/again.so": shared_object(MODULE),
        "demo/bad.so": b"\x7fELF" + bytes(100),
    }
    metadata = "License: </script><script>alert(1)</script>\nLicense-File: LICENSE\n"
    return inspect(wheel(folder, NAME, files, metadata=metadata))


def drawn(text: str) -> Any:
    """The data that the page's script draws."""
    return json.loads(Tags(text).scripts[0])


def leaves(node: Any) -> list[Any]:
    return [leaf for child in node["children"] for leaf in leaves(child)] if "children" in node else [node]


def test_names_in_the_wheel_stay_text(tmp_path: Path) -> None:
    tags = Tags(page(contents(tmp_path)))
    assert [attributes for tag, attributes in tags.found if tag == "script"] == [
        {"type": "application/json", "id": "contents"},
        {},
    ]
    assert json.loads(tags.scripts[0])["root"]["children"][0]["note"].startswith(HOSTILE)


def test_nothing_is_asked_of_the_network(tmp_path: Path) -> None:
    text = page(contents(tmp_path))
    links = [value for _, attributes in Tags(text).found for key, value in attributes.items() if key in {"src", "href"}]
    assert links == ["data:,"]
    assert not re.search(r"url\(|@import|https?://", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def left(data: dict[str, Any], leaf: dict[str, Any], *gpus: str) -> int:
    """What the page's script leaves of *leaf* for *gpus*."""
    chosen = sum(1 << place for place, item in enumerate(data["gpus"]) if item["gpu"] in gpus)
    if "shares" not in leaf:
        return int(leaf["size"])
    total = 0
    for size, least, *sets in leaf["shares"]:
        needed, served, cut = (int(each, 16) & chosen for each in sets)
        total += size if needed or not cut else 0 if served else least
    return int(total)


def test_what_stays_for_several_gpus_is_what_slimming_to_them_leaves(tmp_path: Path) -> None:
    """Each of them alone keeps the smallest entry of a fatbin that has nothing for it; together they may not."""
    path = wheel(tmp_path, NAME, {"demo/a.so": device_library(fatbin(*CODES), fatbin(*CODES[:1]), fatbin(*CODES[1:]))})
    data = drawn(page(inspect(path)))
    kept = sum(left(data, leaf, "sm_80", "sm_90") for leaf in leaves(data["root"]) if "shares" in leaf)
    share = Share(GpuList.parse("80,90"))
    (slimmed,) = slim([path], tmp_path / "out", shares=[share], cuts=Cuts(unsupported=True))
    assert slimmed.path
    after = drawn(page(inspect(slimmed.path)))
    assert kept == sum(leaf["size"] for leaf in leaves(after["root"]) if "shares" in leaf)


def test_colours_tell_vendors_apart(tmp_path: Path) -> None:
    library = device_library(fatbin(*(entry(arch=arch) for arch in ARCHITECTURES)))
    amd = device_library(
        bundle({HOST: b"", GFX90A: bytes(4096), GFX942: bytes(4096)}),
        section=".hip_fatbin",
        wrapper=(".hipFatBinSegment", 0x48495046, 1),
        align=4096,
    )
    data = drawn(page(inspect(wheel(tmp_path, NAME, {"demo/a.so": library, "demo/b.so": amd}))))
    looks = {(leaf["short"][:2], leaf["look"].split()[1][0]) for leaf in leaves(data["root"]) if "short" in leaf}
    assert looks == {("sm", "a"), ("gf", "r")}


@needs("chromium")
def test_chromium_draws_the_map_without_a_word_and_without_the_network(tmp_path: Path) -> None:
    shown = browsed(page(contents(tmp_path)), tmp_path, "sm_80")
    assert (shown.complaints, shown.hosts) == ((), ())
    elements = shown.elements
    tiles = [
        attributes["aria-label"] or ""
        for tag, attributes in Tags(elements).found
        if "tile" in (attributes.get("class") or "")
    ]
    assert any("host.so" in label for label in tiles)
    assert any("sm_90 cubin" in label and "slimmed to sm_80: 0 B" in label for label in tiles)
    assert "Slimmed to sm_80 alone" in elements
    assert HOSTILE.rpartition("/")[2] not in elements


def linked(folder: Path) -> Contents:
    whole = {**files(), HOSTILE: shared_object("int hostile;")}
    return inspect(wheel(folder, NAME, whole), closure=True)


def test_the_closure_is_a_table(tmp_path: Path) -> None:
    text = page(linked(tmp_path))
    table = text[text.index('id="closure"') :]
    for said in (
        "linux-gnu.so &gt; libtop.so</td>",
        DEEP,
        "if loaded before:",
        "nvidia-cufft-cu12 (CUDA\N{NO-BREAK SPACE}12): libcufft.so.11",
        "not found:",
        "opened by name: demo/",
    ):
        assert said in table
    assert "<script>alert" not in text
    assert not re.search(r"url\(|@import|https?://", text)


def test_a_page_without_a_closure_has_no_table_of_it(tmp_path: Path) -> None:
    assert 'id="closure"' not in page(contents(tmp_path))
