"""How long it takes to see that a folder of 10,000 files has not changed."""

from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figure import Figure, Made
from tests.benchmarks.measuring import inside, printed

FILES = 10_000


def many_files(folder: Path) -> None:
    for number in range(FILES):
        package = folder / f"package{number % 100}"
        package.mkdir(exist_ok=True)
        (package / f"module{number}.py").write_text(f"answer = {number}\n" * 20)


def figures() -> Iterator[Figure]:
    made = Made(many_files)
    yield Figure(
        name="folder",
        what="see that a folder of 10,000 files has not changed",
        measure=printed(inside("digested", made)),
        limit=0.5,
        inputs=(made,),
    )
