"""What the layout oci makes of wheels: images, indexes, annotations, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.images import images_of, index_of, labelled, laid_out, release
from tests.factories.tools import needs
from tests.factories.variants import tiny_wheel
from tests.factories.wheels import dist_info_of, wheel
from vbuild.errors import RepackageError, WheelError
from vbuild.publishing.model import PublishPlan
from vbuild.publishing.oci.model import Images
from vbuild.publishing.oci.plan import Oci
from vbuild.publishing.releases import releases_at

PROPERTIES, LABEL = "dev.wheelnext.variant.properties", "dev.wheelnext.variant.label"
LINUX = "cp311-cp311-manylinux_2_17_x86_64"


def planned(*wheels: Path, **options: object) -> PublishPlan:
    return Oci(**options).plan(releases_at(wheels))  # type: ignore[arg-type] # whatever a test gives


def families(plan: PublishPlan) -> dict[str, list[tuple[str, str, str]]]:
    """Name, platform in the index, and platform of the config of each image, by family."""
    return {
        family.ref: [(image.ref, str(image.listed), str(image.platform)) for image in family.images]
        for output in plan.outputs
        if isinstance(output, Images)
        for family in output.families
    }


def told(plan: PublishPlan) -> tuple[str, ...]:
    """The notes of *plan*, but for those that it always has without a base: what is there, and that no Python is."""
    return plan.notes[2:]


def plain(folder: Path, tag: str = LINUX) -> Path:
    return tiny_wheel(folder, f"demo-1.0-{tag}.whl")


def level(folder: Path, level: str, tag: str = LINUX) -> Path:
    return labelled(folder, f"x86_64_{level}", f"x86_64 :: level :: {level}", tag=tag, namespaces=["nvidia", "x86_64"])


def cuda(folder: Path, *levels: str) -> Path:
    label = "_".join(("cu126", *levels))
    properties = ["nvidia :: cuda_version_lower_bound :: 12.6", *(f"x86_64 :: level :: {one}" for one in levels)]
    return labelled(folder, label, *properties, tag=LINUX, namespaces=["nvidia", "x86_64"])


def test_a_wheel_for_any_machine_is_the_plain_image_of_the_others_or_one_for_each_architecture(tmp_path: Path) -> None:
    anywhere = plain(tmp_path / "any", "py3-none-any")
    assert [name for name, _, _ in families(planned(anywhere, level(tmp_path, "v3")))["cp311"]] == [
        "cp311-plain",
        "cp311-x86_64_v3",
    ]
    assert families(planned(anywhere)) == {
        "py3": [("py3-plain-amd64", "linux/amd64", "linux/amd64"), ("py3-plain-arm64", "linux/arm64", "linux/arm64")]
    }
    own = plain(tmp_path / "own", "py3-none-manylinux_2_17_x86_64")
    assert families(planned(anywhere, own)) == {"py3": [("py3-plain", "linux/amd64", "linux/amd64")]}


@needs("gcc")
def test_properties_stand_in_the_index_and_in_the_images_own_labels_and_annotations(tmp_path: Path) -> None:
    layout = laid_out(release(tmp_path), tmp_path) / "demo-1.0"
    (first, _, plain_config), (image, manifest, config), _ = images_of(layout)
    said = {PROPERTIES: "x86_64 :: level :: v4", LABEL: "x86_64_v4"}
    titles = {"org.opencontainers.image.title": "demo", "org.opencontainers.image.version": "1.0"}
    assert image["platform"] == {"architecture": "amd64", "os": "linux", "variant": "v4"}
    assert image["annotations"] == said
    assert manifest["annotations"] == titles | said
    assert config["config"]["Labels"] == titles | said
    assert (config["architecture"], config["os"], config["variant"]) == ("amd64", "linux", "v4")
    assert "annotations" not in first
    assert "variant" not in plain_config
    assert plain_config["config"]["Labels"] == titles
    assert '"x86_64_v3"' in index_of(layout)["annotations"]["dev.wheelnext.variant.document"]


def test_several_properties_are_sorted_lines(tmp_path: Path) -> None:
    layout = laid_out([plain(tmp_path), cuda(tmp_path, "v3")], tmp_path) / "demo-1.0"
    assert images_of(layout, "cp311")[1][0]["annotations"][PROPERTIES] == (
        "nvidia :: cuda_version_lower_bound :: 12.6\nx86_64 :: level :: v3"
    )


@needs("gcc")
def test_what_variants_have_in_common_is_one_layer_and_the_rest_one_of_each(tmp_path: Path) -> None:
    layout = laid_out(release(tmp_path), tmp_path) / "demo-1.0"
    layers = [[layer["digest"] for layer in manifest["layers"]] for _, manifest, _ in images_of(layout)]
    assert len({lower for lower, _ in layers}) == 1
    assert len({own for _, own in layers}) == 3
    sizes = {layer["size"] for _, manifest, _ in images_of(layout) for layer in manifest["layers"][1:]}
    assert max(sizes) < 5000  # the large table is in the layer of all


def test_names_of_images_are_told_and_that_they_hold_no_python(tmp_path: Path) -> None:
    plan = planned(plain(tmp_path), level(tmp_path, "v3"), plain(tmp_path, "cp312-cp312-manylinux_2_17_x86_64"))
    assert plan.notes == (
        "demo-1.0 has cp311 (plain, x86_64_v3), cp312 (plain); oci:demo-1.0:cp311-plain is one image.",
        "Without --base images hold no Python: copy their /usr/local into one that does.",
    )
    assert [use.text.split()[-1] for use in plan.uses if "podman" in use.text] == ["oci:demo-1.0:cp311-plain"]


def companion(folder: Path, files: dict[str, bytes | str] | None = None) -> Path:
    name = "demo_libs-7-py3-none-manylinux_2_17_x86_64.whl"
    said = "Wheel-Version: 1.0\nGenerator: vbuild split\nRoot-Is-Purelib: true\nTag: py3-none-manylinux_2_17_x86_64\n"
    whole = files or {"demo_libs/lib/libx.so": "x"}
    return wheel(folder, name, {**whole, f"{dist_info_of(name)}/WHEEL": said})


def of_level(folder: Path, label: str) -> Path:
    return labelled(folder, label, "x86_64 :: level :: v3", tag=LINUX)


ARM = LINUX.replace("x86_64", "aarch64")
APART = "an image each, and nothing to tell them apart by; give one of them"
NAMES = "expected letters and digits with one of ._- between them: give the variant another label"
BF16 = ("x86_64 :: level :: v4", "x86_64 :: avx512_bf16 :: on")
REFUSED: list[tuple[Callable[[Path], list[Path]], str]] = [
    (
        lambda folder: [
            wheel(folder, f"demo-1.0-{LINUX}.whl", {"shared.py": "1"}, metadata="Requires-Dist: demo-libs==7\n"),
            companion(folder, {"shared.py": "2"}),
        ],
        (
            f"usr/local/lib/python3.11/site-packages/shared.py: demo-1.0-{LINUX}.whl and "
            "demo_libs-7-py3-none-manylinux_2_17_x86_64.whl have different files there; expected one of them"
        ),
    ),
    (
        lambda folder: [level(folder, "v3"), cuda(folder)],
        (
            "demo 1.0: cp311, x86_64: has cu126, x86_64_v3, and no plain wheel: clients that ask for no variant would "
            "find no image; give the plain wheel"
        ),
    ),
    (
        lambda folder: [plain(folder), plain(folder, LINUX.replace("2_17", "2_28"))],
        f"demo 1.0: cp311, x86_64: demo-1.0-{LINUX}.whl, demo-1.0-{LINUX.replace('2_17', '2_28')}.whl: {APART}",
    ),
    (
        lambda folder: [plain(folder), of_level(folder, "plain")],
        f"demo 1.0: cp311, x86_64: demo-1.0-{LINUX}.whl, demo-1.0-{LINUX}-plain.whl: {APART}",
    ),
    (
        lambda folder: [plain(folder, ARM), level(folder, "v3", ARM)],
        f"demo 1.0: cp311, aarch64: demo-1.0-{ARM}-x86_64_v3.whl: needs x86_64 :: level :: v3, and is for aarch64",
    ),
    (
        lambda folder: [plain(folder), labelled(folder, "bf16", *BF16, tag=LINUX)],
        (
            f"demo 1.0: cp311, x86_64: demo-1.0-{LINUX}-bf16.whl: needs x86_64 :: avx512_bf16 :: on, and clients "
            "choose images by level alone: expected wheels without it"
        ),
    ),
    (
        lambda folder: [plain(folder), of_level(folder, "abi3"), plain(folder, LINUX.replace("-cp311", "-abi3"))],
        "demo 1.0: two images would be called cp311-abi3; give the variant another label",
    ),
    (
        lambda folder: [plain(folder), of_level(folder, "fast__v3")],
        f"demo 1.0: 'cp311-fast__v3' is not a name of an image; {NAMES}",
    ),
    (
        lambda folder: [plain(folder), of_level(folder, "fast_")],
        f"demo 1.0: 'cp311-fast_' is not a name of an image; {NAMES}",
    ),
    (
        lambda folder: [plain(folder, "cp311-cp311-win_amd64")],
        (
            "demo 1.0: no wheel that an image can be made of: demo-1.0-cp311-cp311-win_amd64.whl is not for Linux on "
            "x86_64 or aarch64, and is in no image"
        ),
    ),
    (lambda folder: [companion(folder)], "no wheel of a release; expected one that images can be made of"),
]


@pytest.mark.parametrize(("wheels", "message"), REFUSED)
def test_wheels_that_no_images_can_be_made_of_are_refused(
    tmp_path: Path, wheels: Callable[[Path], list[Path]], message: str
) -> None:
    with pytest.raises(RepackageError) as refusal:
        planned(*wheels(tmp_path))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a b c", "Requires-Dist: 'a b c' is not a requirement: Expected "),
        ("a; os_name ~= 'posix'", 'Requires-Dist a; os_name ~= "posix": its marker cannot be decided'),
    ],
    ids=["no requirement", "no marker"],
)
def test_a_requirement_that_is_none_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(WheelError) as refusal:
        planned(wheel(tmp_path, f"demo-1.0-{LINUX}.whl", metadata=f"Requires-Dist: {line}\n"))
    assert str(refusal.value).startswith(f"demo-1.0-{LINUX}.whl: {message}")


def test_a_companion_of_another_version_is_in_no_image(tmp_path: Path) -> None:
    thin = wheel(tmp_path, f"demo-1.0-{LINUX}.whl", metadata="Requires-Dist: demo-libs==8\n")
    assert told(planned(thin, companion(tmp_path))) == (
        "demo 1.0 requires demo-libs==8: only the base image can have that.",
    )
