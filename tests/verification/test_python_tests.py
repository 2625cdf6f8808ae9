"""Python code that loads a library: after a question about the CPU, or whatever the CPU is."""

from pathlib import PurePath

import pytest

from vbuild.verification.python_tests import is_asked_for, is_python_code, python_code

LOADER = """
def load_wide(name, cdecl=''):
    if not (have_avx2() and have_bmi2()):
        return None
    return load(name, cdecl)

class Loader:
    def load(self, name):
        if have_avx2():
            return load(name)

def load_any(name):
    print(have_avx2())
    return load(name)
"""


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("if have_avx2():\n    from demo import _wide", True),
        ("def get():\n    if not cpu_has('avx2'):\n        return None\n    return load('demo._wide')", True),
        ("lib = load_wide('demo._wide')", True),
        ("lib = tools.load_wide(name='demo._wide', cdecl='int f(void);')", True),
        ("lib = Loader().load('demo._wide')", True),
        ("lib = load('demo._wide')", False),
        (
            "def get():\n    if use_bmi2_adx():\n        return load('demo._wide')\n    return load('demo._narrow')",
            True,
        ),
        ("from demo import _wide", False),
        ("lib = load_any('demo._wide')", False),
        ("lib = load_wide('demo._other', 'demo._wide')", True),
        ("lib = load_unknown('demo._wide')", False),
        ("lib = load_wide('demo._wide')\nother = load('demo._wide')", False),
        ("if debug:\n    from demo import _wide", False),
        ("print('nothing of it')", False),
        ("if 'avx2' in have:\n    from demo import _wide\nknown = {'_wide': 'avx2' in have}", True),
        ("if name == '_wide':\n    print('that one')", False),
        ("def broken(:\n    '_wide'", False),
    ],
)
def test_a_library_is_asked_for_if_each_mention_is_behind_a_question(text: str, *, asked: bool) -> None:
    assert is_asked_for("_wide", [text, LOADER]) is asked


def test_functions_of_one_name_must_all_ask() -> None:
    other = "def load_wide(name):\n    return load(name)\n"
    assert is_asked_for("_wide", ["load_wide('demo._wide')", LOADER])
    assert not is_asked_for("_wide", ["load_wide('demo._wide')", LOADER, other])


CYTHON = """
# cython: language_level=3
cdef extern from "wide.h" nogil:
    int add(int *x, const int n)  # of _wide

cdef class Reader(Base):
    '''Reads by
    _wide, if there is AVX2.
    '''
    cdef int size

    def __cinit__(self, int size, *,
                  object name=None):
        if _AVX2_SUPPORT:
            %s
        elif size > <int> 3:
            self.size = <int> size
        else:
            with nogil:
                add(&self.size, 3)
"""


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("from ._wide import add", True),
        ("self.size = 1", False),
        ("from ._wide import add\n        load(<char *> 'demo._wide')", False),
        ("from ._wide import add\n\nfrom demo._wide cimport Adder", False),
        ("from ._wide import add\n\nif <int> avx2:\n    from demo import _wide", False),
    ],
)
def test_of_cython_what_is_also_python_counts(line: str, *, asked: bool) -> None:
    assert is_asked_for("_wide", [python_code(PurePath("demo/lib.pyx"), CYTHON % line)]) is asked


def test_tests_and_other_files_are_no_code_of_a_package() -> None:
    names = ("demo/a.py", "demo/a.pyx", "demo/tests/test_a.py", "demo/a.pxd", "demo/a.pyc")
    assert [name for name in names if is_python_code(PurePath(name))] == ["demo/a.py", "demo/a.pyx"]
