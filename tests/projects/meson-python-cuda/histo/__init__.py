"""Histograms on a GPU."""

from histo._core import archs, devices, histogram, histogram_on_host, selftest

__all__ = ["archs", "devices", "histogram", "histogram_on_host", "selftest"]
