"""A text encoder trained from scratch: CLIP's transformer.

Source: Radford et al., Learning transferable visual models from natural language supervision (ICML 2021),
section 2.4: width 512, 12 layers, 8 heads; a causal mask, and the feature is that of the end-of-text token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

POOLINGS = ("eot", "mean")


class TextTransformer(nn.Module):
    """Tokens `(n, length)` to features `(n, width)`, by layers with the norm first, GELU and no dropout.

    vocabulary, pad: of the tokenizer. max_length: the most tokens of a text.
    pooling: "eot" is CLIP's: a token sees those before it, and the feature is that of a text's last token,
        the end mark. "mean": every token sees every other, and the feature is their mean. Padding is
        never seen.

    Raises ValueError for a width that the heads do not divide, an unknown pooling, and longer texts.

    >>> tower = TextTransformer(vocabulary=10, pad=0, width=8, layers=1, heads=2, max_length=6)
    >>> x = torch.tensor([[1, 5, 2, 0, 0, 0]])
    >>> tower(x).shape, torch.allclose(tower(x), tower(x[:, :3]), atol=1e-6)
    (torch.Size([1, 8]), True)
    """

    def __init__(
        self,
        vocabulary: int,
        pad: int,
        *,
        width: int = 512,
        layers: int = 12,
        heads: int = 8,
        max_length: int = 77,
        pooling: str = "eot",
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise ValueError(f"text pooling {pooling!r} is not known; allowed: {', '.join(POOLINGS)}")
        if width < 1 or layers < 1 or heads < 1 or width % heads:
            raise ValueError(
                f"a text transformer needs a width that its heads divide, and a layer, got width={width}, "
                f"heads={heads}, layers={layers}"
            )
        self.pad, self.width, self.pooling = pad, width, pooling
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.empty(max_length, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(
            layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self._start(layers)

    def _start(self, layers: int) -> None:
        """CLIP's initial weights; those that torch's encoder copies from its first layer are all alike."""
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place, std=0.01)
        narrow = self.width**-0.5
        for layer in self.layers.layers:
            nn.init.normal_(layer.self_attn.in_proj_weight, std=narrow)
            nn.init.normal_(layer.self_attn.out_proj.weight, std=narrow * (2 * layers) ** -0.5)
            nn.init.normal_(layer.linear1.weight, std=(2 * self.width) ** -0.5)
            nn.init.normal_(layer.linear2.weight, std=narrow * (2 * layers) ** -0.5)
            for bias in (layer.linear1.bias, layer.linear2.bias):
                nn.init.zeros_(bias)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > len(self.place):
            raise ValueError(f"texts have {length} tokens, this tower takes {len(self.place)} at most")
        x = self.token(tokens) + self.place[:length]
        last = last_token(tokens, self.pad)
        if self.pooling == "eot":
            later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
            out: Tensor = self.layers(x, mask=later, is_causal=True)
            return out[torch.arange(len(out), device=out.device), last]
        padding = torch.arange(length, device=tokens.device) > last[:, None]
        out = self.layers(x, src_key_padding_mask=padding)
        return out.masked_fill(padding[..., None], 0).sum(1) / (last[:, None] + 1)


def last_token(tokens: Tensor, pad: int) -> Tensor:
    """Where the last token that is not padding stands in each row, `(n,)`; 0 where all is padding.

    >>> last_token(torch.tensor([[3, 0, 4, 0], [0, 0, 0, 0]]), pad=0)
    tensor([2, 0])
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where(tokens != pad, places, 0).amax(1)
