"""The bill of materials in a wheel, for the wheel under another name: whose bill it is changes, all it lists stays.

    dist-info/sboms/*.cdx.json    metadata.component: name, version, purl and bom-ref, and references to that bom-ref

auditwheel writes one when it bundles libraries, and `vbuild split` one when it takes them out.
https://cyclonedx.org/docs/1.4/json/
https://peps.python.org/pep-0770/
"""

import json
from typing import Any
from urllib.parse import quote

from packaging.utils import canonicalize_name

from vbuild.jsontext import parsed_json
from vbuild.wheel.name import WheelName

_FOLDER, _SUFFIX = "sboms", ".cdx.json"
# bytes; one of five thousand files takes less
LARGEST = 1 << 22
_PURL, _FILE = "pkg:", "?file_name="


def is_bill(path: str) -> bool:
    """Whether the member at *path* is a bill of materials that is known here: CycloneDX as JSON."""
    parts = path.split("/")
    return len(parts) > 2 and parts[0].endswith(".dist-info") and parts[1] == _FOLDER and path.endswith(_SUFFIX)  # noqa: PLR2004 - folders and file


def renamed_bill(data: bytes, old: WheelName, new: WheelName) -> bytes:
    """The bill *data* of the wheel *old* as that of *new*; as it is, where it is of something else, or unreadable."""
    try:
        text = data.decode()
        bill = parsed_json(text)
        whole = bill["metadata"]["component"]
        reference, name = str(whole["bom-ref"]), str(whole["name"])
        if canonicalize_name(name) != old.project:
            return data
        after = _replaced(bill, reference, _said(reference, new))
        lines = json.dumps(after, indent=2 if text.startswith("{\n") else None, ensure_ascii=text.isascii())
        return (lines + text[len(text.rstrip("\n")) :]).encode()
    except (ValueError, TypeError, KeyError, RecursionError):  # among them text that is no UTF-8, or cannot become it
        return data


def _said(reference: str, new: WheelName) -> dict[str, str]:
    """What the component *reference* says of itself as the wheel *new*; only a purl is a name that follows."""
    file = f"{_FILE}{quote(str(new), safe='')}" if _FILE in reference else ""
    purl = f"pkg:pypi/{quote(new.project, safe='')}@{quote(new.version, safe='')}{file}"
    named = purl if reference.startswith(_PURL) else reference
    return {"name": new.project, "version": new.version, "purl": purl, "bom-ref": named}


def _replaced(value: Any, reference: str, said: dict[str, str]) -> Any:  # noqa: ANN401 - whatever JSON holds
    """*value* with what *said* gives in the component *reference*, which is named anew wherever it is named."""
    match value:
        case dict():
            known = {key: _replaced(each, reference, said) for key, each in value.items()}
            if value.get("bom-ref") == reference:
                known |= {key: text for key, text in said.items() if key in known}
            return known
        case list():
            return [_replaced(each, reference, said) for each in value]
        case _:
            return said["bom-ref"] if value == reference else value
