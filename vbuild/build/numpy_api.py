"""Which numpy compiles sources: names went from its headers, and what uses one needs an older release.

The names are what the headers of numpy 1.26.4 and 2.2.6 have, and those of 2.0.2 and 2.3.0 do not.
https://numpy.org/doc/stable/numpy_2_0_migration_guide.html#c-api-changes
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from vbuild.config.requirements import read_requirement


class NumpyBound(Struct, frozen=True):
    """A requirement *line* for the build, the *name* that went, and in which release."""

    line: str
    name: str
    since: str

    @property
    def why(self) -> str:
        """What to know of the requirement."""
        only = ", and its wheel runs with numpy 1 alone" if self.line == _ONE else ""
        return f"numpy {self.since} removed {self.name}, which a source has{only}"

    def is_admitted_by(self, lines: Iterable[str]) -> bool:
        """Whether the build requirements *lines* admit such a numpy: a project that wants a newer one knows of it."""
        found = filter(None, map(read_requirement, lines))
        return all(one.name.lower() != "numpy" or one.specifier.contains(_NEWEST[self.line]) for one in found)


_ONE = "numpy<2"
_NEWEST = {_ONE: "1.26.4", "numpy<2.3": "2.2.6"}
_FUNCTIONS = (
    r"As[12]D|CastTo|CastAnyTo|CopyAndTranspose|FieldNames|FillObjectArray|FromDims(?:AndData(?:AndDescr)?)?"
    r"|GetArrayParamsFromObject|GetCastFunc|[GS]etNumericOps|MapIter(?:Array(?:CopyIfOverlap)?|Next|SwapAxes)"
    r"|MoveInto|TypestrConvert|TypeNumFromName"
)
_FLAGS = (
    r"(?:IN|OUT|INOUT)_F?ARRAY|[CF]_CONTIGUOUS|CONTIGUOUS|FORTRAN|[CF]ARRAY(?:_RO)?|ALIGNED|WRITEABLE|OWNDATA"
    r"|FORCECAST|ENSURECOPY|ENSUREARRAY|NOTSWAPPED|ELEMENTSTRIDES|BEHAVED(?:_NS)?|DEFAULT|UPDATE_ALL"
)
# oldest first
_REMOVED = (
    (_ONE, "2", re.compile(rf"\bPyArray_(?:{_FUNCTIONS})\b|\bNPY_MAX_ELSIZE\b")),
    ("numpy<2.3", "2.3", re.compile(rf"\bNPY_(?:{_FLAGS})\b")),
)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
# what sources ask that compile with several releases
_ASKS = re.compile(r"\bNPY_(?:API|FEATURE|ABI|TARGET)_VERSION\b|\bNPY_2_\d+_API_VERSION\b|\bnpy_2_compat\.h\b")
# what Cython writes by the .pxd of an older numpy: it asks for versions, and looks into what numpy 2 hides all the same
_LOOKS_INSIDE = re.compile(r"\b__pyx_v_d->subarray->shape\b")
_LACKS = re.compile(r"undefined|undeclared|not declared")
_HIDDEN = re.compile(r"_PyArray_Descr\b[^\n]* no member named \W(?P<name>\w+)")


def numpy_bound(text: str) -> NumpyBound | None:
    """The oldest bound that the C or C++ in *text* needs; None if it uses no such name, or asks which numpy it is."""
    if "numpy" not in text:
        return None
    if _LOOKS_INSIDE.search(text):
        return NumpyBound(_ONE, "PyArray_Descr.subarray", "2")
    if _ASKS.search(text):
        return None
    code = _COMMENT.sub("", text)
    for line, since, names in _REMOVED:
        for found in dict.fromkeys(match[0] for match in names.finditer(code)):
            if not re.search(
                rf"#\s*(?:define|ifn?def)\s+{re.escape(found)}\b|defined\s*\(?\s*{re.escape(found)}\b", code
            ):
                return NumpyBound(line, found, since)
    return None


def oldest(bounds: Iterable[NumpyBound]) -> NumpyBound | None:
    """The one of *bounds* that holds for all."""
    order = [line for line, _, _ in _REMOVED]
    return min(bounds, key=lambda one: (order.index(one.line), one.name), default=None)


def older_numpy(text: str) -> str | None:
    """What to do about a compiler's *text* of errors, if these are about names that numpy no longer has; or None."""
    lacking = "\n".join(line for line in text.splitlines() if _LACKS.search(line))
    for line, since, names in _REMOVED:
        name = match[0] if (match := names.search(lacking)) else ""
        if not name and line == _ONE and (hidden := _HIDDEN.search(text)):
            name = f"PyArray_Descr.{hidden['name']}"
        if name:
            only = ", whose wheel runs with numpy 1 alone" if line == _ONE else " takes an older one"
            return f"numpy {since} removed {name}: build.requires = [{line!r}]{only}"
    return None
