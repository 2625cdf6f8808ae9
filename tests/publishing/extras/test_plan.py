"""Base and plugins as a plan: their names, what their METADATA say of each other, and labels that are no extras."""

from pathlib import Path

import pytest

from tests.factories.level_wheels import (
    BASE,
    INIT,
    MODULE,
    PLAIN,
    TAG,
    labelled_wheel,
    level_extension,
    level_files,
    level_release,
    level_wheel,
)
from tests.factories.tools import needs
from tests.factories.variants import metadata
from tests.factories.wheels import contents, wheel
from vbuild.errors import RepackageError
from vbuild.publishing.extras import Extras
from vbuild.publishing.model import NewWheel, PublishPlan
from vbuild.publishing.publish import publish
from vbuild.publishing.releases import releases_at

pytestmark = needs("gcc")

PLUGIN = f"levels_x86_64_v3_plugin-1.0-{TAG}.whl"
GPU = metadata("nvidia")
CU12, CU13 = (f"nvidia :: cuda_version_lower_bound :: {major}" for major in ("12", "13"))


def planned(folder: Path, url: str | None = None) -> PublishPlan:
    return Extras(url).planned(releases_at([folder]))


def refused(folder: Path) -> str:
    with pytest.raises(RepackageError) as refusal:
        planned(folder)
    return str(refusal.value)


def laid(folder: Path, out: Path) -> dict[str, dict[str, bytes]]:
    """The wheels of the layout by name, each with its members."""
    publish([folder], out, layouts=[Extras()])
    return {path.name: contents(path) for path in sorted((out / "extras").glob("*.whl"))}


def said(members: dict[str, bytes], file: str = "METADATA") -> list[str]:
    """The lines of the file of that name in the ``.dist-info`` folder."""
    [path] = [path for path in members if path.endswith(f".dist-info/{file}")]
    return members[path].decode().splitlines()


def code(value: str) -> dict[str, bytes | str]:
    return {"levels/__init__.py": INIT, "levels/_core.py": f"def level(): return {value!r}\n"}


def test_a_release_becomes_a_base_and_a_plugin_for_each_variant(tmp_path: Path) -> None:
    plan = planned(level_release(tmp_path))
    names = [str(output.target) for output in plan.outputs]
    assert names == [BASE, PLUGIN, PLUGIN.replace("v3", "v4"), "simple"]
    assert all(output.name.variant is None for output in plan.outputs if isinstance(output, NewWheel))


def test_the_base_has_the_loader_and_everything_else_as_it_was(tmp_path: Path) -> None:
    before = contents(level_release(tmp_path / "dist") / PLAIN)
    after = laid(tmp_path / "dist", tmp_path)[BASE]
    new = {path for path in after if after[path] != before.get(path)}
    changed = {"levels/__init__.py", *(f"levels-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD"))}
    assert new == {"levels/_vbuild_backend.py", *changed}
    assert before.keys() == after.keys() - {"levels/_vbuild_backend.py"}
    assert said(after, "WHEEL")[-1] == "Build: 1extras"
    assert said(after)[3:] == [
        "Requires-Dist: levels-x86-64-v4-plugin==1.0 ; extra == 'x86-64-v4'",
        "Requires-Dist: levels-x86-64-v3-plugin==1.0 ; extra == 'x86-64-v3'",
        "Provides-Extra: x86-64-v4",
        "Provides-Extra: x86-64-v3",
    ]


def test_a_plugin_has_what_differs_and_requires_its_base_exactly(tmp_path: Path) -> None:
    plugin = laid(level_release(tmp_path / "dist"), tmp_path)[PLUGIN]
    package, dist_info = "levels_x86_64_v3_plugin", "levels_x86_64_v3_plugin-1.0.dist-info"
    about = [f"{dist_info}/{name}" for name in ("WHEEL", "METADATA", "entry_points.txt", "RECORD")]
    assert list(plugin) == [f"{package}/__init__.py", f"{package}/{MODULE}", *about]
    assert plugin[f"{package}/{MODULE}"] == level_extension("v3")
    assert said(plugin) == [
        "Metadata-Version: 2.1",
        "Name: levels-x86-64-v3-plugin",
        "Version: 1.0",
        "Summary: Backend x86-64-v3 of levels",
        "Requires-Dist: levels==1.0",
        "Description-Content-Type: text/plain",
        "",
        "Not to be installed by hand: pip install 'levels[x86-64-v3]' brings it.",
    ]
    assert said(plugin, "entry_points.txt") == ["[levels.backends]", f"x86-64-v3 = {package}"]
    assert said(plugin, "WHEEL")[-1] == f"Tag: {TAG}"


def test_a_plugin_is_licensed_as_its_variant_and_requires_what_only_that_does(tmp_path: Path) -> None:
    licence = "License-Expression: MIT\nLicense-File: LICENSE\nRequires-Python: >=3.9\n"
    shared = "Requires-Dist: NumPy >=2\nProvides-Extra: dev\nRequires-Dist: levels[dev]; extra == 'dev'\n"
    level_wheel(tmp_path / "dist", "v1", code("cpu"), more=f"{licence}{shared}Requires-Dist: cpu-only\n")
    about = {"levels-1.0.dist-info/licenses/LICENSE": "text", "levels-1.0.dist-info/top_level.txt": ""}
    more = f"{licence}{shared.replace('NumPy >=2', 'numpy>=2')}Requires-Dist: nvidia-cublas==13.*\n"
    labelled_wheel(tmp_path / "dist", "cu13", [CU13], {**code("gpu"), **about}, more=more, metadata=GPU)
    wheels = laid(tmp_path / "dist", tmp_path)
    base, plugin = said(wheels[BASE]), wheels[f"levels_cu13_plugin-1.0-{TAG}.whl"]
    assert [line for line in base if line.startswith(("Requires-Dist", "Provides"))] == [
        "Requires-Dist: NumPy >=2",
        "Requires-Dist: levels[dev]; extra == 'dev'",
        "Requires-Dist: cpu-only",
        "Requires-Dist: levels-cu13-plugin==1.0 ; extra == 'cu13'",
        "Provides-Extra: dev",
        "Provides-Extra: cu13",
    ]
    assert said(plugin)[3:9] == [
        "License-Expression: MIT",
        "License-File: LICENSE",
        "Requires-Python: >=3.9",
        "Summary: Backend cu13 of levels",
        "Requires-Dist: levels==1.0",
        "Requires-Dist: nvidia-cublas==13.*",
    ]
    assert plugin["levels_cu13_plugin-1.0.dist-info/licenses/LICENSE"] == b"text"
    assert "levels_cu13_plugin-1.0.dist-info/top_level.txt" not in plugin


def test_the_same_wheels_give_the_same_bytes(tmp_path: Path) -> None:
    level_release(tmp_path / "one" / "dist")
    level_release(tmp_path / "two" / "dist", "v4", "v1", "v3")
    for place in ("one", "two"):
        publish([tmp_path / place / "dist"], tmp_path / place, layouts=[Extras()])
    paths = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("extras/**/*") if path.is_file()]
    assert len(paths) == 18
    assert all((tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in paths)


def test_of_equal_tags_the_base_comes_behind_the_plain_wheel(tmp_path: Path) -> None:
    level_release(tmp_path, "v1", "v3")
    built = tmp_path / PLAIN.replace("1.0-", "1.0-7b-")
    (tmp_path / PLAIN).rename(built)
    base = planned(tmp_path).outputs[0]
    assert isinstance(base, NewWheel)
    assert base.name.build == "7bextras"
    assert base.name.build_order > releases_at([built])[0].wheels[0].name.build_order


def test_releases_without_variants_and_companions_are_passed_on(tmp_path: Path) -> None:
    level_release(tmp_path / "dist", "v1", "v3")
    other = wheel(tmp_path / "dist", "other-2.0-py3-none-any.whl", {"other.py": ""})
    publish([tmp_path / "dist"], tmp_path, layouts=[Extras()])
    assert (tmp_path / "extras" / other.name).samefile(other)


def test_a_null_variant_is_the_base_where_there_is_no_plain_wheel(tmp_path: Path) -> None:
    level_wheel(tmp_path, "v3")
    null = labelled_wheel(tmp_path, "null", [], level_files("v1"))
    assert null.name == PLAIN.replace(".whl", "-null.whl")
    assert [str(output.target) for output in planned(tmp_path).outputs] == [BASE, PLUGIN, "simple"]
    null.unlink()
    assert refused(tmp_path) == (
        f"levels-1.0-{TAG}-x86_64_v3.whl: plain wheels for the same Python and machine: none; "
        "expected one, which a plugin is made for: build it, or give the others apart"
    )


def test_two_plain_wheels_for_one_machine_are_refused(tmp_path: Path) -> None:
    level_release(tmp_path, "v1", "v3")
    older = tmp_path / PLAIN.replace("2_17", "2_28")
    older.write_bytes((tmp_path / PLAIN).read_bytes())
    assert f"same Python and machine: {PLAIN}, {older.name}; expected one" in refused(tmp_path)


def test_a_plain_wheel_of_other_packages_has_the_extras_and_no_loader(tmp_path: Path) -> None:
    level_release(tmp_path / "dist", "v1", "v3")
    other = PLAIN.replace("x86_64", "aarch64")
    wheel(tmp_path / "dist", other, {"levels.py": "def level(): return 'slow'\n"}, metadata="Requires-Dist: a >> b\n")
    members = laid(tmp_path / "dist", tmp_path)[BASE.replace("x86_64", "aarch64")]
    assert "Provides-Extra: x86-64-v3" in said(members)
    assert [path for path in members if "dist-info" not in path] == ["levels.py"]


def test_what_base_and_variant_require_otherwise_without_contradiction_is_let_be(tmp_path: Path) -> None:
    odd = "Requires-Dist: odd >> 1\n"
    level_wheel(tmp_path / "dist", "v1", code("cpu"), more=f"Requires-Dist: libs>=1\nRequires-Dist: c==1\n{odd}")
    more = f"Requires-Dist: libs==2\nRequires-Dist: c>=1\n{odd}"
    labelled_wheel(tmp_path / "dist", "cu13", [CU13], code("gpu"), more=more, metadata=GPU)
    plugin = laid(tmp_path / "dist", tmp_path)[f"levels_cu13_plugin-1.0-{TAG}.whl"]
    assert [line for line in said(plugin) if "Requires" in line][1:] == [
        "Requires-Dist: libs==2",
        "Requires-Dist: c>=1",
    ]


def test_releases_without_any_variant_are_refused(tmp_path: Path) -> None:
    assert refused(level_release(tmp_path, "v1")).startswith("found levels 1.0, and no variant of it")


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (["plain"], "label 'plain': as an extra it is 'plain', as is the wheel without a backend; rename one"),
        (["cu_12", "cu.12"], "label 'cu_12': as an extra it is 'cu-12', as is the label 'cu.12'; rename one"),
        (["_cu12"], "label '_cu12': no name of an extra; expected it to begin and end with a-z, 0-9"),
    ],
    ids=["plain", "alike", "underscore"],
)
def test_labels_that_are_no_extras_are_refused(labels: list[str], why: str, tmp_path: Path) -> None:
    level_wheel(tmp_path, "v1", code("cpu"))
    for label, said in zip(labels, (CU12, CU13), strict=False):
        labelled_wheel(tmp_path, label, [said], code(label), metadata=GPU)
    assert refused(tmp_path) == why


@pytest.mark.parametrize(
    ("base", "variant", "why"),
    [
        (
            "Provides-Extra: CU_13\n",
            "Provides-Extra: CU_13\n",
            "has an extra cu-13 of its own; give that variant another label",
        ),
        (
            "Requires-Dist: libs==1\n",
            "Requires-Dist: libs==2\n",
            "requires libs==2, and the plain wheel libs==1; expected the same, for both are used",
        ),
        (
            "",
            "Requires-Dist: more; extra == 'x'\n",
            "requires more; extra == 'x', which the plain wheel does not; expected it without an extra",
        ),
    ],
    ids=["extra", "pin", "marker"],
)
def test_metadata_that_a_plugin_cannot_have_are_refused(base: str, variant: str, why: str, tmp_path: Path) -> None:
    level_wheel(tmp_path, "v1", code("cpu"), more=base)
    labelled_wheel(tmp_path, "cu_13", [CU13], code("gpu"), more=variant, metadata=GPU)
    assert refused(tmp_path).partition(".whl: ")[2] == why


def test_what_is_there_of_a_layout_before_is_refused(tmp_path: Path) -> None:
    level_wheel(tmp_path, "v1", {**code("cpu"), "levels/_vbuild_backend.py": ""})
    labelled_wheel(tmp_path, "cu13", [CU13], {**code("gpu"), "levels/_vbuild_backend.py": ""}, metadata=GPU)
    assert refused(tmp_path) == (
        f"{PLAIN}: levels/_vbuild_backend.py: is there already; give the wheels as they were built"
    )


def test_an_init_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    level_wheel(tmp_path, "v1", {**code("cpu"), "levels/__init__.py": "def ("})
    labelled_wheel(tmp_path, "cu13", [CU13], {**code("gpu"), "levels/__init__.py": "def ("}, metadata=GPU)
    assert refused(tmp_path).startswith(f"{PLAIN}: levels/__init__.py: cannot be parsed as Python")


def test_consumers_are_told_every_extra_and_how_to_see_what_is_used(tmp_path: Path) -> None:
    plan = planned(level_release(tmp_path), "https://example.org/extras/")
    texts = [use.text for use in plan.uses]
    ask = "python -c 'from levels import _vbuild_backend; print(_vbuild_backend.backend())'"
    assert texts[0].splitlines() == [
        "pip install --extra-index-url https://example.org/extras/simple 'levels[x86-64-v4]==1.0'",
        "uv pip install --index https://example.org/extras/simple 'levels[x86-64-v4]==1.0'",
    ]
    assert texts[-2:] == [ask, f"LEVELS_BACKEND=plain {ask}"]
    assert plan.notes[0].startswith("Extras of levels: x86-64-v4, x86-64-v3; pip and uv only warn")
    plugins = "levels-x86-64-v4-plugin, levels-x86-64-v3-plugin"
    assert f"names on an index that has none: register {plugins} there first." in plan.notes[2]
    assert plan.notes[3].startswith("If several backends are installed")


def test_of_several_versions_consumers_are_told_of_the_latest(tmp_path: Path) -> None:
    for version in ("1.9", "1.10"):
        level_release(tmp_path, "v1", "v3", version=version)
    plan = planned(tmp_path)
    assert "levels[x86-64-v3]==1.10" in plan.uses[0].text
    assert not [use for use in plan.uses if "1.9" in use.text]
    assert (len(plan.outputs), len(plan.notes)) == (5, 3)


def test_of_one_backend_nobody_is_told_how_it_is_chosen_among_several(tmp_path: Path) -> None:
    assert len(planned(level_release(tmp_path, "v1", "v3")).notes) == 3
