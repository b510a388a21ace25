"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: the file is the old one or the whole new one.

    Raises OSError (a full or read-only disk) after the temporary file is removed.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
