"""A build backend that builds nothing: it hands over the wheel of wheels.json that fits.

VBUILD_FIND_LINKS: a folder of wheels, before those of PIP_FIND_LINKS and UV_FIND_LINKS
VBUILD_MIRROR: URLs, before those of wheels.json
VBUILD_SELECT, or the config setting select: the label of a variant, or plain; +torch2.14: one built against that
"""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from base64 import b64encode
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, build_opener, url2pathname

Table = dict[str, Any]


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: "Table | None" = None) -> str:
    """PKG-INFO as METADATA, after the fields in which wheels differ; nothing is fetched."""
    table = _table()
    fields = _chosen(table, config_settings, is_first=True)["fields"] if "fields" in table["wheels"][0] else ""
    folder = Path(metadata_directory, table["release"] + ".dist-info")
    folder.mkdir()
    Path(folder, "METADATA").write_bytes(fields.encode() + Path("PKG-INFO").read_bytes())
    return folder.name


def build_wheel(wheel_directory: str, config_settings: "Table | None" = None, *_: object, **__: object) -> str:
    """The wheel that fits, under its name without variant label."""
    table = _table()
    wheel = _chosen(table, config_settings)
    name = Path(wheel["file"]).name.replace(f"-{wheel.get('label')}.whl", ".whl")
    for url in _places(table, wheel["file"]):
        try:
            _fetch(_request(url), Path(wheel_directory, name), wheel)
        except (OSError, ValueError, HTTPException) as error:
            sys.stderr.write(f"passed over {re.sub('//[^/]*@', '//', url)}: {error}\n")
        else:
            return name
    raise SystemExit(f"{wheel['file']}: not found as pinned, see above")


def build_editable(*_: object) -> str:
    raise SystemExit("no source here: this sdist only hands over finished wheels")


build_sdist = build_editable


def _table() -> Table:
    return dict(json.loads(Path("wheels.json").read_bytes()))


def _chosen(table: Table, settings: "Table | None" = None, *, is_first: bool = False) -> Table:
    """The wheel for this interpreter: plain, or of the label that is asked for or fits the hardware."""
    tags, now, ranks = _tags(), list(sys.version_info[:3]), []
    for number, wheel in enumerate(table["wheels"]):
        places = [tags.index(tag) for tag in wheel["tags"] if tag in tags]
        if places and any(first <= now < end for first, end in wheel["python"]):
            ranks.append((min(places), number))
    fitting = [table["wheels"][number] for _, number in sorted(ranks)]
    own = str((settings or {}).get("select", ""))
    asked, _, value = (own or os.environ.get("VBUILD_SELECT", "")).partition("+")
    if "values" in table:
        note = Path(f"chosen{own}")
        fitting = importlib.import_module("redirectinstalled").left(table, fitting, value, note, is_first=is_first)
    label = asked if asked and any("label" in wheel for wheel in table["wheels"]) else "plain"
    if "order" in table and not asked:
        label = importlib.import_module("redirecthardware").label(table["order"], fitting)
    for wheel in fitting:
        if wheel.get("label", "plain") == label:
            return dict(wheel)
    there = "\n".join(wheel["file"] for wheel in fitting or table["wheels"])
    python = sys.version.split()[0]
    raise SystemExit(f"{table['release']}: no {label} wheel for Python {python}, {tags[0]}; there are\n{there}")


def _tags() -> list[str]:
    """What this interpreter takes, best first (PEP 425)."""
    now, abi = sys.version_info[1], "cp" + sysconfig.get_config_var("EXT_SUFFIX").split("-")[1]
    stable = [f"cp3{older}-abi3{abi[5:]}" for older in range(now, 1, -1)]
    pure = [f"cp3{now}-none", f"py3{now}-none", "py3-none", *(f"py3{older}-none" for older in range(now - 1, -1, -1))]
    starts = [f"cp3{now}-{abi}", stable[0], pure[0], *stable[1:], *pure[1:]]
    platforms = list(_platforms())
    return [f"{start}-{platform}" for start in starts for platform in platforms] + [f"{start}-any" for start in pure]


def _platforms() -> Iterator[str]:
    """Those of the interpreter's C library, newest first; none but on 64-bit Linux."""
    if sys.platform != "linux" or sys.maxsize < 1 << 32:
        return
    with Path(sys.executable).open("rb") as file:
        musl = re.search(rb"/[^\0]+/ld-musl-[^\0]+", file.read(4096))
    if musl:
        said = subprocess.run([musl[0]], capture_output=True, text=True, check=False).stderr
    else:
        said = str(os.confstr("CS_GNU_LIBC_VERSION"))
    major, minor = re.findall(r"(\d+)\.(\d+)", said)[0]
    machine = sysconfig.get_platform().split("-")[1]
    for older in range(int(minor), -1, -1):
        yield f"{'musl' if musl else 'many'}linux_{major}_{older}_{machine}"
    yield f"linux_{machine}"


def _places(table: Table, file: str) -> Iterator[str]:
    """Where *file* may be: folders that have it, then mirrors, then where the publisher put it."""
    names = ("VBUILD_FIND_LINKS", "PIP_FIND_LINKS", "UV_FIND_LINKS", "VBUILD_MIRROR")
    ours, pip, uv, mirrors = (os.environ.get(name, "") for name in names)
    for place in filter(None, [ours, *pip.split(), *uv.split(",")]):
        path = Path(url2pathname(urlsplit(place).path) if place.startswith("file:") else place, file)
        if os.access(path, os.R_OK) or place == ours:
            yield path.resolve().as_uri()
    for url in [*mirrors.split(), *table["urls"]]:
        yield f"{url.rstrip('/')}/{quote(file)}"


def _request(url: str) -> Request:
    """*url*, its login a header that no other host gets."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    # some servers refuse urllib by its name; a file is as good
    request = Request(parts._replace(netloc=host).geturl(), headers={"User-Agent": "vbuild"})  # noqa: S310
    if login:
        login += ":" * (":" not in login)
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(login).encode()).decode()}")
    return request


def _fetch(request: Request, target: Path, wheel: Table) -> None:
    """Write the answer to *target*; ValueError, and nothing there, where it is not as pinned."""
    if trusted := os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE"):
        os.environ.update(SSL_CERT_FILE=trusted, SSL_CERT_DIR=trusted)
    digest, size, ends = hashlib.sha256(), 0, time.time() + 60 + wheel["size"] / 4096  # seconds
    part = target.with_suffix(".part")
    try:
        with build_opener().open(request, timeout=60) as answer, part.open("wb") as out:
            while size <= wheel["size"] and time.time() < ends and (piece := answer.read1(1 << 20)):
                size += len(piece)
                digest.update(piece)
                out.write(piece)
        found = digest.hexdigest()
        if (size, found) != (wheel["size"], wheel["sha256"]):
            raise ValueError(f"{size} bytes of sha256 {found}, pinned {wheel['size']} of {wheel['sha256']}")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
