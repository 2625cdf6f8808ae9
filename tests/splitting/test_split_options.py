"""What `vbuild split` does on request: keep, and share only what is worth it."""

import json
from pathlib import Path

from tests.factories.extensions import library, module
from tests.factories.repaired_wheels import release
from tests.factories.tools import needs
from vbuild.index_client.configuration import Indexes
from vbuild.splitting.decisions import DecisionKind
from vbuild.splitting.request import SplitRequest
from vbuild.splitting.results import Split
from vbuild.splitting.split import split

pytestmark = needs("gcc", "ldd")

ALONE = Indexes(no_index=True)
COUNTS = "int count(void); int answer(void) { return count(); }"
COUNT = library("libcount.so.1", source="int count(void) { return 42; }")
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "from demo import _c\n",
    "demo/_c.so": module("libcount.so.1", source=COUNTS),
}


def thinned(folder: Path, *wheels: Path, **asked: object) -> Split:
    request = SplitRequest(**{"smallest": 0, **asked})  # type: ignore[arg-type]
    return split(
        wheels,
        folder / "thin",
        request=request,
        indexes=lambda: ALONE,
    )


IDLE = library("libidle.so.1")
PLUGINS = {"libcount.so.1": COUNT, "libidle.so.1": IDLE}


def test_without_sharing_everything_stays(tmp_path: Path) -> None:
    result = thinned(tmp_path, *release(tmp_path, FILES, {"libcount.so.1": COUNT}), share=False, rpath=True)
    assert [(move.kind, move.reason) for move in result.libraries] == [(DecisionKind.KEEP, "sharing is not asked for")]


def test_the_account_can_be_written_as_json(tmp_path: Path) -> None:
    result = thinned(tmp_path, *release(tmp_path, FILES, PLUGINS))
    told = json.loads(json.dumps(result.data()))
    assert {row["kind"] for row in told["libraries"]} == {"share", "keep"}
    assert told["wheels"][0]["edited"][0]["rpath"] == ["$ORIGIN/../demo.libs", "$ORIGIN/../demo_libs/lib"]
