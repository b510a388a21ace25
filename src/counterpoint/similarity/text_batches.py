"""Many texts through an encoder in batches that pad little."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from counterpoint.extras import need

COUNTED = 4096
NO_LIMIT = 2**31 - 1


def check_batch_size(batch_size: int | None) -> None:
    """Raise ValueError for what is neither None nor an integer of at least 1."""
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    if batch_size is not None and not (whole and batch_size >= 1):
        raise ValueError(f"batch_size must be an integer of at least 1, got {batch_size!r}")


def encode_in_batches(model: Any, texts: Sequence[str], batch_size: int | None = None) -> Tensor:
    """The vectors `(m, d)` of m texts, float32 on the CPU, by a model with sentence-transformers' `encode`.

    Batches are of texts with almost the same number of tokens, the longest first. The library sorts by
    characters, and of what it computes for captions a sixth is padding, with batches of 256 over a fifth.

    batch_size: texts per forward pass; by default 64 on a CPU, where larger batches leave the caches, and 256
        elsewhere.
    """
    size = batch_size or (64 if torch.device(model.device).type == "cpu" else 256)
    with quiet():
        counts = _token_counts(model, texts)
        order = sorted(range(len(texts)), key=lambda row: -counts[row])
        parts = [
            model.encode(
                [texts[row] for row in order[start : start + size]],
                batch_size=size,
                convert_to_tensor=True,
                show_progress_bar=False,
            ).detach()
            for start in range(0, len(order), size)
        ]
    found = torch.cat(parts).float().cpu()
    out = torch.empty_like(found)
    out[torch.tensor(order)] = found
    return out


def _token_counts(model: Any, texts: Sequence[str]) -> list[int]:
    """How long the model finds each text. All alike where length costs nothing: word vectors, CLIP's 77."""
    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, need("transformers", extra="text").PreTrainedTokenizerBase):
        return [0] * len(texts)
    limit = model.max_seq_length
    # One without a limit says 1e30, which the tokenizer's code in Rust does not take.
    cut = {} if limit is None else {"truncation": True, "max_length": int(min(limit, NO_LIMIT))}
    counts: list[int] = []
    # In blocks: what it keeps of each text until then is some kilobytes.
    for start in range(0, len(texts), COUNTED):
        counts += [len(ids) for ids in tokenizer(list(texts[start : start + COUNTED]), **cut)["input_ids"]]
    return counts


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, log lines or warnings of the Hugging Face libraries within the block."""
    progress = need("transformers", extra="text").utils.logging
    loggers = [
        logging.getLogger(name) for name in ("transformers", "huggingface_hub", "sentence_transformers")
    ]
    levels = [logger.level for logger in loggers]
    bar = progress.is_progress_bar_enabled()
    # Unset, a process that forks data workers later prints a warning into the training log.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        progress.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bar:
            progress.enable_progress_bar()
