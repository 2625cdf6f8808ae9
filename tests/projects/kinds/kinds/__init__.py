"""Modules of four kinds; `_rust`, where it is there, is a fifth."""

import importlib
from pathlib import Path

NAMES = ["_abi3", "_cython", "_pybind", "inner._phases"]
if any(Path(__file__).parent.glob("_rust*.so")):
    NAMES.append("_rust")


def modules():
    return [importlib.import_module(f"kinds.{name}") for name in NAMES]


def levels():
    """The level that each module was compiled for."""
    return [module.level() for module in modules()]


def check():
    """Whether each module computes as it should, twice in one process."""
    for _ in range(2):
        for module in modules():
            assert module.total(1000) == sum(range(1000)), module
            assert Path(module.__file__).is_relative_to(Path(__file__).parent), module
    return "ok"
