# SPDX-License-Identifier: Apache-2.0
"""Loads nvidia-ml-py, and refuses what only looks like it."""

from __future__ import annotations

import importlib
from types import ModuleType

_REMEDY = "install nvidia-ml-py (pip uninstall pynvml; pip install nvidia-ml-py)"
_NEEDED = ("NVMLError", "nvmlInit", "nvmlShutdown", "nvmlDeviceGetUtilizationRates")


class UnusableBindingsError(Exception):
    """No module ``pynvml`` that this program can work with; the text says what to do."""


def load() -> ModuleType:
    """The module ``pynvml`` of the package nvidia-ml-py.

    The package called *pynvml* on PyPI is a deprecated fork with the same module name, which
    shadows the real one where both are installed (mlco2/codecarbon#933): it is a folder, the real
    one a file.
    """
    try:
        module = importlib.import_module("pynvml")
    except ImportError as error:
        raise UnusableBindingsError(f"can't import pynvml ({error}): {_REMEDY}") from error
    where = getattr(module, "__file__", None) or "an unknown place"
    if hasattr(module, "__path__"):
        raise UnusableBindingsError(
            f"the module pynvml in {where} is the deprecated PyPI package 'pynvml', "
            f"not NVIDIA's nvidia-ml-py: {_REMEDY}"
        )
    missing = [name for name in _NEEDED if not hasattr(module, name)]
    if missing:
        raise UnusableBindingsError(
            f"the module pynvml in {where} lacks {', '.join(missing)}: {_REMEDY}"
        )
    return module
