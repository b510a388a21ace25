"""How the readers speak of what is wrong with data."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

OnError = Literal["stop", "skip"]


def check_on_error(on_error: str) -> None:
    """ValueError unless `on_error` is 'stop' or 'skip'."""
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error={on_error!r} is not allowed: use 'stop' or 'skip'")


def settle(faults: Sequence[str], total: int, where: str, on_error: OnError) -> None:
    """Stop at faulty samples, or say how many are left out.

    faults: one sentence per faulty sample, of `total` samples in `where`.
    Raises ValueError with the first fault and their number; with 'skip' the same text is a warning,
    and a ValueError only where no sample is left.
    """
    if not faults:
        return
    found = f"{where}: {len(faults)} of {total} samples cannot be used; the first: {faults[0]}"
    if on_error == "stop":
        raise ValueError(f"{found} (on_error='skip' leaves such samples out)")
    if len(faults) == total:
        raise ValueError(f"{found}; none is left")
    warnings.warn(f"{found}; they are left out", stacklevel=3)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8, as every tokenizer needs it.

    JSON can hold the half of an emoji, where something cut a text by its 16-bit units.

    >>> is_unicode("a dog \\U0001f415"), is_unicode("a dog \\ud83d")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_path(path: str | Path) -> Path:
    """That path, `~` written out; ValueError for what is no path.

    >>> checked_path("a/b").as_posix()
    'a/b'
    """
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"path must be the path of a file or a folder, got {path!r}")
    return Path(path).expanduser()


def existing_folder(path: str | Path) -> Path:
    """That folder; ValueError where it does not exist or is a file."""
    folder = checked_path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is {'a file, not a folder' if folder.exists() else 'not there'}")
    return folder


def existing_file(path: str | Path) -> Path:
    """That file; ValueError where it does not exist or is a folder."""
    file = checked_path(path)
    if not file.is_file():
        raise ValueError(f"{file} is {'a folder, not a file' if file.exists() else 'not there'}")
    return file
