import click

from vbuild.cli import options, terminal
from vbuild.cli.group import Commands


@click.group(cls=Commands, epilog=options.example("vbuild toolkit install 13.0 nccl==2.28.9"))
def toolkit() -> None:
    """List and fetch the CUDA toolkits of 'vbuild matrix'."""


@toolkit.command("list", epilog=options.example("vbuild toolkit list --json"))
@options.as_json
def list_toolkits(*, as_json: bool) -> None:
    """List the toolkits in the cache, and those installed on this machine."""
    from vbuild.toolchain import toolkit_provision

    listing = toolkit_provision.listing()
    terminal.show(listing.data(), listing.lines(), as_json=as_json)


@toolkit.command("install", epilog=options.example("vbuild toolkit install 13.0 cublas nccl==2.28.9"))
@click.argument("version")
@click.argument("libraries", nargs=-1)
def install_toolkit(version: str, libraries: tuple[str, ...]) -> None:
    """Fetch toolkit VERSION from the package index into the cache.

    LIBRARIES are more components of it, or packages with a version, such as nccl==2.28.9.
    """
    from vbuild.toolchain import toolkit_provision

    with terminal.status() as on_progress:
        provided = toolkit_provision.install(version, libraries, on_progress=on_progress)
    terminal.show(None, provided.lines())


@toolkit.command("path", epilog=options.example('CUDA_HOME="$(vbuild toolkit path 13.0)" make'))
@click.argument("version")
@click.argument("libraries", nargs=-1)
def toolkit_path(version: str, libraries: tuple[str, ...]) -> None:
    """Print the CUDA_HOME of toolkit VERSION with LIBRARIES in the cache."""
    from vbuild.toolchain import toolkit_provision

    terminal.show(None, toolkit_provision.path(version, libraries).lines())
