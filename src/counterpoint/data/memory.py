"""Small pictures of one size, decoded once and kept in memory."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from counterpoint.data.faults import OnError, check_on_error
from counterpoint.data.samples import Samples

PEEK = 16  # pictures looked at before the decision to decode all
BLOCK = 128  # pictures per task of the thread pool


def tensor_picture(tensor: Tensor, i: int) -> Image.Image:
    """Row i of a picture tensor `(n, 3, h, w)` uint8 as an RGB picture."""
    return Image.fromarray(tensor[i].permute(1, 2, 0).contiguous().numpy())


def in_memory(
    samples: Samples, largest: int = 64, on_error: OnError = "stop", threads: int | None = None
) -> tuple[Samples, list[str]]:
    """The samples with `tensor` filled, and the keys of the pictures that were left out.

    This happens where all pictures have one size with sides of at most `largest` pixels; 3hw bytes are kept
    per sample. Otherwise the samples come back unchanged: that is decided from a few pictures, or at the
    first one of another size.

    on_error: 'stop' raises the ValueError that names the first bad picture; 'skip' leaves bad ones out.
    threads: decoding threads; one per CPU, up to 8, if not given.

    >>> from counterpoint.data.samples import Samples
    >>> reds = Samples("reds", ["a", "b"], lambda i: Image.new("RGB", (4, 2), (200 + i, 0, 0)))
    >>> kept, left_out = in_memory(reds)
    >>> kept.tensor.shape, kept.tensor[:, 0, 0, 0].tolist(), left_out
    (torch.Size([2, 3, 2, 4]), [200, 201], [])
    """
    check_on_error(on_error)
    if samples.tensor is not None or len(samples) == 0:
        return samples, []
    size = _common_size(samples, on_error)
    if size is None or max(size) > largest:
        return samples, []
    store = np.empty((len(samples), 3, size[1], size[0]), dtype=np.uint8)

    def fill(start: int) -> list[int] | None:
        """Decode one block; the bad indices of it, or None where a picture has another size."""
        bad = []
        for i in range(start, min(start + BLOCK, len(samples))):
            try:
                picture = samples.picture(i)
            except ValueError:
                if on_error == "stop":
                    raise
                bad.append(i)
                continue
            if picture.size != size:
                return None
            store[i] = np.asarray(picture).transpose(2, 0, 1)
        return bad

    bad: list[int] = []
    with ThreadPoolExecutor(threads or _default_threads()) as pool:
        # map yields in order, so that 'stop' names the same picture in every run
        for found in pool.map(fill, range(0, len(samples), BLOCK)):
            if found is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return samples, []
            bad += found
    return _kept(samples, torch.from_numpy(store), bad), [samples.keys[i] for i in bad]


def _kept(samples: Samples, tensor: Tensor, bad: list[int]) -> Samples:
    if bad:
        good = torch.ones(len(samples), dtype=torch.bool)
        good[bad] = False
        indices = good.nonzero().flatten()
        samples, tensor = samples.subset(indices), tensor[indices]
    return replace(samples, tensor=tensor, picture=partial(tensor_picture, tensor))


def _common_size(samples: Samples, on_error: OnError) -> tuple[int, int] | None:
    """The one (width, height) of a few pictures spread over the samples, or None where they differ."""
    stride = max(1, len(samples) // PEEK)
    spread = [*range(0, len(samples), stride)]
    sizes: set[tuple[int, int]] = set()
    looked_at = 0
    # after the spread ones come all others: only a data set that begins with bad pictures gets so far
    for i in [*spread, *(i for i in range(len(samples)) if i % stride)]:
        try:
            sizes.add(samples.picture(i).size)
        except ValueError:
            if on_error == "stop":
                raise
            continue
        looked_at += 1
        if looked_at == PEEK or len(sizes) > 1:
            break
    if not sizes:
        raise ValueError(f"data {samples.name!r}: none of the {len(samples)} pictures can be read")
    return sizes.pop() if len(sizes) == 1 else None


def _default_threads() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, usable)
