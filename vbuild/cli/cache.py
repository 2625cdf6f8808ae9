from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from vbuild.cli import options, terminal
from vbuild.cli.group import Commands
from vbuild.files.wording import counted

if TYPE_CHECKING:
    from vbuild.files.cache import Removed

# spelled out, as `vbuild --help` must not load the cache; a test compares them
PARTS = (
    "builds",
    "native",
    "sdists",
    "commits",
    "environments",
    "toolkits",
    "zig",
    "cross",
    "official",
    "probes",
)


@click.group(cls=Commands, epilog=options.example("vbuild cache size"))
def cache() -> None:
    """Show or empty the cache of downloads, builds and test results."""


@cache.command("dir", epilog=options.example('du -sh "$(vbuild cache dir)"'))
def cache_dir() -> None:
    """Print the folder of the cache."""
    from vbuild.files.cache import cache_folder

    terminal.write(f"{cache_folder()}\n")


@cache.command("size", epilog=options.example("vbuild cache size"))
def cache_size() -> None:
    """Print how many entries each part of the cache has, and their size."""
    from vbuild.files.cache import RULES, sizes

    by_part = {part: (len(entries), sum(entry.size for entry in entries)) for part, entries in sizes().items()}
    total = sum(size for _, size in by_part.values())
    lines = [f"{'part':<10} {'entries':>8} {'size':>12}  contents"]
    lines += [
        f"{part:<10} {count:>8} {size / 1e6:>9.1f} MB  {RULES[part].holds}" for part, (count, size) in by_part.items()
    ]
    lines += [f"{'':<10} {sum(count for count, _ in by_part.values()):>8} {total / 1e6:>9.1f} MB"]
    terminal.show(None, lines)


@cache.command("prune", epilog=options.example("vbuild cache prune"))
def cache_prune() -> None:
    """Remove what was not used for long, or takes too much space.

    Commands that use the cache do so once a day. Entries that a running build may use stay: those that are being made,
    and those used within a day. CUDA toolkits stay; 'vbuild cache clean toolkits' removes them.
    """
    from vbuild.files.cache import prune

    terminal.show(None, _removed(prune()))


@cache.command("clean", epilog=options.example("vbuild cache clean builds probes"))
@click.argument("parts", nargs=-1, type=options.Choice(PARTS), metavar="[PART]...")
def cache_clean(parts: tuple[str, ...]) -> None:
    """Empty the cache, or only some parts of it.

    'vbuild cache size' names the parts. Run it while no build is running: a build does not mark the entries it uses.
    """
    from vbuild.files.cache import Part, clean

    terminal.show(None, _removed(clean(map(Part, parts or PARTS))))


def _removed(removed: "Iterable[Removed]") -> Iterator[str]:
    size = 0
    for swept in removed:
        size += swept.size
        if swept.count:
            yield f"{swept.part}: {counted(swept.count, 'entry')} removed"
    yield f"{size / 1e6:.0f} MB free now"
