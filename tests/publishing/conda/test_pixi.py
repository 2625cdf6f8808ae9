"""What pixi.toml says of machines."""

import tomllib

from vbuild.publishing.conda.package import CondaRecord
from vbuild.publishing.conda.plan import platforms

ASKED = {"demo": "1.0"}
CHANNELS = ("https://example.org/conda", "conda-forge")


def record(label: str | None, number: int, *depends: str, subdir: str = "linux-64") -> CondaRecord:
    return CondaRecord("demo", "1.0", f"py311_{label}_{number}", number, subdir, depends, label=label)


RECORDS = (
    record(None, 0, "python >=3.11", "__glibc >=2.17"),
    record(None, 0, "python >=3.12", "__glibc >=2.28"),
    record("x86_64_v3", 300, "__glibc >=2.28", "_x86_64-microarch-level >=3"),
    record("gpu.1", 500, "__glibc >=2.28", "__cuda >=12.6,<13", "__cuda_arch >=8.0,<9,!=8.7|>=9.0"),
    record("any", 50, "__cuda >=11.0", subdir="noarch"),
)


def test_each_kind_of_machine_is_a_platform_and_the_best_first() -> None:
    manifest = tomllib.loads(platforms(RECORDS, ASKED, channels=CHANNELS))
    assert manifest["workspace"]["channels"] == [*CHANNELS]
    assert manifest["dependencies"] == {"demo": "==1.0"}
    here = {"platform": "linux-64", "glibc": "2.28"}
    assert manifest["workspace"]["platforms"] == [
        {"name": "linux-64-gpu-1-9-0", "cuda": {"driver": "12.6", "arch": "9.0"}, **here},
        {"name": "linux-64-gpu-1-8-0", "cuda": {"driver": "12.6", "arch": "8.0"}, **here},
        {"name": "linux-64-x86-64-v3", "archspec": "x86_64_v3", **here},
        {"name": "linux-64-any", "platform": "linux-64", "cuda": "11.0"},
        {"name": "linux-64-plain", **here},
    ]
