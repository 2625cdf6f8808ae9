"""Documents of other tools and earlier drafts: read as what they would be today, with notes, and written as today."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories.wheels import wheel
from vbuild.errors import VariantError
from vbuild.hardware.machine import Machine
from vbuild.publishing.check import check
from vbuild.variants.document import Document, Schema
from vbuild.variants.index import index
from vbuild.variants.model import VariantProvider
from vbuild.variants.select import select
from vbuild.verification.model import Severity
from vbuild.verification.verify import verify

SITE = "https://variants-schema.wheelnext.dev"
TODAY: dict[str, Any] = {
    "$schema": f"{SITE}/peps/850/v0.2.0.json",
    "default-priorities": {"namespace": ["gpu", "blas"]},
    "providers": {
        "gpu": {"requires": ["gpu-provider >=1"], "plugin-api": "gpu_provider:plugin"},
        "blas": {
            "static-properties": {"library": ["openblas", "mkl"], "threads": ["openmp", "pthreads"]},
            "feature-order": ["threads", "library"],
            "optional": True,
        },
    },
    "variants": {"fast": {"blas": {"library": ["mkl", "openblas"]}, "gpu": {"arch": ["sm_90"]}}},
}
# the same, as PEP 817 writes it
EARLIER: dict[str, Any] = {
    "$schema": f"{SITE}/v0.0.3.json",
    "default-priorities": {
        "namespace": ["gpu", "blas"],
        "feature": {"blas": ["threads", "library"], "gpu": ["arch"]},
        "property": {"blas": {"library": ["openblas"]}},
    },
    "providers": {
        "gpu": {
            "requires": ["gpu-provider >=1"],
            "plugin-api": "gpu_provider:plugin",
            "enable-if": "platform_machine == 'x86_64'",
        },
        "blas": {"requires": ["blas-provider"], "install-time": False, "optional": True},
    },
    "static-properties": {"blas": {"library": ["mkl", "openblas"], "threads": ["openmp", "pthreads"]}},
    "variants": {"fast": {"blas": {"library": ["openblas", "mkl"]}, "gpu": {"arch": ["sm_90"]}}},
    "x-made-by": "somebody",
}


def read(values: dict[str, Any]) -> Document:
    return Document.parse(json.dumps(values).encode())


def test_a_document_of_the_earlier_draft_is_what_it_would_be_today() -> None:
    found = read(EARLIER)
    assert json.loads(found.pack()) == TODAY
    assert found.notes == (
        f"$schema is {SITE}/v0.0.3.json, an earlier draft, read as 850/0.2.0",
        "providers.gpu.enable-if is left out, so its plugin may be asked on other machines",
        "the order of the properties of gpu is left out: its plugin says that",
    )


def test_a_plugin_of_the_earlier_draft_stays_one_although_static_properties_are_listed() -> None:
    found = read({**EARLIER, "providers": {**EARLIER["providers"], "blas": {"requires": ["blas-provider"]}}})
    assert found.metadata.provider("blas") == VariantProvider(requires=("blas-provider",))
    assert found.notes[-1] == "the order of the properties of blas is left out: its plugin says that"


def with_namespaces(*names: str, **more: Any) -> dict[str, Any]:
    """The document of the earlier draft with these namespaces, and *more* of its priorities."""
    return {**EARLIER, "default-priorities": {**EARLIER["default-priorities"], "namespace": list(names), **more}}


def test_each_namespace_of_the_earlier_draft_is_read_whatever_is_in_front_of_it() -> None:
    found = read(with_namespaces("blas", "gpu"))
    assert dict(found.metadata.providers) == dict(read(EARLIER).metadata.providers)
    with pytest.raises(
        VariantError, match=r"^providers of gpu, blas; expected those of default-priorities: mpi, gpu, "
    ):
        read(with_namespaces("mpi", "gpu", "blas"))


def test_an_order_of_a_plugins_values_alone_is_left_out_with_a_note() -> None:
    notes = read(with_namespaces("gpu", "blas", feature={}, property={"gpu": {"arch": ["sm_90"]}})).notes
    assert notes[-1] == "the order of the properties of gpu is left out: its plugin says that"


def test_a_document_that_only_bears_the_earlier_name_is_one_of_today() -> None:
    assert json.loads(read({**TODAY, "$schema": f"{SITE}/v0.0.3.json"}).pack()) == TODAY


@pytest.mark.parametrize("key", ["default-priorities", "providers", "static-properties", "variants"])
@pytest.mark.parametrize("value", [None, 1, "text", [], ["a"], {}, {"blas": 1}, {"blas": {"library": [1]}}])
def test_a_damaged_document_of_the_earlier_draft_is_refused_or_read(key: str, value: object) -> None:
    try:
        found = read({**EARLIER, key: value})
    except VariantError:
        return
    assert read(json.loads(found.pack())).pack() == found.pack()


@pytest.mark.parametrize("url", [f"{SITE}/v0.0.2.json", f"{SITE}/v0.3.0.json", "", None])
def test_a_schema_that_nobody_knows_is_refused(url: str | None) -> None:
    with pytest.raises(VariantError):
        read({**EARLIER, "$schema": url})


def test_index_verify_select_and_check_say_how_they_read_it(tmp_path: Path) -> None:
    static = {
        **EARLIER,
        "default-priorities": {"namespace": ["blas"]},
        "providers": {},
        "variants": {"mkl": {"blas": {"library": ["mkl"]}}},
    }
    plain = wheel(tmp_path, "demo-1.0-py3-none-any.whl", {"demo.py": ""})
    info = {"demo.py": "", "demo-1.0.dist-info/variant.json": json.dumps(static)}
    path = wheel(tmp_path, "demo-1.0-py3-none-any-mkl.whl", info)
    (made,) = index(tmp_path)
    note = f"$schema is {SITE}/v0.0.3.json, an earlier draft, read as 850/0.2.0"
    assert made.notes == (f"{path.name}: {note}",)
    assert made.data()["notes"] == [f"{path.name}: {note}"]
    assert json.loads(made.path.read_text())["$schema"] == Schema.PEP_850.value
    (finding,) = verify(path).findings
    assert (finding.severity, finding.what) == (Severity.NOTE, note)
    warned = [str(one) for one in check(tmp_path).problems if "variant.json" in one.what]
    assert len(warned) == 1
    assert f"variant.json: {note}; installers may not" in warned[0]
    machine = Machine.here()
    chosen = select("demo", [tmp_path], machine=machine)
    assert (chosen.wheel, chosen.notes) == (path, ())
    made.path.write_text(json.dumps(static))
    chosen = select("demo", [tmp_path], machine=machine)
    assert chosen.notes == (f"{made.path.name}: {note}",)
    assert plain.exists()
