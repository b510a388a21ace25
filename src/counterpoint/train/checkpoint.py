"""Checkpoints: written whole, read newest first, a broken one skipped aloud."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from counterpoint.files import write_whole

_NAME = re.compile(r"step-(\d{8})\.pt")
_DIGEST_BYTES = 32


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name))


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the state after `step` steps and remove all but the newest `keep`.

    The file ends with the SHA-256 of what stands before it, so a cut or flipped byte is noticed.
    Raises OSError where the disk is full or read-only; the checkpoints already there stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path = folder / f"step-{step:08d}.pt"
    write_whole(path, content + hashlib.sha256(content).digest())
    for old in checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint; ValueError where the file is not whole. Loading runs no code."""
    content = path.read_bytes()
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError(f"checkpoint {path} is truncated or damaged ({len(content)} bytes)")
    state: dict[str, Any] = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    return state


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest whole checkpoint, or None; `say` is told of each broken one that is passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path)
        except ValueError as error:
            say(f"{error}: skipped, taking the one before it")
    return None
