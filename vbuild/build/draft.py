"""Recipes that vbuild writes: what a survey of a project found, as keys with a comment each.

    ProjectSurvey, axes -> RecipeDraft -> keys that a recipe is read from, or the text of one

`vbuild init` writes the text; `vbuild matrix NAME` builds by the same keys.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from vbuild.build.own_library import LDFLAGS
from vbuild.build.plan import BuildBackend
from vbuild.build.survey import ProjectSurvey
from vbuild.config.toml_text import toml, toml_comment, toml_key
from vbuild.elf.catalogue import frameworks
from vbuild.hardware.driver import Dotted
from vbuild.toolchain.toolkit import releases

_WIDTH = 120
_CUDA_LIBRARIES = (
    *("cudart", "cublas*", "cufft*", "curand", "cusolver*", "cusparse*", "nvrtc*", "nvJitLink", "npp*", "nvjpeg"),
    *("cudnn*", "nccl"),
)


class DraftKey(Struct, frozen=True):
    """One key of a recipe: its *table*, "" for the top, and what the *comment* behind it says.

    One that *is_offered* stands there as a comment, for the reader to take.
    """

    table: str
    key: str
    value: Any
    comment: str = ""
    is_offered: bool = False

    def __str__(self) -> str:
        text = f"{toml_key(self.key)} = {toml(self.value)}"
        text = f"# {text}" if self.is_offered else text
        if not self.comment:
            return text
        comment = toml_comment(self.comment)
        line = f"{text}  {comment}"
        return line if len(line) <= _WIDTH else f"{comment}\n{text}"


class RecipeDraft(Struct, frozen=True):
    """The keys of a recipe, those of a table together."""

    keys: tuple[DraftKey, ...]

    def values(self) -> dict[str, Any]:
        """What a reader of recipes gets: tables of keys by their names, and the keys of the top."""
        found: dict[str, Any] = {}
        for each in self.keys:
            if not each.is_offered:
                (found.setdefault(each.table, {}) if each.table else found)[each.key] = each.value
        return found

    def text(self, prefix: str = "") -> str:
        """The same as TOML, each table with *prefix* in front of its name."""
        return "\n".join(self._lines(prefix)).lstrip("\n") + "\n"

    def _lines(self, prefix: str) -> Iterator[str]:
        table = ""
        for each in self.keys:
            if each.table != table:
                table = each.table
                yield f"\n[{prefix}{table}]"
            yield str(each)


def drafted(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> RecipeDraft:
    """The keys of a recipe along the axes of *matrix* for the project that *survey* describes, without its source."""
    parts = (_matrix, _build, _libraries_outside, _test)
    return RecipeDraft(tuple(key for part in parts for key in part(survey, matrix)))


def _matrix(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    for key, value in matrix.items():
        if key == "cuda":
            entries = [{**entry, **_libraries(survey, entry["toolkit"]), **_majors(survey, entry)} for entry in value]
            each = "each group, and a plain one for all" if "gpus" in value[0] else "each, and a plain one"
            yield DraftKey("matrix", key, entries, f"a wheel for {each}")
        else:
            yield DraftKey("matrix", key, value, "the plain wheel is built as well" if key == "cpu" else "")
    if "python" not in matrix:
        stated = f", and it wants {survey.requires_python}" if survey.requires_python else ""
        offered = ["3.12", "3.13", "3.14"]
        yield DraftKey("matrix", "python", offered, f"the Python that runs vbuild otherwise{stated}", is_offered=True)
    if survey.only_calls_cuda and "cuda" not in matrix:
        called = {"toolkit": "13.0", **_libraries(survey)}
        yield DraftKey("matrix", "cuda", [called], "it calls CUDA's libraries, and has no kernels", is_offered=True)
    if survey.has_cuda and "cuda" not in matrix:
        groups = {"sm80": "80,86,89", "sm90": "90", "sm100": "100", "sm120": "120+ptx"}
        own = f"; its own list: {', '.join(survey.archs)}" if survey.archs else ""
        entry = {"toolkit": "13.0", "gpus": groups, **_libraries(survey)}
        yield DraftKey("matrix", "cuda", [entry], f"it has CUDA code{own}", is_offered=True)


def _libraries(survey: ProjectSurvey, version: str = "13.0") -> dict[str, Any]:
    """The libraries of the toolkit *version* that the project takes: of CUDA 12 some are part of the runtime."""
    release = releases().get(Dotted.parse(version))
    found = [each for each in survey.libraries if release is None or release.projects(each)]
    return {"libraries": found} if found else {}


def _majors(survey: ProjectSurvey, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The variables that want the major version of CUDA, for an *entry* of ``matrix.cuda``."""
    major = str(entry["toolkit"]).partition(".")[0]
    return {"env": dict.fromkeys(survey.majors, major)} if survey.majors else {}


# which pybind11 takes for the project's own choice
_WITHOUT_LTO = (("CMAKE_INTERPROCEDURAL_OPTIMIZATION", "OFF"),)


def _build(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    switches = {name: value for name, value in survey.switches if "cuda" in matrix or not name.endswith("FORCE_CUDA")}
    has_gpus = "cuda" in matrix and "gpus" in matrix["cuda"][0]
    by_option, by_variable = _turned_on(survey, survey.options if has_gpus else ())
    switches |= by_variable
    made = survey.before if "cuda" in matrix else ""
    if made:
        yield DraftKey("build", "before-build", [made], "setup.py links the library, and nothing makes it")
    if made and not switches:
        yield DraftKey("build", "env", {"LDFLAGS": LDFLAGS}, "where that library is, and what it calls")
    if switches:
        switches |= {"LDFLAGS": LDFLAGS} if made else {}
        what = "or it takes a finished wheel from elsewhere, leaves CUDA out where there is no GPU, or compiles nothing"
        yield DraftKey("build", "env", switches, what)
    why = ["or it leaves CUDA out"] if by_option else []
    if survey.has_lto and has_gpus and survey.backend is BuildBackend.SCIKIT_BUILD_CORE:
        by_option |= _turned_on(survey, _WITHOUT_LTO)[0]
        why.append("link-time optimization, which pybind11 turns on, loses fatbins of separable compilation")
    if by_option:
        yield DraftKey("build", "config-settings", by_option, "; ".join(why))
    decisive = survey.decisive if survey.has_cuda and "cuda" in matrix else ()
    if requires := [*survey.imported, *decisive, *(line for line, _ in survey.added)]:
        said = (
            ["setup.py imports it, or a source includes it, and the project does not say so"] if survey.imported else []
        )
        said += ["its setup.py goes on without it, and leaves CUDA out"] if decisive else []
        yield DraftKey("build", "requires", requires, "; ".join([*said, *(reason for _, reason in survey.added)]))
    tried = [each for each in survey.tried if each not in decisive] if survey.has_cuda and "cuda" in matrix else []
    if offered := [*survey.unknown, *tried]:
        said = ["setup.py imports it; anyone can register a free name on the package index"] if survey.unknown else []
        said += ["its setup.py goes on without these, maybe without CUDA"] if tried else []
        yield DraftKey("build", "requires", [*requires, *offered], "; ".join(said), is_offered=True)
    if survey.native:
        kept = 'its -march=native is taken out; "keep" and "strip" are the other choices'
        yield DraftKey("build", "flags", "auto", kept, is_offered=True)
    if "cuda" in matrix and "gpus" in matrix["cuda"][0]:
        own = f", which is for {', '.join(survey.archs)}" if survey.archs else ""
        what = f"of a list of its own{own}, what is asked for takes the place"
        yield DraftKey("build", "cuda", {"archs": "complete"}, what)


def _turned_on(
    survey: ProjectSurvey, options: Iterable[tuple[str, str]]
) -> tuple[dict[str, str | list[str]], dict[str, str]]:
    """What turns *options* on: the settings of the backend, and the variables of others."""
    if survey.backend is BuildBackend.SCIKIT_BUILD_CORE:
        return {f"cmake.define.{name}": value for name, value in options}, {}
    if survey.backend is BuildBackend.MESON_PYTHON:
        words = [f"-D{name}={value}" for name, value in options]
        return ({"setup-args": words} if words else {}), {}
    # a setup.py that calls CMake takes its variable, if anything
    variables = {name: value for name, value in options if value != "ON"}
    words = [f"-D{name}=ON" for name, value in options if value == "ON"]
    return {}, {**variables, **({"CMAKE_ARGS": " ".join(words)} if words else {})}


def _libraries_outside(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    """What keeps libraries of the toolkit out of the wheel, unless a framework brings them: they take gigabytes."""
    if "cuda" in matrix and not {*survey.requires, *survey.imported}.intersection(frameworks()):
        patterns = [f"lib{name}.so.*" for name in _CUDA_LIBRARIES]
        yield DraftKey(
            "repair", "exclude", patterns, "NVIDIA's packages have them, which it requires where it uses them"
        )
        yield DraftKey("split", "rpath", value=True, comment="and finds there")
        yield DraftKey("split", "share", value=False)


def _test(survey: ProjectSurvey, matrix: Mapping[str, Any]) -> Iterator[DraftKey]:
    if survey.module:
        # a module of torch may need a GPU's driver to be imported, and brings gigabytes
        is_offered = "cuda" in matrix or "torch" in survey.requires
        command = shlex.join(["python", "-c", f"import {survey.module}"])
        yield DraftKey("test", "command", command, "runs with each wheel", is_offered)
