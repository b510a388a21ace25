"""Samples and their views: one file per kind of source, each a function that returns `Samples`."""

from __future__ import annotations

from collections.abc import Callable

# The functions bear the names of their files, so they are imported under others: `counterpoint.data.folder`
# stays the module.
from counterpoint.data.cameras import cameras as _cameras
from counterpoint.data.folder import folder as _folder
from counterpoint.data.parquet import parquet as _parquet
from counterpoint.data.samples import Labels, Samples
from counterpoint.data.shapes import shapes as _shapes
from counterpoint.data.streams import Stream, streamed_shards
from counterpoint.data.table import table as _table
from counterpoint.data.torchvision_sets import torchvision_set
from counterpoint.data.webdataset_shards import shards

SOURCES: dict[str, Callable[..., Samples]] = {
    "shapes": _shapes,
    "parquet": _parquet,
    "folder": _folder,
    "torchvision": torchvision_set,
    "table": _table,
    "shards": shards,
    "cameras": _cameras,
}

STREAMS: dict[str, Callable[..., Stream]] = {"streamed_shards": streamed_shards}
"""Sources without an index, which are trained on but not evaluated."""

__all__ = ["SOURCES", "STREAMS", "Labels", "Samples", "Stream"]
