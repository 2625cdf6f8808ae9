"""Collatz sequences on a GPU."""

from collatz._core import archs, devices, selftest, total, total_on_host

__all__ = ["archs", "devices", "selftest", "total", "total_on_host"]
