"""Twice a tensor."""

import torch  # noqa: F401 - loads the libraries that _C needs

from twice._C import twice

__all__ = ["twice"]
