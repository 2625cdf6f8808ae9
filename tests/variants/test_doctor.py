"""`vbuild doctor`: what is installed for another machine is found, whoever installed it."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import vbuild
from tests.factories.clients import masked
from tests.factories.redirect_installs import pip, ran, uv, virtual
from tests.factories.variants import BLAS, document, machine, metadata, tiny_wheel, variant, variant_wheel
from vbuild.cli.main import main
from vbuild.errors import VariantError
from vbuild.hardware.machine import Machine
from vbuild.inspection.doctor import checkup
from vbuild.variants.doctor import Diagnosis, diagnosed_in
from vbuild.variants.document import Document, Schema
from vbuild.variants.index import index
from vbuild.variants.model import VariantMetadata, VariantProvider

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


def only(site: Path, on: Machine) -> Diagnosis:
    (found,) = diagnosed_in([str(site)], on)
    return found


def test_a_variant_for_another_machine_is_named_with_what_to_do(site: Path) -> None:
    place = put(site, document(variant("x86_64_v4", "x86_64 :: level :: v4")))
    found = only(site, machine("x86-64-v2"))
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


def test_a_machine_that_can_do_better_is_told_so(site: Path) -> None:
    put(site, document())
    found = only(site, machine("x86-64-v4"))
    assert found.is_supported
    assert found.advice == "the machine has x86_64 :: level :: v4; if there is a wheel for that, get it"


def test_an_optional_provider_was_asked_for(site: Path) -> None:
    optional = VariantProvider.static({"library": ["mkl"]}, optional=True)
    put(site, document(variant("mkl", "blas :: library :: mkl"), metadata=metadata("blas", blas=optional)))
    assert only(site, machine()).is_supported


def test_documents_without_providers_are_held_against_the_known_ones(site: Path) -> None:
    level = variant("l4", "x86_64 :: level :: v4")
    put(site, document(level, metadata=VariantMetadata(("x86_64",), ()), schema=Schema.PEP_825))
    assert only(site, machine()).is_supported is False


def test_a_damaged_variant_json_is_told(site: Path) -> None:
    put(site, b"{}")
    folder = put(site, b"", "folder") / "variant.json"
    folder.unlink()
    folder.mkdir()
    found = diagnosed_in([str(site)], machine())
    assert [str(one) for one in found] == [
        'demo 1.0 (unreadable) is NOT for this machine: variant.json: "$schema": missing; expected a string',
        "folder 1.0 (unreadable) is NOT for this machine: variant.json: Is a directory",
    ]
    assert found[0].advice == "damaged, reinstall it"


@pytest.mark.nightly
def test_a_variant_that_pip_installed_under_its_plain_name_is_found(tmp_path: Path, python: Path, site: Path) -> None:
    """As redirecting sdists hand it over."""
    wheel = variant_wheel(tmp_path, "demo-1.0-py3-none-any-x86_64_v3.whl")
    ran(pip(python, "install", wheel.rename(tmp_path / "demo-1.0-py3-none-any.whl")), tmp_path)
    assert only(site, machine("x86-64")).is_supported is False


def test_a_variant_that_uv_chose_is_found(tmp_path: Path, python: Path, site: Path) -> None:
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-x86_64_v3.whl")
    tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    index(tmp_path / "dist")
    words = ("--preview-features", "wheel-variants", "--no-index", "--find-links", tmp_path / "dist", "demo")
    ran(uv(python, "install", *words), tmp_path, prefix=masked("x86-64-v3", tmp_path))
    assert only(site, machine()).is_supported
    assert only(site, machine("x86-64")).is_supported is False


def test_the_command_says_it_in_80_columns_and_fails_for_what_is_not_for_the_machine(python: Path, site: Path) -> None:
    other = "aarch64 :: version :: 8a" if os.uname().machine == "x86_64" else "x86_64 :: level :: v1"
    feature = other.rpartition(" :: ")[0]
    found = document(variant("other", other), metadata=metadata(other.partition(" ")[0]))
    put(site, found)
    told = CliRunner().invoke(main, ["doctor", str(python.parents[1])])
    assert told.exit_code == 1
    assert told.stdout.splitlines()[:6] == [
        "no GPU code",
        f"demo 1.0 (other) is NOT for this machine: {other} is not",
        f"    supported: the machine has no {feature}",
        "  chosen for another machine, reinstall it without cache:",
        *(f"    {command}" for command in AGAIN),
    ]
    assert told.stderr == "vbuild: demo: not for this machine\n"


def test_what_may_run_here_or_not_is_no_failure(python: Path, site: Path) -> None:
    put(site, document(variant("atom", "npu :: arch :: atom"), metadata=metadata("npu", npu=NPU)))
    told = CliRunner().invoke(main, ["doctor", str(python.parents[1])])
    assert told.exit_code == 0
    assert "demo 1.0 (atom) may run here or not: " in told.stdout


def test_a_variant_for_another_release_of_what_it_was_built_against_is_named(site: Path) -> None:
    built = variant("torch2.9", "abi_dependency :: torch :: 2.9")
    put(site, document(built, metadata=metadata("abi_dependency")))
    assert only(site, machine()).why.endswith("nor [installed] in the machine's file has torch")
    (site / "torch-2.9.1.dist-info").mkdir()
    assert only(site, machine()).is_supported
    (site / "torch-2.9.1.dist-info").rename(site / "torch-2.10.0+cu126.dist-info")
    found = only(site, machine())
    assert found.why == "abi_dependency :: torch :: 2.9 is not supported: the machine has 2.10.0, 2.10, 2"
    advice = "chosen for another torch; name a folder of its wheels as well, to see which of them fits"
    assert (found.is_supported, found.advice, found.commands) == (False, advice, ())


def test_doctor_names_the_wheel_that_fits_what_is_installed(python: Path, site: Path, tmp_path: Path) -> None:
    dist, told = tmp_path / "dist", CliRunner()
    for release in ("2.9", "2.10"):
        built = document(
            variant(f"torch{release}", f"abi_dependency :: torch :: {release}"), metadata=metadata("abi_dependency")
        )
        name = variant_wheel(dist, f"demo-1.0-py3-none-any-torch{release}.whl", built)
    tiny_wheel(dist, "demo-1.0-py3-none-any.whl")
    index(dist)
    (site / "torch-2.10.0+cu126.dist-info").mkdir()
    place = put(site, document(variant("torch2.9", "abi_dependency :: torch :: 2.9"), metadata=built.metadata))
    lines = told.invoke(main, ["doctor", str(python.parents[1]), str(dist)]).stdout.splitlines()
    assert lines[1].startswith("demo 1.0 (torch2.9) is NOT for this machine: abi_dependency :: torch :: 2.9 is")
    assert f"{name}fitsthismachinebest:" in "".join("".join(lines).split())
    assert f"    vbuild lock demo -f {dist} --machine FILE" in lines
    # as the layout local and the plain wheel leave it
    (place / "variant.json").unlink()
    for version, label in (("1.0+torch2.9", "torch2.9"), ("1.0", "plain"), ("1.0+torch2.10", None)):
        place = place.rename(site / f"demo-{version}.dist-info")
        (found,) = diagnosed_in([str(site)], machine(), [dist]) or (None,)
        assert (found and (found.label, found.is_supported, found.why)) == (
            label and (label, None, "no variant.json says")
        )
    assert not diagnosed_in([str(site)], machine())
    # a version that is local anyway
    local = tiny_wheel(dist, "demo-1.0+cu126-py3-none-any-torch2.10.whl", variant_json=built.pack())
    index(dist)
    place = place.rename(site / "demo-1.0+cu126.dist-info")
    (found,) = diagnosed_in([str(site)], machine(), [dist])
    assert (found.label, found.advice) == ("plain", f"{local} fits this machine best")
    broken = tiny_wheel(tmp_path / "broken", "other-1.0-py3-none-any.whl").with_name("other-1.0-variants.json")
    broken.write_text("{}")
    with pytest.raises(VariantError, match=r"other-1\.0-variants\.json: \"\$schema\": missing"):
        checkup([site, dist, broken.parent], (), machine=Machine.here())
    other = site.parent.parent / "python3.1/site-packages"
    other.parent.mkdir()
    site.rename(other)
    notes = checkup([other, dist], (), machine=Machine.here()).notes
    assert notes[-1] == f"{other}: compared with no wheels, which takes vbuild in the same Python"


def test_the_command_that_doctor_gives_installs_the_better_wheel(python: Path, site: Path, tmp_path: Path) -> None:
    better = document(variant("any", "blas :: library :: openblas"), metadata=metadata("blas", blas=BLAS))
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-any.whl", better)
    plain = tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    index(tmp_path / "dist")
    ran(uv(python, "install", plain), tmp_path)
    (found,) = diagnosed_in([str(site)], machine(), [tmp_path / "dist"])
    assert (found.label, found.advice) == ("plain", f"{plain.with_stem(f'{plain.stem}-any')} fits this machine best")
    command, lock = found.commands
    assert lock == f"vbuild lock demo -f {tmp_path / 'dist'} --machine FILE"
    ran([*uv(python, "install"), *command.split()[3:]], tmp_path, UV_OFFLINE="1")
    assert diagnosed_in([str(site)], machine(), [tmp_path / "dist"])[0].label == "any"
    # a folder in which variants do not count says nothing of the one installed
    (tmp_path / "dist/demo-1.0-variants.json").unlink()
    assert not diagnosed_in([str(site)], machine(), [tmp_path / "dist"])[0].advice


def test_select_names_another_wheel_of_the_version_that_is_installed(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    better = document(variant("any", "blas :: library :: openblas"), metadata=metadata("blas", blas=BLAS))
    variant_wheel(tmp_path / "dist", "demo-1.0-py3-none-any-any.whl", better)
    tiny_wheel(tmp_path / "dist", "demo-1.0-py3-none-any.whl")
    index(tmp_path / "dist")
    assert not vbuild.select("demo", [tmp_path / "dist"]).notes
    place = put(site, better)
    assert not vbuild.select("demo", [tmp_path / "dist"]).notes
    (place / "variant.json").unlink()
    (note,) = vbuild.select("demo", [tmp_path / "dist"]).notes
    assert note.startswith(
        f"{tmp_path / 'venv'} has the plain wheel of this version, which installers leave as it is: "
    )
    assert not vbuild.select("demo", [tmp_path / "dist"], machine=Machine.here()).notes
