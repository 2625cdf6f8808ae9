"""The index of tests/factories names every module, and only names that exist."""

import re
from pathlib import Path

FACTORIES = Path(__file__).parents[1] / "factories"
ROWS = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", (FACTORIES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_the_index_names_every_factory_once() -> None:
    assert sorted(name for name, _ in ROWS) == sorted(path.stem for path in FACTORIES.glob("*.py"))


def test_the_names_and_fields_of_the_index_exist() -> None:
    for module, names in ROWS:
        source = (FACTORIES / f"{module}.py").read_text(encoding="utf-8")
        for name, fields in re.findall(r"`(\w+)`(?: \[([^\]]*)\])?", names):
            assert re.search(rf"^(?:def |class )?{name}\b", source, re.MULTILINE), f"{module}.{name}"
            for field in filter(None, fields.split(", ")):
                assert re.search(rf"^    {field}: ", source, re.MULTILINE), f"{module}.{name}.{field}"
