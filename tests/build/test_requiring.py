"""What wheels require of packages that they were built against."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.factories.elf import MODULE
from tests.factories.linked_libraries import linked
from tests.factories.wheels import wheel
from vbuild.build.environment import BuildEnvironment
from vbuild.build.repair import repaired
from vbuild.build.requiring import check_cuda, for_platform, outside_libraries, pins, with_requirements
from vbuild.errors import BuildError
from vbuild.hardware.driver import Dotted
from vbuild.verification.model import VerifyRule
from vbuild.verification.verify import verify
from vbuild.wheel.archive import open_wheel

NAME = "demo-1.0-cp311-cp311-linux_x86_64.whl"
OF_TORCH = ("libtorch.so", "libc10.so", "libcudart.so.13")


def extension(folder: Path, *needs: str, metadata: str = "") -> Path:
    return wheel(folder, NAME, {"demo/_C.cpython-311-x86_64-linux-gnu.so": linked(MODULE, *needs)}, metadata=metadata)


def environment(folder: Path, *packages: str, **files: str) -> BuildEnvironment:
    """An environment that has *packages*, as ``torch-2.15.0``, and *files*, whose paths have __ for /."""
    site = folder / "lib/python3.11/site-packages"
    for name in packages:
        (site / f"{name}.dist-info").mkdir(parents=True)
    for name, text in files.items():
        path = site / f"{name.replace('__', '/').replace('_dot_', '.')}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return BuildEnvironment(folder / "bin/python", folder / "bin")


def required(path: Path) -> tuple[str, ...]:
    with open_wheel(path) as source:
        return source.metadata().requires_dist


def test_libraries_of_a_framework_and_cuda_along_with_it_stay_outside(tmp_path: Path) -> None:
    made = extension(tmp_path, *OF_TORCH)
    assert outside_libraries(made) == OF_TORCH
    portable = repaired(made, tmp_path / "out", log=tmp_path / "log")
    assert not [name for name in zipfile.ZipFile(portable).namelist() if ".libs/" in name]


def test_a_framework_that_is_needed_is_required_at_the_version_it_was_built_against(tmp_path: Path) -> None:
    found = pins(environment(tmp_path / "env", "torch-2.15.0", "numpy-2.4.6"), {})
    assert found == {"torch": "==2.15.*"}
    made = extension(tmp_path, *OF_TORCH)
    assert required(with_requirements(made, tmp_path / "tied", pins=found, requires={})) == ("torch==2.15.*",)
    own = extension(tmp_path, *OF_TORCH, metadata="Requires-Dist: Torch>=2\n")
    assert with_requirements(own, tmp_path / "tied", pins=found, requires={}) == own  # verify warns of that


def test_values_of_the_matrix_are_required_and_in_the_version(tmp_path: Path) -> None:
    asked = {"torch": "2.15", "mpi4py": "4"}
    found = pins(environment(tmp_path / "env", "torch-2.15.0", "mpi4py-4.1.2"), asked)
    made = extension(tmp_path, *OF_TORCH, metadata="Requires-Dist: torch>2,!=2.13 ; python_version > '3'\n")
    result = with_requirements(made, tmp_path / "tied", pins=found, requires=asked, label="torch2.15.mpi4py4")
    assert result.name == "demo-1.0+torch2.15.mpi4py4-cp311-cp311-linux_x86_64.whl"
    assert set(required(result)) == {'torch!=2.13,==2.15.*,>2; python_version > "3"', "mpi4py==4.*"}
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "there"),
    ]
    subprocess.run([*command, "--python-version=3.11", str(result)], check=True)
    assert (tmp_path / "there/demo-1.0+torch2.15.mpi4py4.dist-info/RECORD").is_file()


def test_the_bill_of_materials_of_the_repair_follows_the_version(tmp_path: Path) -> None:
    bill = {"metadata": {"component": {"bom-ref": "demo", "name": "demo", "version": "1.0"}}}
    path = "demo-1.0.dist-info/sboms/auditwheel.cdx.json"
    made = wheel(tmp_path, NAME, {path: json.dumps(bill).encode()})
    result = with_requirements(
        made, tmp_path / "tied", pins={"torch": "==2.15.*"}, requires={"torch": "2.15"}, label="torch2.15"
    )
    with zipfile.ZipFile(result) as archive:
        after = json.loads(archive.read(path.replace("1.0", "1.0+torch2.15")))
    assert after["metadata"]["component"]["version"] == "1.0+torch2.15"


@pytest.mark.parametrize(
    ("version", "header", "pin"),
    [
        (
            "2.4.6",
            "#define NPY_FEATURE_VERSION NPY_API_VERSION\n# define NPY_FEATURE_VERSION NPY_1_23_API_VERSION",
            ">=1.23,<3",
        ),
        ("2.9.0", "", ">=2.9,<3"),
        ("1.26.4", "#define NPY_FEATURE_VERSION NPY_1_22_API_VERSION", ">=1.26,<2"),
    ],
)
def test_numpy_says_itself_which_is_the_oldest(version: str, header: str, pin: str, tmp_path: Path) -> None:
    there = environment(tmp_path, f"numpy-{version}", numpy___core__include__numpy__numpyconfig_dot_h=header)
    assert pins(there, {"numpy": version[:3]}) == {"numpy": pin}


def test_a_project_that_excludes_what_it_was_built_against_is_refused(tmp_path: Path) -> None:
    made = extension(tmp_path, metadata="Requires-Dist: torch<2.15\n")
    with pytest.raises(BuildError, match=r"requires torch<2\.15, and it was built against 2\.15"):
        with_requirements(made, tmp_path / "tied", pins={"torch": "==2.15.*"}, requires={"torch": "2.15"})


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "None",
            "torch 2.15.0 of the build requirements is built without CUDA; expected one with CUDA 13, or no matrix",
        ),
        ("'12.8'", "built for CUDA 12.8, not 13.2; expected matrix.cuda[].toolkit = '12.8'"),
        ("'13.0'", ""),
    ],
)
def test_a_framework_without_cuda_or_for_another_is_refused(said: str, message: str, tmp_path: Path) -> None:
    there = environment(tmp_path, "torch-2.15.0", torch__version_dot_py=f"cuda: Optional[str] = {said}\n")
    if message:
        with pytest.raises(BuildError) as caught:
            check_cuda(there, Dotted(13, 2))
        assert message in str(caught.value)
    else:
        check_cuda(there, Dotted(13, 2))


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ("", "needs libtorch.so and does not require torch"),
        ("Requires-Dist: Torch>=2\n", "needs libtorch.so and requires Torch>=2"),
        ("Requires-Dist: torch<2.16,>=2.15\n", None),
        ("Requires-Dist: torch==2.15.*\n", None),
    ],
)
def test_verify_warns_of_any_version_of_a_framework(metadata: str, found: str | None, tmp_path: Path) -> None:
    verdict = verify(extension(tmp_path, *OF_TORCH, metadata=metadata))
    warned = [one.what for one in verdict.findings if one.rule is VerifyRule.UNPINNED]
    assert warned == ([f"{found}: another torch than it was built against may crash it"] if found else [])


def test_a_wheel_for_any_machine_with_a_library_for_ctypes_is_named_for_linux(tmp_path: Path) -> None:
    made = wheel(tmp_path, "demo-1.0-py3-none-any.whl", {"demo/libdemo.so": linked("int demo(void) { return 1; }")})
    named = for_platform(made, tmp_path / "named")
    assert named.name == "demo-1.0-py3-none-linux_x86_64.whl"
    text = zipfile.ZipFile(named).read("demo-1.0.dist-info/WHEEL").decode()
    assert "Tag: py3-none-linux_x86_64\n" in text
    assert "Root-Is-Purelib: false\n" in text
    assert not [one for one in verify(named).findings if one.rule is VerifyRule.PURE]
    subprocess.run([sys.executable, "-m", "wheel", "unpack", str(named), "-d", str(tmp_path / "x")], check=True)
    assert for_platform(named, tmp_path / "again") == named


@pytest.mark.parametrize("files", [{}, {"demo/_C.so": b"\x7fELF PyInit_C"}])
def test_a_wheel_without_libraries_or_with_a_module_of_python_keeps_its_name(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    made = wheel(tmp_path, "demo-1.0-py3-none-any.whl", files)
    assert for_platform(made, tmp_path / "named") == made
