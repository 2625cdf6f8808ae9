"""Sums on a GPU."""

from tally._core import archs, devices, host_norm, selftest, total

__all__ = ["archs", "devices", "host_norm", "selftest", "total"]
