"""Four kinds of extension module, each of which says the level that it was compiled for."""

from pybind11.setup_helpers import Pybind11Extension
from setuptools import Extension, setup

setup(
    packages=["kinds", "kinds.inner"],
    ext_modules=[
        Extension("kinds._abi3", ["kinds/_abi3.c"], py_limited_api=True),
        Extension("kinds.inner._phases", ["kinds/inner/_phases.c"]),
        Extension("kinds._cython", ["kinds/_cython.pyx"]),
        Pybind11Extension("kinds._pybind", ["kinds/_pybind.cpp"], cxx_std=17),
    ],
)
