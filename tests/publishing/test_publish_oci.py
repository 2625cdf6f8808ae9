"""Images as their clients see them: skopeo, buildah, umoci, podman, and a registry on this machine."""

import gzip
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.factories.containers import podman
from tests.factories.images import PYTHON, blob, images_of, index_of, laid_out, python_base, release, umoci
from tests.factories.tools import needs
from tests.factories.variants import machine
from vbuild.hardware.cpu import Cpu
from vbuild.hardware.machine import Machine
from vbuild.publishing.oci.check import problems
from vbuild.publishing.oci.select import select_image

pytestmark = needs("gcc", "skopeo", "umoci")

PROPERTIES, LABEL = "dev.wheelnext.variant.properties", "dev.wheelnext.variant.label"
LEVELS = {"plain": "level 1", "x86_64_v3": "level 3", "x86_64_v4": "level 4"}


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``demo`` 1.0, plain, v3 and v4, on a base with Python."""
    folder = tmp_path_factory.mktemp("images")
    return laid_out(release(folder), folder, base=python_base(folder / "base")) / "demo-1.0"


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})}, cwd=cwd
    )
    assert not ran.returncode, ran.stderr
    return ran.stdout


def skopeo(*words: str) -> str:
    return run("skopeo", *words)


def layers_of(layout: Path) -> dict[str | None, list[str]]:
    """The layers of each image by its variant, as skopeo names them."""
    return {
        image["platform"].get("variant"): [layer["digest"] for layer in manifest["layers"]]
        for image, manifest, _ in images_of(layout)
    }


@pytest.fixture
def store() -> Iterator[tuple[str, ...]]:
    """What keeps images of podman and buildah apart from the user's; they take no long paths."""
    if os.geteuid():
        pytest.skip("without root they need a user of their own")
    with tempfile.TemporaryDirectory() as folder:
        yield "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--storage-driver", "vfs"


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry on this machine, by its address."""
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
        "log": {"level": "error"},
    }
    (folder / "registry.yml").write_text(json.dumps(settings))
    process = subprocess.Popen(
        ["docker-registry", "serve", folder / "registry.yml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _answers(address)
        yield address
    finally:
        process.terminate()
        process.wait()


def _answers(address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(100):
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return
        time.sleep(0.1)
    pytest.fail("the registry does not answer")


def test_the_layout_has_no_problem(layout: Path) -> None:
    assert list(problems(layout.parent)) == []


def test_skopeo_sees_variants_and_annotations(layout: Path) -> None:
    index = json.loads(skopeo("inspect", "--raw", f"oci:{layout}:{PYTHON}"))
    assert [(one["platform"].get("variant"), one.get("annotations")) for one in index["manifests"]] == [
        (None, None),
        ("v4", {PROPERTIES: "x86_64 :: level :: v4", LABEL: "x86_64_v4"}),
        ("v3", {PROPERTIES: "x86_64 :: level :: v3", LABEL: "x86_64_v3"}),
    ]


@pytest.mark.parametrize(("asked", "given"), [("v3", "v3"), ("v4", "v4"), ("v2", None), (None, None)])
def test_skopeo_gets_the_variant_it_asks_for_or_the_plain_image(
    layout: Path, asked: str | None, given: str | None
) -> None:
    wanted = ("--override-arch", "amd64", *(("--override-variant", asked) if asked else ()))
    found = json.loads(skopeo("inspect", *wanted, f"oci:{layout}:{PYTHON}"))
    assert found["Layers"] == layers_of(layout)[given]
    assert found["Labels"].get(LABEL) == (f"x86_64_{given}" if given else None)


@pytest.mark.nightly
def test_every_image_is_unpacked_by_umoci_and_runs(layout: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("chroot needs root")
    for label, said in LEVELS.items():
        umoci("unpack", "--image", f"{layout}:{PYTHON}-{label}", str(tmp_path / label))
        config = json.loads((tmp_path / label / "config.json").read_bytes())["process"]["env"]
        root = str(tmp_path / label / "rootfs")
        if label == "plain" or fits(label):
            assert run("chroot", root, "/usr/bin/env", "-i", *config, "demo").strip() == said
            assert run("chroot", root, "/usr/bin/env", "-i", *config, "demo-script").strip() == said
        shutil.rmtree(tmp_path / label)


def fits(label: str) -> bool:
    here = Machine.here().cpu
    return here is not None and here.runs(Cpu("x86_64", label[-2:]))


def test_a_copy_of_all_has_everything_and_shared_layers_once(layout: Path, tmp_path: Path) -> None:
    skopeo("copy", "--all", f"oci:{layout}:{PYTHON}", f"oci:{tmp_path}/copy:all")
    assert index_of(tmp_path / "copy", "all") == index_of(layout)
    layers = {layer for several in layers_of(layout).values() for layer in several}
    assert len(layers) == 5  # of the base, of all variants, and of each
    assert all(blob(tmp_path / "copy", layer).read_bytes() == blob(layout, layer).read_bytes() for layer in layers)


def test_other_tars_read_a_layer(layout: Path, tmp_path: Path) -> None:
    common = layers_of(layout)["v3"][1]
    listing = run("tar", "--gzip", "--list", "--file", blob(layout, common)).splitlines()
    with gzip.open(blob(layout, common)) as file, tarfile.open(fileobj=file) as archive:
        assert listing == [f"{info.name}/" if info.isdir() else info.name for info in archive]
    assert f"usr/local/lib/{'python3.' + PYTHON[3:]}/site-packages/demo/table.py" in listing
    run("tar", "--gzip", "--extract", "--file", blob(layout, common), "--directory", tmp_path)


@pytest.mark.nightly
@needs("docker-registry")
def test_a_registry_keeps_variants_and_annotations(layout: Path, tmp_path: Path) -> None:
    with registry(tmp_path) as address:
        there = f"docker://{address}/demo:1.0"
        skopeo("copy", "--all", "--dest-tls-verify=false", f"oci:{layout}:{PYTHON}", there)
        raw = skopeo("inspect", "--raw", "--tls-verify=false", there)
        assert json.loads(raw) == index_of(layout)
        for variant, layers in layers_of(layout).items():
            asked = ("--override-variant", variant) if variant else ()
            found = json.loads(skopeo("inspect", "--tls-verify=false", "--override-arch", "amd64", *asked, there))
            assert found["Layers"] == layers
        skopeo("copy", "--all", "--src-tls-verify=false", there, f"oci:{tmp_path}/back:{PYTHON}")
    best = select_image(tmp_path / "back", machine("x86-64-v3"))
    assert best.digest == select_image(layout, machine("x86-64-v3")).digest
    assert best.image.label == "x86_64_v3"


@pytest.mark.nightly
@needs("podman")
def test_podman_runs_the_image_that_is_named_and_the_plain_one_of_the_index(
    layout: Path, store: tuple[str, ...]
) -> None:
    environment = podman()
    for ref, label in [(PYTHON, "plain"), *((f"{PYTHON}-{label}", label) for label in LEVELS)]:
        if label == "plain" or fits(label):
            ran = run("podman", *store, "run", "--rm", f"oci:{layout}:{ref}", "demo", env=environment)
            assert ran.strip() == LEVELS[label]


@pytest.mark.nightly
@needs("buildah")
def test_buildah_builds_on_an_image_and_its_own_indexes_are_understood(
    layout: Path, tmp_path: Path, store: tuple[str, ...]
) -> None:
    container = run("buildah", *store, "from", f"oci:{layout}:{PYTHON}-x86_64_v3").strip()
    said = json.loads(run("buildah", *store, "inspect", container))
    assert said["OCIv1"]["config"]["Labels"][LABEL] == "x86_64_v3"
    run("buildah", *store, "rm", container)
    run("buildah", *store, "manifest", "create", "theirs")
    for label, variant in (("plain", ""), ("x86_64_v3", "v3")):
        platform = ("--arch", "amd64", "--variant", variant)
        run("buildah", *store, "manifest", "add", *platform, "theirs", f"oci:{layout}:{PYTHON}-{label}")
    run("buildah", *store, "manifest", "push", "--all", "theirs", f"oci:{tmp_path}/theirs:demo")
    digests = {
        one["platform"].get("variant"): one["digest"] for one in index_of(tmp_path / "theirs", "demo")["manifests"]
    }
    assert select_image(tmp_path / "theirs", machine("x86-64-v4")).digest == digests["v3"]
    assert select_image(tmp_path / "theirs", machine("x86-64-v2")).digest == digests[None]


@pytest.mark.nightly
@needs("podman", "docker-registry")
def test_the_commands_of_the_readme_work_in_the_layouts_folder(
    layout: Path, store: tuple[str, ...], tmp_path: Path
) -> None:
    said = (layout.parent / "README.md").read_text()
    commands = [block.partition("```")[0].strip() for block in said.split("```sh\n")[1:]]
    select, *others = commands
    assert select == f"vbuild select oci:demo-1.0:{PYTHON}"
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{store[1]}"\nrunroot = "{store[3]}"\n'
    )
    with registry(tmp_path) as address:
        settings = tmp_path / ".config" / "containers"
        settings.mkdir(parents=True)
        (settings / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
        environment = {
            **podman(),
            "REGISTRY": address,
            "HOME": str(tmp_path),
            "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
        }
        for command in others:
            run("sh", "-c", command, env=environment, cwd=layout.parent)
        there = f"docker://{address}/demo:1.0-{PYTHON}"
        found = json.loads(skopeo("inspect", "--raw", "--tls-verify=false", there))
    assert found == index_of(layout)
