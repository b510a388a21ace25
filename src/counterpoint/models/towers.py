"""Two towers: an encoder of pictures and one of texts, whose embeddings are of one width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.models.encoder import Encoder, _seeded
from counterpoint.models.heads import mlp_head
from counterpoint.models.text import TextTransformer
from counterpoint.models.text_pretrained import OPEN_CLIP, open_clip_tower, sentence_tower
from counterpoint.models.tokenizers import WORDPIECE, Tokenizer, build_tokenizer

TRANSFORMER = "transformer"


class TextTower(nn.Module):
    """`tower(tokens) -> (h, z)`: features `(n, width)` of texts, and embeddings `(n, out)` after the head.

    backbone: tokens `(n, length)` to features; any module of yours will do.
    tokenizer: what makes the tokens. Its digest is part of the weights: those of a tower that was trained
        with another vocabulary are refused, since its numbers would mean other words.
    trained: with False the backbone stays as it is, in eval mode, and gets no gradient; the head is trained.

    Raises ValueError on weights of another tokenizer.

    >>> tokenizer = build_tokenizer("wordpiece", max_length=16)
    >>> words = tokenizer.vocabulary
    >>> backbone = TextTransformer(words, tokenizer.pad, width=8, layers=1, heads=2, max_length=16)
    >>> tower = TextTower(backbone, mlp_head(8, (4,)), tokenizer, width=8)
    >>> tower.embed(["a dog", "a cat"]).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module | None,
        tokenizer: Tokenizer,
        *,
        width: int,
        trained: bool = True,
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Identity() if head is None else head
        self.tokenizer, self.width, self.trained = tokenizer, width, trained
        self.digest: Tensor
        self.register_buffer("digest", torch.tensor(list(tokenizer.digest), dtype=torch.uint8))
        if not trained:
            backbone.requires_grad_(False)
            backbone.eval()

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.trained):
            h = self.backbone(tokens)
        return h, self.head(h)

    def train(self, mode: bool = True) -> TextTower:
        """As any module's, but a backbone that is not trained stays in eval mode."""
        super().train(mode)
        if not self.trained:
            self.backbone.eval()
        return self

    @torch.no_grad()
    def embed(self, texts: Sequence[str], batch_size: int = 256) -> Tensor:
        """The embeddings z `(n, out)` float32 of these texts, on the CPU, in the mode the tower is in."""
        place = self.digest.device
        blocks = [
            self(self.tokenizer(texts[i : i + batch_size]).to(place))[1].float().cpu()
            for i in range(0, len(texts), batch_size)
        ]
        return torch.cat(blocks)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        stored = state_dict.get(f"{prefix}digest")
        if isinstance(stored, Tensor) and stored.tolist() != self.digest.tolist():
            raise ValueError("these weights are of a text tower with another tokenizer")
        super()._load_from_state_dict(state_dict, prefix, *rest)


class TwoTowers(Encoder):
    """An `Encoder` of pictures that has a text tower beside it.

    `towers(x)` is `(h, z)` of the pictures, as any encoder gives them. `towers(x, tokens)` gives them in one
    call for training, which is what processes that share the work wait for: z then has the rows of the
    pictures and after them those of the texts.

    Raises ValueError where the two embeddings are of different widths.

    >>> from counterpoint.models.encoder import build_encoder
    >>> towers = build_towers(build_encoder("conv4", head=(16,)), width=8, layers=1, heads=2)
    >>> h, z = towers(torch.zeros(2, 3, 16, 16), towers.text.tokenizer(["a dog", "a cat"]))
    >>> h.shape, z.shape
    (torch.Size([2, 64]), torch.Size([4, 16]))
    """

    def __init__(self, pictures: Encoder, text: TextTower) -> None:
        super().__init__(
            pictures.backbone,
            pictures.head,
            width=pictures.width,
            size=pictures.size,
            channels_last=pictures.channels_last,
        )
        self.text = text

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, z = super().forward(x)
        if tokens is None:
            return h, z
        _, texts = self.text(tokens)
        if texts.shape[1] != z.shape[1]:
            raise ValueError(
                f"pictures are embedded in {z.shape[1]} dimensions, texts in {texts.shape[1]}: "
                "the heads must end alike"
            )
        return h, torch.cat([z, texts.to(z.dtype)])


def build_towers(
    pictures: Encoder,
    backbone: str = TRANSFORMER,
    *,
    head: Sequence[int] | None = None,
    head_norm: bool = True,
    head_activation: str = "relu",
    width: int = 512,
    layers: int = 12,
    heads: int = 8,
    pooling: str = "eot",
    max_length: int = 77,
    tokenizer: str = WORDPIECE,
    weights: str | None = None,
    trained: bool = True,
    seed: int | None = None,
) -> TwoTowers:
    """The encoder with a text tower beside it.

    backbone: "transformer" is `TextTransformer`, from scratch; "minilm", a folder or a name of a
        sentence-transformers model; "open_clip:NAME" (extra `clip`).
    head: output sizes of its 1 to 3 linear layers; None for one, as wide as the embeddings of pictures.
    head_norm, head_activation: see `heads.mlp_head`.
    width, layers, heads, pooling, tokenizer: of "transformer"; others have their own.
    max_length: tokens of a text at most; open_clip's towers have their own.
    weights: of "open_clip:NAME", a file or a tag; None for fresh ones.
    trained: False leaves the backbone as it is.
    seed: as in `build_encoder`.

    Raises ValueError for an argument that is not allowed, and for heads of different output sizes.

    >>> from counterpoint.models.encoder import build_encoder
    >>> towers = build_towers(build_encoder("conv4", head=(16,)), width=32, layers=1, heads=2, pooling="mean")
    >>> towers.text.width, towers.width
    (32, 64)
    """
    out = _output(pictures)
    sizes = (out,) if head is None else tuple(head)
    if weights is not None and not backbone.startswith(OPEN_CLIP):
        raise ValueError(f"text weights are for {OPEN_CLIP}NAME, not {backbone!r}")
    if backbone == TRANSFORMER and not trained:
        raise ValueError("a text transformer that starts from nothing must be trained")
    with _seeded(seed):
        module: nn.Module
        if backbone == TRANSFORMER:
            reads = build_tokenizer(tokenizer, max_length)
            module = TextTransformer(
                reads.vocabulary,
                reads.pad,
                width=width,
                layers=layers,
                heads=heads,
                max_length=max_length,
                pooling=pooling,
            )
        elif backbone.startswith(OPEN_CLIP):
            module, reads, width = open_clip_tower(backbone.removeprefix(OPEN_CLIP), weights)
        else:
            module, reads = sentence_tower(backbone, max_length)
            width = module.width
        projection = mlp_head(width, sizes, norm=head_norm, activation=head_activation)
    if (ends := sizes[-1] if sizes else width) != out:
        raise ValueError(
            f"the head of texts ends with {ends}, that of pictures with {out}: they must end alike"
        )
    return TwoTowers(pictures, TextTower(module, projection, reads, width=width, trained=trained))


def _output(encoder: Encoder) -> int:
    """The width of the embeddings of an encoder."""
    linear = [module for module in encoder.head.modules() if isinstance(module, nn.Linear)]
    return linear[-1].out_features if linear else encoder.width
