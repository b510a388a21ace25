"""Build a store: every distinct text of a data set encoded once, or vectors of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.faults import is_unicode
from counterpoint.similarity.checks import check_count
from counterpoint.similarity.store import OWN_VECTORS, EmbeddingStore, Plan
from counterpoint.similarity.store_encode import SentenceEncoder, TextEncoder, encode_rows
from counterpoint.similarity.store_files import keys_digest, text_hashes, texts_digest
from counterpoint.similarity.store_write import Contents, Progress, write_contents

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHUNK_ROWS = 4096


def build_store(
    path: str | Path,
    keys: Sequence[str],
    texts: Sequence[str],
    *,
    encoder: str | TextEncoder = "minilm",
    templates: Sequence[str] = ("{}",),
    data: str = "texts",
    text: str = "caption",
    batch_size: int | None = None,
    device: str | None = None,
    chunk_rows: int = CHUNK_ROWS,
    overwrite: bool = False,
    fabric: Fabric | None = None,
    progress: Progress | None = None,
) -> EmbeddingStore:
    """Encode one text per sample into a store, and open it.

    Each distinct text is encoded once, the longest first. A build that was interrupted goes on when the same
    call is made again, and gives the same bytes; where the store is complete nothing is done.

    path: the folder of the store. keys, texts: one per sample; the keys are distinct.
    encoder: a name, as in `encode_texts`, or a `TextEncoder`. templates: sentences with `{}` where the text
        goes; with several their unit vectors are averaged.
    data, text: what the store says of its samples and of their texts.
    batch_size, device: of an encoder given by name. chunk_rows: texts between two points to go on from.
    fabric: a launched Fabric, whose processes share the chunks through a folder that all of them see.
    progress: called by the first process with the number of texts that are done, and of all.

    Raises ValueError for texts or keys that are empty, too few or repeated, for a folder that holds something
    else (saying in what it differs) unless `overwrite`, and for a vector that is not finite.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp() + "/store"
    >>> store = build_store(folder, ["1", "2", "3"], ["a dog", "a bus", "a dog"])
    >>> store, store.graph().batch(torch.tensor([0, 2])).tolist()
    (EmbeddingStore('texts', 3 samples, 2 texts, minilm), [[1.0, 1.0], [1.0, 1.0]])
    """
    _check_texts(keys, texts)
    check_count(chunk_rows, "chunk_rows")
    templates = (templates,) if isinstance(templates, str) else tuple(templates)
    for template in templates:
        if not isinstance(template, str) or "{}" not in template:
            raise ValueError(f"template must have {{}} where the text goes, got {template!r}")
    if len(set(templates)) < len(templates) or not templates:
        raise ValueError(f"templates must be different sentences, at least one, got {templates!r}")
    known = SentenceEncoder(encoder, batch_size, device) if isinstance(encoder, str) else encoder
    if not all(isinstance(getattr(known, what, None), str) for what in ("name", "revision")):
        raise ValueError(f"encoder must be a name, or a function with a name and a revision, got {encoder!r}")
    # The longest first, so that batches pad little and one too large for the memory fails at once.
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    place = {text: row for row, text in enumerate(distinct)}
    index = np.fromiter((place[text] for text in texts), np.int64, len(texts))
    hashes = text_hashes(distinct)
    plan = Plan(
        data=data,
        text=text,
        samples=len(keys),
        distinct=len(distinct),
        encoder=known.name,
        revision=known.revision,
        templates=templates,
        chunk_rows=chunk_rows,
        keys_sha256=keys_digest(keys),
        texts_sha256=texts_digest(hashes, index),
    )
    contents = Contents(
        plan, keys, index, hashes, lambda start, stop: encode_rows(known, distinct[start:stop], templates)
    )
    return write_contents(Path(path).expanduser(), contents, overwrite, fabric, progress)


def write_store(
    path: str | Path,
    vectors: Tensor | Callable[[int, int], Tensor],
    keys: Sequence[str],
    *,
    name: str,
    chunk_rows: int = CHUNK_ROWS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EmbeddingStore:
    """Write vectors of your own, one per key, as a store: from any model, of any length above 0.

    vectors: `(n, d)`, or a function of start and stop that gives these rows, for more than memory holds.
    name: what they are called.

    A complete store that is there must have these vectors, which are compared with it. One that was
    interrupted is written from the start.

    Raises ValueError as `build_store` does.

    >>> import tempfile
    >>> store = write_store(tempfile.mkdtemp() + "/store", torch.tensor([[2.0, 0.0], [3.0, 4.0]]), ["a", "b"],
    ...                     name="poses")
    >>> round(float(store.graph().batch(torch.tensor([0, 1]))[0, 1]), 3)
    0.6
    """
    check_count(chunk_rows, "chunk_rows")
    if isinstance(keys, str) or not len(keys):
        raise ValueError(f"keys must be a list of texts, one for each vector, got {keys!r}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"name must be a text, what the vectors are called, got {name!r}")
    if isinstance(vectors, Tensor):
        if vectors.ndim != 2 or len(vectors) != len(keys):
            raise ValueError(f"vectors has shape {tuple(vectors.shape)} for {len(keys)} keys")
        given = vectors
        vectors = lambda start, stop: given[start:stop]  # noqa: E731
    if not callable(vectors):
        raise ValueError(f"vectors must be a tensor or a function, got {type(vectors).__name__}")
    read = vectors
    index, hashes = np.arange(len(keys)), text_hashes(keys)
    plan = Plan(
        data=name,
        text=OWN_VECTORS,
        samples=len(keys),
        distinct=len(keys),
        encoder=OWN_VECTORS,
        revision="",
        templates=("{}",),
        chunk_rows=chunk_rows,
        keys_sha256=keys_digest(keys),
        texts_sha256=texts_digest(hashes, index),
    )

    def unit(start: int, stop: int) -> NDArray[np.float16]:
        part = read(start, stop)
        if (
            not isinstance(part, Tensor)
            or part.is_complex()
            or part.ndim != 2
            or len(part) != stop - start
            or not part.shape[1]
        ):
            got = f"{part.dtype} of shape {tuple(part.shape)}" if isinstance(part, Tensor) else repr(part)
            raise ValueError(
                f"vectors {start} to {stop - 1} must be real of shape ({stop - start}, d), got {got}"
            )
        z = part.detach().to("cpu", torch.float64, copy=True)
        # Divided by its largest entry first: the square of 1e200 is not finite, and that of 1e-200 is 0.
        z /= z.abs().amax(dim=1, keepdim=True)
        z /= torch.linalg.vector_norm(z, dim=1, keepdim=True)
        bad = ~z.isfinite().all(dim=1)
        if bool(bad.any()):
            row = start + int(bad.nonzero()[0])
            raise ValueError(f"the vector of {keys[row]!r} is zero or not finite")
        half: NDArray[np.float16] = z.to(torch.float16).numpy()
        return half

    return write_contents(
        Path(path).expanduser(), Contents(plan, keys, index, hashes, unit), overwrite, None, progress
    )


def _check_texts(keys: Sequence[str], texts: Sequence[str]) -> None:
    if isinstance(texts, str) or len(texts) != len(keys):
        raise ValueError(f"{len(texts)} texts for {len(keys)} samples: one each is needed")
    if not len(texts):
        raise ValueError("there is no sample: at least one is needed")
    faults = [row for row, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]
    if faults:
        row = faults[0]
        raise ValueError(
            f"{len(faults)} of {len(texts)} texts are empty or no text, the first is that of {keys[row]!r} "
            f"(sample {row}): {texts[row]!r}"
        )
    for row, text in enumerate(texts):
        if not is_unicode(text):
            raise ValueError(
                f"the text of {keys[row]!r} (sample {row}) is not Unicode: {text[:40]!r} has half a character"
            )
