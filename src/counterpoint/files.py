"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file under a temporary name, then rename it: a reader sees the old file or the new one.

    content: the bytes, or a function that writes them to the open file it is given.
    Raises OSError (a full or read-only disk) after the temporary file is removed; the old file stays.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_whole(path, b"old")
    >>> write_whole(path, lambda file: file.write(b"whole"))
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('whole', 1)
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
