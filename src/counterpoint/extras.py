"""Libraries that only some users need, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import a module of an extra, or say how to install it.

    Raises ImportError that names the extra.

    >>> need("math", extra="text").sqrt(4.0)
    2.0
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module.split('.')[0]} is not installed; it comes with: pip install 'counterpoint[{extra}]'"
        ) from error
