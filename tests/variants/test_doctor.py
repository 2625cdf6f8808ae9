"""`vbuild select --doctor`: what is installed for another machine is found, whoever installed it."""

import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.factories.clients import masked
from tests.factories.processes import until
from tests.factories.redirect_installs import pip, ran, uv, virtual
from tests.factories.variants import V3, document, machine, metadata, tiny_wheel, variant, variant_wheel
from tests.factories.virtual_environments import serving_folder
from vbuild.cli.main import main
from vbuild.errors import HardwareError
from vbuild.hardware.machine import Machine
from vbuild.index_client.configuration import install_command
from vbuild.variants.doctor import Diagnosis, diagnosed
from vbuild.variants.document import Document, Schema
from vbuild.variants.index import index
from vbuild.variants.metadata import VariantMetadata, VariantProvider
from vbuild.variants.select import save_machine

AGAIN = (
    "pip install --force-reinstall --no-deps --no-cache-dir demo==1.0",
    "uv pip install --reinstall --no-deps --no-cache demo==1.0",
)
NPU = VariantProvider(requires=("npu-provider",))


def put(site: Path, found: Document | bytes, project: str = "demo") -> Path:
    """A dist-info as an installer leaves it, with a variant.json."""
    place = site / f"{project}-1.0.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.2\nName: {project}\nVersion: 1.0\n")
    (place / "variant.json").write_bytes(found if isinstance(found, bytes) else found.pack())
    return place


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return virtual(tmp_path / "venv")


@pytest.fixture
def site(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python3*/site-packages"))


def only(python: Path, on: Machine) -> Diagnosis:
    (found,) = diagnosed(python, on)
    return found


def test_a_variant_for_another_machine_is_named_with_what_to_do(python: Path, site: Path) -> None:
    place = put(site, document(variant("x86_64_v4", "x86_64 :: level :: v4")))
    found = only(python, machine("x86-64-v2"))
    why = "x86_64 :: level :: v4 is not supported: the machine has v2, v1"
    advice = "chosen for another machine, reinstall it without cache"
    assert (str(found), found.commands) == (f"demo 1.0 (x86_64_v4) is NOT for this machine: {why}", AGAIN)
    assert found.data() == {
        "name": "demo",
        "version": "1.0",
        "label": "x86_64_v4",
        "folder": str(place),
        "supported": False,
        "why": why,
        "do": f"{advice}: {', or '.join(AGAIN)}",
    }


def test_a_variant_for_this_machine_is_well(python: Path, site: Path) -> None:
    put(site, document())
    why = f"{V3} is number 1 of 3 that the machine supports"
    found = only(python, machine())
    assert (str(found), found.advice) == (f"demo 1.0 (x86_64_v3) runs here: {why}", None)


def test_a_machine_that_can_do_better_is_told_so(python: Path, site: Path) -> None:
    put(site, document())
    found = only(python, machine("x86-64-v4"))
    assert found.is_supported
    assert found.advice == "the machine has x86_64 :: level :: v4; if there is a wheel for that, get it"


def test_what_nobody_can_say_is_left_open(python: Path, site: Path) -> None:
    atom = variant("atom", "npu :: arch :: atom")
    put(site, document(atom, metadata=metadata("npu", npu=NPU)))
    both = variant("both", "npu :: arch :: atom", "x86_64 :: level :: v4")
    put(site, document(both, metadata=metadata("npu", "x86_64", npu=NPU)), "other")
    torch = variant("torch", "abi_dependency :: torch :: 2.9", V3)
    put(site, document(torch), "torchy")
    found = diagnosed(python, machine())
    assert [(one.project, one.is_supported, bool(one.advice)) for one in found] == [
        ("other", False, True),
        ("demo", None, False),
        ("torchy", None, False),
    ]
    assert str(found[1]).startswith("demo 1.0 (atom) may run here or not: npu :: arch :: atom is not supported")
    known = machine(supported={"npu": {"arch": ("atom",)}})
    assert [one.is_supported for one in diagnosed(python, known)] == [False, None, True]


def test_an_optional_provider_was_asked_for(python: Path, site: Path) -> None:
    optional = VariantProvider.static({"library": ["mkl"]}, optional=True)
    put(site, document(variant("mkl", "blas :: library :: mkl"), metadata=metadata("blas", blas=optional)))
    assert only(python, machine()).is_supported


def test_documents_without_providers_are_held_against_the_known_ones(python: Path, site: Path) -> None:
    level = variant("l4", "x86_64 :: level :: v4")
    put(site, document(level, metadata=VariantMetadata(("x86_64",), ()), schema=Schema.PEP_825))
    assert only(python, machine()).is_supported is False


def test_a_damaged_variant_json_is_told(python: Path, site: Path) -> None:
    put(site, b"{}")
    folder = put(site, b"", "folder") / "variant.json"
    folder.unlink()
    folder.mkdir()
    found = diagnosed(python, machine())
    assert [str(one) for one in found] == [
        'demo 1.0 (unreadable) is NOT for this machine: variant.json: "$schema": missing; expected a string',
        "folder 1.0 (unreadable) is NOT for this machine: variant.json: Is a directory",
    ]
    assert found[0].advice == "damaged, reinstall it"


def test_of_two_with_one_name_the_one_that_is_imported_counts(python: Path, site: Path, tmp_path: Path) -> None:
    put(site, document(variant("x86_64_v4", "x86_64 :: level :: v4")))
    (tmp_path / "first" / "Demo-2.0.dist-info").mkdir(parents=True)
    (site / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'first')!r})\n")
    assert diagnosed(python, machine()) == ()


def test_plain_distributions_and_ones_own_interpreter_are_looked_at_as_well(python: Path) -> None:
    assert diagnosed(python, machine()) == ()
    assert diagnosed(None, machine()) == ()


@pytest.mark.nightly
def test_a_variant_that_pip_installed_under_its_plain_name_is_found(tmp_path: Path, python: Path) -> None:
    """As redirecting sdists hand it over."""
    wheel = variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    ran(pip(python, "install", wheel.rename(tmp_path / "demo-1.0-py3-none-any.whl")), tmp_path)
    assert only(python, machine("x86-64")).is_supported is False


def test_a_variant_that_uv_chose_is_found(tmp_path: Path, python: Path) -> None:
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-x86_64_v3.whl")
    tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    index(tmp_path / "dist")
    words = ("--preview-features", "wheel-variants", "--no-index", "--find-links", tmp_path / "dist", "demo")
    ran(uv(python, "install", *words), tmp_path, prefix=masked("x86-64-v3", tmp_path))
    assert only(python, machine()).is_supported
    assert only(python, machine("x86-64")).is_supported is False


@pytest.mark.parametrize(
    ("interpreter", "message"),
    [
        ("/bin/true", "/bin/true: does not say where it imports from; expected a Python interpreter"),
        ("/nowhere/python", "/nowhere/python: cannot be run: No such file or directory"),
    ],
)
def test_what_is_no_interpreter_is_refused(interpreter: str, message: str) -> None:
    with pytest.raises(HardwareError) as refusal:
        diagnosed(Path(interpreter), machine())
    assert str(refusal.value) == message


def test_what_an_interpreter_prints_when_it_starts_is_passed_over(python: Path, site: Path) -> None:
    put(site, document())
    (site / "loud.pth").write_text("import sys; print('ready')\n")
    assert only(python, machine()).is_supported


def test_the_interpreter_may_be_older_than_what_names_compatibility_tags(python: Path, site: Path) -> None:
    """Nothing is asked of it but where it imports from; the machine is the same."""
    put(site, document(variant("atom", "npu :: arch :: atom"), metadata=metadata("npu", npu=NPU)))
    old = site.parents[2] / "old"
    old.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {python} "$@"\nexit 2\n')
    old.chmod(0o755)
    told = CliRunner().invoke(main, ["select", "--doctor", "--python", str(old)])
    assert (told.exit_code, told.stdout[:8]) == (0, "demo 1.0")


def test_the_command_says_it_in_80_columns_and_fails_for_what_is_not_for_the_machine(
    python: Path, site: Path, tmp_path: Path
) -> None:
    put(site, document(variant("x86_64_v4", "x86_64 :: level :: v4")))
    save_machine(machine("x86-64-v2"), tmp_path / "machine.toml")
    words = ["select", "--doctor", "--python", str(python), "--machine", str(tmp_path / "machine.toml")]
    told = CliRunner().invoke(main, words)
    assert told.exit_code == 1
    assert told.stdout.splitlines() == [
        "demo 1.0 (x86_64_v4) is NOT for this machine: x86_64 :: level :: v4 is not",
        "    supported: the machine has v2, v1",
        "  chosen for another machine, reinstall it without cache:",
        *(f"    {command}" for command in AGAIN),
    ]
    assert told.stderr == "vbuild: demo: not for this machine\n"


@pytest.mark.parametrize("words", [("demo",), ("--find-links", "."), ("--version", "1")], ids=lambda words: words[0])
def test_there_is_nothing_to_choose_for_the_doctor(words: tuple[str, ...]) -> None:
    told = CliRunner().invoke(main, ["select", "--doctor", *words])
    assert told.exit_code == 2
    assert "--doctor looks at all that is installed; expected no NAME, --find-links or --version" in told.stderr


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with a plain wheel and a v3 wheel, indexed."""
    tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-x86_64_v3.whl")
    index(tmp_path / "dist", simple=tmp_path / "site")
    return tmp_path / "dist"


def examined(place: object) -> tuple[int, str]:
    told = CliRunner().invoke(main, ["select", "demo", "--doctor", "-f", str(place)])
    return told.exit_code, " ".join(told.output.split())


def test_a_server_that_drops_variants_json_is_named_with_what_to_do(release: Path) -> None:
    with serving_folder(release.parent / "site") as url:
        assert examined(url) == (0, f"demo 1.0 at {url}: 1 variant wheel: all listed in variants.json")
    (release / "demo-1.0-variants.json").unlink()
    status, said = examined(release)
    assert status == 1
    assert "1 variant wheel: demo-1.0-variants.json is not listed; installers leave variants out" in said
    assert "serve the folder that 'vbuild index DIST --simple SITE' writes" in said
    assert said.endswith("vbuild: demo 1.0: installers do not see the variants")


def test_a_variants_json_that_lacks_a_label_or_is_none_hides_variants_too(release: Path) -> None:
    variant_wheel(
        release, "demo-1.0-py3-none-any-x86_64_v4.whl", document(variant("x86_64_v4", "x86_64 :: level :: v4"))
    )
    assert "demo-1.0-variants.json does not list x86_64_v4" in examined(release)[1]
    (release / "demo-1.0-variants.json").write_text("[]")
    assert "demo-1.0-variants.json cannot be read" in examined(release)[1]


@pytest.mark.parametrize(("project", "said"), [("other", "no variant wheel of it"), ("demo", "expected a folder")])
def test_a_place_without_variants_or_pages_is_refused(tmp_path: Path, project: str, said: str) -> None:
    (tmp_path / "dist").mkdir()
    place = tmp_path / "dist" if project == "other" else "http://127.0.0.1:9/simple"
    told = CliRunner().invoke(main, ["select", project, "--doctor", "-f", str(place)])
    assert told.exit_code == 1
    assert said in told.stderr


def answers(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.network
@pytest.mark.nightly
def test_pypiserver_drops_variants_json(release: Path, tmp_path: Path) -> None:
    """The judge of the name that the documentation gives."""
    program = virtual(tmp_path / "server")
    subprocess.run(install_command(program, "pypiserver", builds=False), capture_output=True, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "-m", "pypiserver", "run", "-i", "127.0.0.1", "-p", str(port), str(release)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: answers(port))
            status, said = examined(f"http://127.0.0.1:{port}/simple/")
        finally:
            server.terminate()
    assert status == 1
    assert "demo-1.0-variants.json is not listed" in said


def test_what_may_run_here_or_not_is_no_failure(python: Path, site: Path) -> None:
    put(site, document(variant("atom", "npu :: arch :: atom"), metadata=metadata("npu", npu=NPU)))
    told = CliRunner().invoke(main, ["select", "--doctor", "--python", str(python)])
    assert told.exit_code == 0
    assert told.stdout.startswith("demo 1.0 (atom) may run here or not: ")
