"""The plan of the layout conda: what each wheel becomes; and the files that are written."""

import json
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.factories.channels import described, entries, files, index
from tests.factories.variants import variant
from tests.factories.wheels import hashed, wheel
from vbuild.errors import RepackageError, WheelError
from vbuild.publishing.conda.package import CondaPackage, CondaRecord
from vbuild.publishing.conda.plan import Conda
from vbuild.publishing.model import PublishPlan
from vbuild.publishing.publish import publish
from vbuild.publishing.releases import releases_at
from vbuild.variants.providers import metadata_for
from vbuild.variants.stamp import stamped

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def planned(folder: Path, *wheels: str, metadata: str = "", names: tuple[tuple[str, str], ...] = ()) -> PublishPlan:
    for name in wheels:
        wheel(folder, name, {"demo.py": "x = 1\n"}, metadata=metadata)
    return Conda(names=names).plan(releases_at([folder]))


def records(plan: PublishPlan) -> list[CondaRecord]:
    """What is planned of wheels."""
    return [output.record for output in plan.outputs if isinstance(output, CondaPackage) and output.wheel]


def stems(plan: PublishPlan) -> list[str]:
    return [str(record.target).removesuffix(".conda") for record in records(plan)]


@pytest.mark.parametrize(
    ("name", "stem", "depends"),
    [
        (
            "demo-1.0-cp313-cp313t-manylinux_2_28_aarch64.whl",
            "linux-aarch64/demo-1.0-py313t_0",
            ("python >=3.13,<3.14.0a0", "python_abi 3.13.* *_cp313t", "__glibc >=2.28"),
        ),
        (
            "demo-1.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
            "linux-64/demo-1.0-py39abi3_0",
            ("python >=3.9", "cpython >=3.9", "_python_abi3_support 1.*", "__glibc >=2.17"),
        ),
        ("demo-1.0-py3-none-manylinux1_x86_64.whl", "linux-64/demo-1.0-py3_0", ("python >=3", "__glibc >=2.5")),
        ("demo-1.0-cp311-none-any.whl", "noarch/demo-1.0-py311_0", ("python >=3.11,<3.12.0a0",)),
        ("demo-1.0-py2.py3-none-any.whl", "noarch/demo-1.0-py_0", ("python >=3",)),
        ("demo-1.0-py37-none-any.whl", "noarch/demo-1.0-py_0", ("python >=3.7",)),
        (
            "demo-1!2.0.post1-cp311-cp311-linux_x86_64.whl",
            "linux-64/demo-1!2.0.post1-py311_0",
            ("python >=3.11,<3.12.0a0", "python_abi 3.11.* *_cp311"),
        ),
    ],
)
def test_a_wheel_becomes_a_package_by_its_tags(tmp_path: Path, name: str, stem: str, depends: tuple[str, ...]) -> None:
    [record] = records(planned(tmp_path, name))
    assert str(record.target) == f"{stem}.conda"
    assert record.depends == depends


def test_wheels_of_other_systems_are_left_out_and_said(tmp_path: Path) -> None:
    tags = ("cp311-cp311-musllinux_1_2_x86_64", "pp310-pypy310_pp73-linux_x86_64", "cp37-cp37m-linux_x86_64")
    other = [f"demo-1.0-{tag}.whl" for tag in tags]
    other += [f"demo-1.0-cp311-cp311-{platform}.whl" for platform in ("win_amd64", "macosx_11_0_arm64", "linux_i686")]
    plan = planned(tmp_path, NAME, *other)
    assert stems(plan) == ["linux-64/demo-1.0-py311_0"]
    assert plan.notes == (f"Not for CPython on Linux with glibc, and left out: {', '.join(sorted(other))}.",)
    (tmp_path / NAME).unlink()
    with pytest.raises(RepackageError) as refusal:
        planned(tmp_path)
    assert str(refusal.value) == (
        "found no wheel for CPython on Linux (x86_64, aarch64, glibc) or any machine in demo 1.0"
    )


def test_so_many_wheels_of_one_variant_that_numbers_run_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RepackageError) as refusal:
        planned(tmp_path, *(f"demo-1.0-{number}-py3-none-any.whl" for number in range(51)))
    assert str(refusal.value) == (
        "demo-1.0-50-py3-none-any.whl: 50 other wheels of its variant come before it; expected fewer"
    )


def test_own_names_are_mapped_as_those_of_others(tmp_path: Path) -> None:
    metadata = "Requires-Dist: torch>=2\nRequires-Dist: six\nProvides-Extra: all\nLicense: MIT\n"
    plan = planned(tmp_path, NAME, metadata=metadata, names=(("demo", "py-demo"), ("torch", "pytorch")))
    [record] = records(plan)
    assert (record.name, record.license, record.depends[3:]) == ("py-demo", "MIT", ("pytorch >=2", "six"))
    assert plan.notes == (
        "Extras are left out, for conda has none: all.",
        "Required by the names they have on PyPI: six; map those that conda-forge calls otherwise.",
    )


def test_two_projects_of_one_name_are_refused(tmp_path: Path) -> None:
    wheel(tmp_path, "other-2.0-py3-none-any.whl", {"other.py": "x = 1\n"})
    with pytest.raises(RepackageError) as refusal:
        planned(tmp_path, NAME, names=(("other", "demo"),))
    assert str(refusal.value) == "demo and other would both be called demo; expected a name for each"


def test_levels_bring_their_packages_and_variants_alone_are_said(tmp_path: Path) -> None:
    plain = wheel(tmp_path, NAME, {"demo.py": "x = 1\n"})
    stamped(plain, tmp_path, variant=variant("x86_64_v3", "x86_64 :: level :: v3"))
    plain.unlink()
    plan = planned(tmp_path)
    assert stems(plan) == ["linux-64/demo-1.0-py311_x86_64_v3_300"]
    assert "noarch/_x86_64-microarch-level-3-0_zen2.conda" in {str(output.target) for output in plan.outputs}
    assert plan.notes == (
        "Without a plain wheel, machines that no variant fits get nothing: demo 1.0.",
        "CPUs that archspec gets to know later have no level until this is published again with it.",
    )


def test_builds_for_some_gpus_say_what_clients_they_need(tmp_path: Path) -> None:
    plain = wheel(tmp_path, NAME, {"demo.py": "x = 1\n"})
    found = variant("gpu", "nvidia :: sm_arch :: 90_real")
    stamped(plain, tmp_path, variant=found, metadata=metadata_for(["nvidia"]))
    assert planned(tmp_path).notes == (
        "Builds for some GPUs need a client that knows __cuda_arch (CEP 46); others pass them over.",
    )


def test_a_property_without_equivalent_is_told_with_its_wheel_and_nothing_is_written(tmp_path: Path) -> None:
    plain = wheel(tmp_path / "dist", NAME, {"demo.py": "x = 1\n"})
    found = variant("h100", "nvidia :: sm_arch :: 90a_real")
    stamped(plain, tmp_path / "dist", variant=found, metadata=metadata_for(["nvidia"]))
    with pytest.raises(RepackageError) as refusal:
        publish([tmp_path / "dist"], tmp_path / "site", layouts=[Conda()])
    assert str(refusal.value) == (
        "conda: demo 1.0: variant 'h100': nvidia :: sm_arch :: 90a_real: no conda equivalent: __cuda_arch is a number "
        "without letters; expected 90_real or 90_virtual: leave the wheels that say so out"
    )
    assert not (tmp_path / "site").exists()


def test_a_package_for_one_of_many_pythons_is_called_after_it(tmp_path: Path) -> None:
    metadata = 'Requires-Python: >=3.10\nRequires-Dist: tomli; python_version < "3.11"\n'
    plan = planned(tmp_path, "demo-1.0-py3-none-any.whl", metadata=metadata)
    assert stems(plan) == ["noarch/demo-1.0-py_310_0", "noarch/demo-1.0-py_311on_0"]


def written(tmp_path: Path, name: str, members: Mapping[str, str], modes: Mapping[str, int] | None = None) -> Path:
    wheel(tmp_path / "dist", name, dict(members), modes=modes, metadata="License-Expression: MIT\n")
    publish([tmp_path / "dist"], tmp_path / "site", layouts=[Conda()])
    [path] = (tmp_path / "site/conda").glob("*/demo-*.conda")
    return path


MEMBERS = {
    "demo/_C.so": "so",
    "demo/data/" + "long" * 40 + ".txt": "long",
    "demo-1.0.data/purelib/extra.py": "y = 2\n",
    "demo-1.0.data/scripts/tool": "#!pythonw\nprint(1)\n",
    "demo-1.0.data/scripts/shell": "#!/bin/sh\n",
    "demo-1.0.data/headers/demo.h": "int x;\n",
    "demo-1.0.data/data/etc/demo.conf": "a = 1\n",
    "demo-1.0.dist-info/INSTALLER": "somebody\n",
    "demo-1.0.dist-info/entry_points.txt": "[gui_scripts]\ndemo = demo:main\n",
}


def test_members_go_where_an_environment_has_them(tmp_path: Path) -> None:
    path = written(tmp_path, NAME, MEMBERS, {"demo/_C.so": 0o755})
    site = "lib/python3.11/site-packages"
    modes = {entry.name: stat.S_IMODE(entry.mode) for entry in entries(path)}
    assert [name for name in modes if not name.startswith(site)] == [
        *("bin/demo", "bin/shell", "bin/tool", "etc/demo.conf", "include/python3.11/demo/demo.h")
    ]
    assert {name for name, mode in modes.items() if mode == 0o755} == {
        *("bin/demo", "bin/shell", "bin/tool", f"{site}/demo/_C.so")
    }
    assert index(path)["license"] == json.loads(described(path)["info/about.json"])["license"] == "MIT"
    found = files(path)
    assert found[f"{site}/extra.py"] == b"y = 2\n"
    assert found["bin/tool"].startswith(b"#!/opt/anaconda1anaconda2anaconda3/bin/python\nprint(1)")
    assert found["bin/shell"] == b"#!/bin/sh\n"
    assert f"{site}/demo/data/{'long' * 40}.txt" in found
    assert found[f"{site}/demo-1.0.dist-info/INSTALLER"] == b"conda\n"
    record = found[f"{site}/demo-1.0.dist-info/RECORD"].decode().splitlines()
    assert f"../../../etc/demo.conf,{hashed(b'a = 1' + bytes([10]))},6" in record
    assert {"../../../bin/demo,,", "../../../bin/tool,,", "demo-1.0.dist-info/RECORD,,"} <= {*record}
    assert len(record) == len(found)


def test_without_a_python_of_its_own_a_package_leaves_places_to_the_client(tmp_path: Path) -> None:
    path = written(tmp_path, "demo-1.0-py3-none-any.whl", MEMBERS)
    assert [name for name in files(path) if not name.startswith("site-packages/")] == [
        *("etc/demo.conf", "include/demo/demo.h", "python-scripts/shell", "python-scripts/tool")
    ]
    record = files(path)["site-packages/demo-1.0.dist-info/RECORD"].decode().splitlines()
    assert {"../../../bin/demo,,", "../../../bin/tool,,"} <= {*record}
    assert b"demo = demo:main" in described(path)["info/link.json"]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"demo-1.0.dist-info/entry_points.txt": "[console_scripts]\ndemo = run me\n"},
            "[console_scripts] 'demo': runs 'run me', expected 'module:function'",
        ),
        (
            {"demo-1.0.dist-info/entry_points.txt": "demo = demo:main\n"},
            "line 1: expected [group], or below one name = value",
        ),
    ],
)
def test_what_has_no_place_in_an_environment_is_refused(tmp_path: Path, members: Mapping[str, str], said: str) -> None:
    with pytest.raises(WheelError) as refusal:
        written(tmp_path, NAME, members)
    assert str(refusal.value) == f"{NAME}: demo-1.0.dist-info/entry_points.txt: {said}"
    assert not (tmp_path / "site").exists()
