"""Where tests find real data sets: `COUNTERPOINT_DATA`, or ../shared/data beside the checkout."""

import os
from pathlib import Path

import pytest


def real_data(name: str) -> Path:
    """The folder of that data set; skips the test by name where it is absent."""
    root = Path(os.environ.get("COUNTERPOINT_DATA", Path(__file__).parents[2] / "shared" / "data"))
    folder = root / name
    if not folder.is_dir():
        pytest.skip(f"data set {name!r} is not under {root}")
    return folder
