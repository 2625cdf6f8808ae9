"""uv as the judge of `select`: for random sets of tiny wheels, real drivers' versions, GPUs and CPU flags."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.factories.variants import tiny_wheel
from vbuild.errors import VariantError
from vbuild.hardware.cpu import X86_64_EXTRAS
from vbuild.hardware.driver import FORCED_CAPABILITY, FORCED_DRIVER, FORCED_TPU
from vbuild.hardware.machine import Machine
from vbuild.variants.document import Schema
from vbuild.variants.select import select

SETS, BATCHES = 240, 8
UV = str(Path(sys.executable).with_name("uv"))
CHOICE = re.compile(r"Selecting: demo==.* \((?P<wheel>demo-.*\.whl)\)")
MINOR = sys.version_info[1]
TAGS = (
    "py3-none-any",
    "py2.py3-none-any",
    f"py3{MINOR}-none-any",
    f"cp3{MINOR}-cp3{MINOR}-linux_x86_64",
    f"cp3{MINOR}-cp3{MINOR}-manylinux_2_17_x86_64.manylinux2014_x86_64",
    f"cp3{MINOR}-cp3{MINOR}-manylinux_2_5_x86_64",
    "cp37-abi3-manylinux_2_12_x86_64",
    "cp37-abi3-linux_x86_64",
    "py3-none-manylinux_2_17_x86_64",
    "cp27-none-any",
    f"cp3{MINOR}-cp3{MINOR}-win_amd64",
)


def chosen_by_uv(folder: Path, cache: Path, *prefix: str, **environ: str) -> str | None:
    """The wheel of demo that uv takes out of *folder*; None where it takes none."""
    command = [*prefix, UV, "pip", "install", "-v", "--preview-features", "wheel-variants", "--offline", "--no-config"]
    command += ["--no-index", "--find-links", str(folder), "--target", str(cache / "target"), "--dry-run"]
    command += ["--python", sys.executable, "demo"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "NV_"))}
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**clean, "UV_CACHE_DIR": str(cache), **environ}
    )
    if run.returncode:
        assert "No solution found" in run.stderr, run.stderr
        return None
    return str(CHOICE.findall(run.stderr)[-1])


def chosen_by_vbuild(folder: Path, machine: Machine) -> str | None:
    try:
        return select("demo", [folder], machine=machine).wheel.name
    except VariantError as error:
        if "fits this machine" not in str(error):
            raise
        return None


def packed(providers: dict[str, Any], order: list[str], variants: dict[str, Any]) -> bytes:
    return json.dumps(
        {
            "$schema": Schema.PEP_850.value,
            "default-priorities": {"namespace": order},
            "providers": providers,
            "variants": variants,
        }
    ).encode()


class RandomRelease:
    """A release with random static providers, variants, tags and build numbers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        names = self.random.sample(["blas", "mpi", "gpu", "x86_64"], self.random.randint(1, 3))
        self.providers = {name: self.provider() for name in names}
        self.order = self.random.sample(names, len(names))

    def provider(self) -> dict[str, Any]:
        features = self.random.sample(["a", "b", "c_1"], self.random.randint(1, 3))
        provider: dict[str, Any] = {
            "static-properties": {
                feature: self.random.sample(["1", "1.0", "10", "2", "v3", "zz"], self.random.randint(1, 4))
                for feature in features
            }
        }
        if len(features) > 1:
            provider["feature-order"] = self.random.sample(features, len(features))
        if self.random.random() < 0.1:
            provider["optional"] = True
        return provider

    def variant(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for namespace in self.random.sample(self.order, self.random.randint(1, len(self.order))):
            features = self.providers[namespace]["static-properties"]
            for feature in self.random.sample(sorted(features), self.random.randint(1, len(features))):
                known = sorted(features[feature]) + (["none"] if self.random.random() < 0.15 else [])
                values = self.random.sample(known, self.random.randint(1, min(2, len(known))))
                properties.setdefault(namespace, {})[feature] = sorted(values)
        return properties

    def write(self, folder: Path, version: str) -> None:
        variants: dict[str, Any] = {}
        for _ in range(self.random.randint(1, 8)):
            label = "".join(self.random.choices("ab01_.", k=self.random.randint(1, 4)))
            if (properties := self.variant()) not in variants.values():
                variants[label] = properties
        if self.random.random() < 0.4:
            variants["null"] = {}
        for label, properties in variants.items():
            found = packed(self.providers, self.order, {label: properties})
            for _ in range(self.random.choice((1, 1, 2, 3))):
                tiny_wheel(folder, f"{self.stem(version)}-{label}.whl", variant_json=found)
        for _ in range(self.random.choice((0, 1, 2))):
            tiny_wheel(folder, f"{self.stem(version)}.whl")
        if self.random.random() < 0.2:
            variants.pop(self.random.choice(sorted(variants)))
        if self.random.random() < 0.95:
            (folder / f"demo-{version}-variants.json").write_bytes(packed(self.providers, self.order, variants))

    def stem(self, version: str) -> str:
        build = self.random.choice(("", "", "-1", "-2", "-10", "-2a", "-2b"))
        return f"demo-{version}{build}-{self.random.choices(TAGS, [6, 2] + [1] * (len(TAGS) - 2))[0]}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_uv_and_select_take_the_same_wheel_of_random_sets(batch: int, tmp_path: Path) -> None:
    machine = Machine.here()
    taken = set()
    for seed in range(batch, SETS, BATCHES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        versions = random.Random(seed).sample(["1.0", "1.1", "2.0b1", "0.9"], random.Random(seed).choice((1, 1, 1, 2)))
        for version in versions:
            RandomRelease(seed * 7 + len(version)).write(folder, version)
        expected = chosen_by_uv(folder, tmp_path / "cache")
        print(f"seed {seed}: uv takes {expected}")
        found = chosen_by_vbuild(folder, machine)
        assert found == expected, f"seed {seed}: {sorted(path.name for path in folder.iterdir())}"
        taken.add(expected)
    assert len(taken) > 3


NVIDIA = {
    "nvidia": {
        "requires": ["nvidia-variant-provider>=0.0.1,<1"],
        "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
    }
}
DRIVERS = ("10.2", "12.2000", "11.0", "11.20", "12.0", "12.8", "12.21", "12.1000", "13", "13.1", "15.20", "16.3")
GPUS = ("3.5", "5.0", "7.5", "8.0", "8.9", "9.0", "10.3", "12.1")
BOUNDS = ("11", "11.0", "11.8", "12", "12.0", "12.4", "12.8", "12.9", "13", "13.0", "15.20", "16.0")
ARCHS = tuple(f"{arch}_{kind}" for arch in (50, 75, 80, 86, 89, 90, 100, 103, 120) for kind in ("real", "virtual"))


def nvidia_release(seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    variants: dict[str, Any] = {}
    for number in range(10):
        features: dict[str, Any] = {}
        if chance.random() < 0.6:
            features["cuda_version_lower_bound"] = [chance.choice(BOUNDS)]
        if chance.random() < 0.4:
            features["cuda_version_upper_bound"] = [chance.choice(BOUNDS)]
        if chance.random() < 0.5 or not features:
            features["sm_arch"] = sorted(chance.sample(ARCHS, chance.randint(1, 6)))
        if {"nvidia": features} not in variants.values():
            variants[f"g{number}"] = {"nvidia": features}
    write_release(folder, NVIDIA, variants)


def write_release(folder: Path, providers: dict[str, Any], variants: dict[str, Any]) -> None:
    for label, properties in variants.items():
        found = packed(providers, list(providers), {label: properties})
        tiny_wheel(folder, f"demo-1.0-py3-none-any-{label}.whl", variant_json=found)
    tiny_wheel(folder, "demo-1.0-py3-none-any.whl")
    (folder / "demo-1.0-variants.json").write_bytes(packed(providers, list(providers), variants))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("driver", DRIVERS)
def test_uv_and_select_take_the_same_wheel_for_every_driver_and_gpu(
    driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_DRIVER, driver)
    for seed, gpu in enumerate(GPUS):
        monkeypatch.setenv(FORCED_CAPABILITY, gpu)
        folder = tmp_path / gpu
        nvidia_release(seed * 100 + DRIVERS.index(driver), folder)
        forced = {FORCED_DRIVER: driver, FORCED_CAPABILITY: gpu}
        expected = chosen_by_uv(folder, tmp_path / "cache", **forced)
        assert chosen_by_vbuild(folder, Machine.here()) == expected, f"driver {driver}, GPU {gpu}"


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "provider",
    [
        {"requires": ["x86-64-variant-provider"]},
        {"requires": ["x86_64_variant_provider>=0.2.1"]},
        {"requires": ["x86-64-variant-provider>=0.2.2"]},
        {"requires": ["x86-64-variant-provider==0.2.0"]},
        {"requires": ["x86-64-variant-provider[fast]"]},
        {"requires": ["x86-64-variant-provider; python_version >= '3'"]},
        {"requires": ["x86-64-variant-provider", "archspec"]},
        {"requires": ["provider-variant-x86-64"]},
        {"requires": ["x86-64-variant-provider"], "plugin-api": "x86_64_variant_provider"},
        {"requires": ["x86-64-variant-provider"], "plugin-api": "x86_64_variant_provider.plugin"},
        {"requires": ["x86-64-variant-provider"], "optional": True},
    ],
    ids=lambda provider: "+".join(map(str, provider["requires"] + [provider.get("plugin-api", "")])),
)
def test_uv_and_select_know_the_same_providers(provider: dict[str, Any], tmp_path: Path) -> None:
    write_release(tmp_path / "wheels", {"x86_64": provider}, {"v1": {"x86_64": {"level": ["v1"]}}})
    expected = chosen_by_uv(tmp_path / "wheels", tmp_path / "cache")
    assert chosen_by_vbuild(tmp_path / "wheels", Machine.here()) == expected


def test_uv_and_select_choose_by_level_and_take_no_wheel_for_a_single_feature(tmp_path: Path) -> None:
    folder, here = tmp_path / "wheels", Machine.here()
    assert here.cpu
    extras = sorted(feature.cpuinfo for found in X86_64_EXTRAS.values() for feature in found)
    variants: dict[str, Any] = {"v1": {"level": ["v1"]}, "any": {extra: ["on"] for extra in extras}}
    variants |= {extra: {"level": [here.cpu.level], extra: ["on"]} for extra in extras}
    provider = {"x86_64": {"requires": ["x86-64-variant-provider >=0.2,<1"]}}
    write_release(folder, provider, {label: {"x86_64": features} for label, features in variants.items()})
    assert chosen_by_uv(folder, tmp_path / "cache") == chosen_by_vbuild(folder, here) == "demo-1.0-py3-none-any-v1.whl"


FLAGS = (
    *("fpu", "cx8", "cmov", "mmx", "fxsr", "sse", "sse2", "syscall", "lm"),
    *("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
    *("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
)
LOST = ("", "cx16", "lahf_lm", "popcnt", "pni ssse3", "ssse3", "abm", "avx2", "f16c", "movbe", "avx512cd", "avx512f")
MOUNT = 'mount --bind "$0" /proc/cpuinfo && exec "$@"'


@pytest.mark.sampled(4)
@pytest.mark.skipif(not shutil.which("unshare"), reason="no unshare")
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("vendor", ["AuthenticAMD", "GenuineIntel"])
def test_uv_and_select_find_the_same_level_in_cpuinfo(lost: str, vendor: str, tmp_path: Path) -> None:
    flags = " ".join(flag for flag in FLAGS if flag not in lost.split())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 6\nflags\t\t: {flags}\n\n")
    inside = ("unshare", "-m", "sh", "-c", MOUNT, str(cpuinfo))
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounts are not permitted here")
    provider = {"x86_64": {"requires": ["x86-64-variant-provider"]}}
    write_release(
        tmp_path / "wheels", provider, {f"v{level}": {"x86_64": {"level": [f"v{level}"]}} for level in (1, 2, 3, 4)}
    )
    ask = "from vbuild.hardware.machine import Machine; print(Machine.here(), end='')"
    described = subprocess.run([*inside, sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    expected = chosen_by_uv(tmp_path / "wheels", tmp_path / "cache", *inside)
    assert chosen_by_vbuild(tmp_path / "wheels", Machine.parse(described)) == expected


@pytest.mark.parametrize(
    "wheels",
    [
        {"demo-1.0-py3-none-any.whl": "", "demo-2.0-py3-none-any.whl": ">=3.99"},
        {"demo-1.0-py3-none-any.whl": "", "demo-2.0b1-py3-none-any.whl": ""},
        {"demo-1.0-cp27-none-any.whl": "", "demo-2.0b1-py3-none-any.whl": ""},
        {"demo-1.0-py3-none-any.whl": "", "demo-1.0+cu126-py3-none-any.whl": "", "demo-1!0.1-py3-none-any.whl": ""},
        {"demo-1.0-py2.py3-none-any.whl": "", "demo-1.0-py3-none-any.whl": ""},
        {"demo-1.0-py3-none-any.whl": "", "demo-2.0-py3-none-any-v3.whl": "", "demo-3.0.whl": ""},
        {"demo-1.0-cp27-none-any.whl": ""},
    ],
)
def test_uv_and_select_take_the_same_version(wheels: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "wheels"
    for filename, requires_python in wheels.items():
        if filename.count("-") >= 4:
            tiny_wheel(folder, filename, requires_python=requires_python)
    assert chosen_by_vbuild(folder, Machine.here()) == chosen_by_uv(folder, tmp_path / "cache")


STATIC = {"static-properties": {"level": ["1", "2"]}}
ABI = {"abi": {"builtin": "abi_dependency"}, "blas": STATIC}
TPU = {
    "tpu": {
        "requires": ["tpu-variant-provider>=0.1"],
        "plugin-api": "tpu_variant_provider.plugin:TpuVariantPlugin",
    }
}
ONE = {"x": {"blas": {"level": ["1"]}}}


def shaped(providers: dict[str, Any] | None = None, variants: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A variants.json with *providers* and *variants*; in the names of *changes* underscores stand for dashes."""
    providers = {"blas": STATIC} if providers is None else providers
    values = json.loads(packed(providers, list(providers), ONE if variants is None else variants))
    values |= {"$schema" if key == "schema" else key.replace("_", "-"): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def lay_out(folder: Path, values: dict[str, Any]) -> None:
    """A plain wheel, a wheel of each label that may stand in a file name, and *values* as the variants.json."""
    for label in values["variants"]:
        if label.islower():
            own = json.dumps(values | {"variants": {label: values["variants"][label]}}).encode()
            tiny_wheel(folder, f"demo-1.0-py3-none-any-{label}.whl", variant_json=own)
    tiny_wheel(folder, "demo-1.0-py3-none-any.whl")
    (folder / "demo-1.0-variants.json").write_text(json.dumps(values))


LATER = f"{Schema.PEP_850.value.rpartition('/')[0]}/v0.3.0.json"
READ_ALIKE = {
    "abi": shaped(ABI, {"a": {"abi": {"torch": ["2.8"]}}, "x": {"blas": {"level": ["2"]}}}),
    "abi-not-canonical": shaped(ABI, {"a": {"abi": {"torch": ["02.8"]}}, "x": {"blas": {"level": ["2"]}}}),
    "abi-optional": shaped(ABI | {"abi": {"builtin": "abi_dependency", "optional": True}}),
    "another-builtin": shaped(ABI | {"abi": {"builtin": "other"}}, {"a": {"abi": {"torch": ["2"]}}} | ONE),
    "unsorted": shaped(variants={"x": {"blas": {"level": ["2", "1"]}}}),
    "later-schema": shaped(schema=LATER),
    "later-schema-without-providers": shaped(schema=LATER, providers=None),
    "825-with-providers": shaped(schema=Schema.PEP_825.value),
    "empty-namespace": shaped(variants={"x": {"blas": {"level": ["1"]}, "other": {}}}),
    "null-with-an-empty-namespace": shaped(variants={"null": {"other": {}}}),
    "two-labels-of-the-same-properties": shaped(variants={"z": ONE["x"], "b": ONE["x"]}),
    "no-tpu": shaped(TPU, {"x": {"tpu": {"present": ["false"]}}}),
    "a-tpu": shaped(TPU, {"x": {"tpu": {"present": ["true"]}}}),
    "not-listed": shaped(variants={"a": {"abi_dependency": {"torch": ["2.8"]}}} | ONE),
    "two-providers-in-one": shaped(ABI | {"abi": {"builtin": "abi_dependency", "requires": ["x"]}}),
    "another-key": shaped(more=1),
    "a-value-twice": shaped(variants={"x": {"blas": {"level": ["1", "1"]}}}),
    "another-provider": shaped({"blas": STATIC, "mpi": STATIC}, default_priorities={"namespace": ["blas"]}),
    "no-providers": shaped(providers=None),
    "no-namespaces": shaped(default_priorities={"namespace": []}),
    "no-feature-order": shaped({"blas": {"static-properties": {"level": ["1"], "other": ["1"]}}}),
    "an-empty-feature-order": shaped({"blas": STATIC | {"feature-order": []}}),
    "null-with-properties": shaped(variants={"null": ONE["x"]}),
}


def read_by_vbuild(folder: Path) -> str | None:
    """As `chosen_by_vbuild`; None also for a variants.json that is refused, of which uv installs nothing either."""
    try:
        return chosen_by_vbuild(folder, Machine.here())
    except VariantError:
        return None


@pytest.mark.sampled(9)
@pytest.mark.parametrize("values", READ_ALIKE.values(), ids=READ_ALIKE)
@pytest.mark.parametrize("forced", ["", "Yes"])
def test_uv_and_select_read_the_same_documents(
    values: dict[str, Any], forced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_TPU, forced)
    lay_out(tmp_path / "wheels", values)
    expected = chosen_by_uv(tmp_path / "wheels", tmp_path / "cache", **{FORCED_TPU: forced})
    assert read_by_vbuild(tmp_path / "wheels") == expected


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("values", "why"),
    [
        (shaped(variants={"x": {}}), "has no properties; only the label 'null' may"),
        (shaped({"blas": {"static-properties": {}}}), "no feature; expected at least one"),
        (shaped({"blas": {"static-properties": {"level": []}}}), "feature 'level' has no values"),
        (shaped({"blas": {"requires": []}}), "no requirement; expected at least one"),
        (shaped({"blas": {"requires": ["a b c"]}}), "'a b c' is not a requirement"),
        (shaped({"blas": {"requires": ["a"], "plugin-api": "1 2"}}), "'1 2' is not an object reference"),
    ],
)
def test_what_the_peps_forbid_is_refused_where_uv_passes_over_it(
    values: dict[str, Any], why: str, tmp_path: Path
) -> None:
    lay_out(tmp_path / "wheels", values)
    assert chosen_by_uv(tmp_path / "wheels", tmp_path / "cache")
    with pytest.raises(VariantError, match=re.escape(why)):
        chosen_by_vbuild(tmp_path / "wheels", Machine.here())


PROJECT = """
[project]
name = "app"
version = "1"
requires-python = ">=3.11"
dependencies = ["demo"]
"""


@pytest.mark.nightly
def test_the_commands_of_uv_take_the_wheels_that_the_page_on_variants_says(tmp_path: Path) -> None:
    links, app, target = tmp_path / "links", tmp_path / "app", tmp_path / "target"
    variants = {f"v{level}": {"x86_64": {"level": [f"v{level}"]}} for level in (1, 2, 3)}
    write_release(links, {"x86_64": {"requires": ["x86-64-variant-provider"]}}, variants)
    app.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UV_")}
    environ = clean | {"UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}

    def uv(*command: str, expect: int = 0) -> str:
        shared = ("--preview-features", "wheel-variants", "--offline", "--no-config", "--find-links", str(links))
        words = 2 if command[0] == "pip" else 1
        command = (*command[:words], *shared, *command[words:])
        run = subprocess.run([UV, *command], cwd=app, env=environ, capture_output=True, text=True, check=False)
        assert run.returncode == expect, run.stderr
        return run.stdout + run.stderr

    def installed(folder: Path) -> str:
        """The label in the variant.json of demo in *folder*, or "plain"."""
        return next(
            (next(iter(json.loads(path.read_bytes())["variants"])) for path in folder.rglob("variant.json")), "plain"
        )

    here = Machine.here().cpu
    assert here
    uv("pip", "install", "--no-index", "--target", str(target), "demo")
    assert installed(target) == min(here.level, "v3")
    shutil.rmtree(target)
    uv("pip", "install", "--no-index", "--target", str(target), "--python-platform", "x86_64-manylinux_2_28", "demo")
    assert installed(target) == "v2"
    listing = "import importlib.metadata as m; print(m.distribution('demo').read_text('variant.json'))"
    assert f'"{min(here.level, "v3")}"' in uv(
        "run", "--no-index", "--no-project", "--with", "demo", "--", "python", "-c", listing
    )
    uv("lock", "--no-index")
    assert "demo-1.0-py3-none-any.whl" in (app / "uv.lock").read_text()
    assert "v3.whl" not in (app / "uv.lock").read_text()
    uv("sync", "--no-index")
    assert installed(app / ".venv") == "plain"
    refusal = uv("pip", "compile", "--no-index", "pyproject.toml", "-o", "pylock.toml", expect=2)
    assert "resolved to a wheel variant, which pylock.toml export does not support" in refusal
