"""Checkpoints: written whole, read newest first, a broken one skipped aloud.

One file holds a state: a dict of tensors, plain values, and dicts, lists and tuples of these. The tensors are
stored as safetensors, named by their place ("encoder/head.0.weight"); all else is JSON in the header, beside
the SHA-256 of the whole file. Any reader of safetensors opens it, and opening it cannot run code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from counterpoint.files import write_whole

SUFFIX = ".safetensors"
_NAME = re.compile(r"step-(\d{8})\.safetensors")
_FORMAT = "1"
_NO_DIGEST = b"0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
# What stands in the JSON for what JSON lacks.
_TENSOR, _TUPLE, _NUMBERED = "<tensor>", "<tuple>", "<numbered>"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob(f"step-*{SUFFIX}") if _NAME.fullmatch(path.name))


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the state after `step` steps and remove all but the newest `keep` up to it.

    Later ones were passed over as broken when the run was resumed: they do not push this one out.

    Raises OSError where the disk is full or read-only; the checkpoints already there stay. Raises ValueError
    for a value in the state that is none of those that can be stored.
    """
    path = folder / f"step-{step:08d}{SUFFIX}"
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_part(state, "", tensors), separators=(",", ":"))
    header = {"counterpoint": _FORMAT, "sha256": _NO_DIGEST.decode(), "state": plain}
    content = memoryview(save(tensors, header))
    start, end = _place_of_digest(content)
    # The digest is taken with zeros in its own place.
    digest = hashlib.sha256(content).hexdigest().encode()
    write_whole(path, lambda file: [file.write(part) for part in (content[:start], digest, content[end:])])
    for left in folder.glob(f".step-*{SUFFIX}.part"):  # by a process that was killed while it wrote
        left.unlink(missing_ok=True)
    for old in [other for other in checkpoints(folder) if other <= path][:-keep]:
        old.unlink()
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint; ValueError where the file is not a whole one. Loading runs no code."""
    stored = path.read_bytes()
    content = memoryview(stored)
    try:
        start, end = _place_of_digest(content)
        digest = hashlib.sha256(content[:start])
        digest.update(_NO_DIGEST)
        digest.update(content[end:])
        if digest.hexdigest().encode() != content[start:end]:
            raise ValueError("its SHA-256 is not the one it was written with")
        length = int.from_bytes(content[:8], "little")
        header = json.loads(bytes(content[8 : 8 + length]))["__metadata__"]
        plain, tensors = json.loads(header["state"]), load(stored)
    except (ValueError, LookupError, TypeError, SafetensorError) as error:
        raise ValueError(
            f"checkpoint {path} is truncated or damaged ({len(content)} bytes): {error}"
        ) from None
    if header.get("counterpoint") != _FORMAT:
        raise ValueError(f"checkpoint {path} has format {header.get('counterpoint')}, this reads {_FORMAT}")
    state: dict[str, Any] = _whole(plain, tensors)
    return state


def newest_step(folder: Path, at_most: int) -> int:
    """The step of the newest checkpoint up to that step, whole or not; 0 where there is none."""
    steps = [int(path.stem.removeprefix("step-")) for path in checkpoints(folder)]
    return max((step for step in steps if step <= at_most), default=0)


def newest_checkpoint(folder: Path, say: Callable[[str], None]) -> dict[str, Any] | None:
    """The newest whole checkpoint, or None; `say` is told of each broken one that is passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            return load_checkpoint(path)
        except ValueError as error:
            say(f"{error}: skipped, taking the one before it")
    return None


def _place_of_digest(content: memoryview) -> tuple[int, int]:
    """Where the digest stands in the header; ValueError where there is none."""
    header = bytes(content[8 : 8 + int.from_bytes(content[:8], "little")])
    # In the JSON of the state, itself a text of the header, every quotation mark is escaped.
    found = _DIGEST.search(header)
    if found is None:
        raise ValueError("it has no SHA-256")
    return 8 + found.start(1), 8 + found.end(1)


def _part(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """A part of a state as JSON has it; its tensors are put into `tensors`, under their places."""
    if isinstance(value, Tensor):
        if place in tensors:
            raise ValueError(f"two tensors of the state have the place {place!r}")
        # A copy, since safetensors refuses two tensors in one memory, as tied weights are.
        tensors[place] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: place}
    if isinstance(value, dict):
        parts = {key: _part(v, f"{place}/{key}" if place else str(key), tensors) for key, v in value.items()}
        if all(type(key) is str and key not in (_TENSOR, _TUPLE, _NUMBERED) for key in parts):
            return parts
        if all(type(key) is int for key in parts):
            return {_NUMBERED: [[key, part] for key, part in parts.items()]}
    if isinstance(value, list | tuple):
        listed = [_part(v, f"{place}/{i}" if place else str(i), tensors) for i, v in enumerate(value)]
        return listed if isinstance(value, list) else {_TUPLE: listed}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(f"a checkpoint cannot hold the {type(value).__name__} at {place!r} of the state")


def _whole(part: Any, tensors: dict[str, Tensor]) -> Any:
    """The part of a state that `_part` wrote so."""
    if isinstance(part, list):
        return [_whole(v, tensors) for v in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {_TENSOR}:
        return tensors[part[_TENSOR]]
    if part.keys() == {_TUPLE}:
        return tuple(_whole(v, tensors) for v in part[_TUPLE])
    if part.keys() == {_NUMBERED}:
        return {key: _whole(v, tensors) for key, v in part[_NUMBERED]}
    return {key: _whole(v, tensors) for key, v in part.items()}
