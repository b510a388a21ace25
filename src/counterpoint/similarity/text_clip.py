"""The text towers of CLIP models, by open_clip, as text encoders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterpoint.extras import need
from counterpoint.names import hint

CLIP = "open_clip:"
FOLDER = "local-dir:"
HUB = "hf-hub:"


class ClipEncoder:
    """The text tower of a CLIP model, with the `encode` of a sentence-transformers model.

    The vectors are in the space that pictures share, and not normalised.
    """

    def __init__(self, model: Any, tokenizer: Any, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model.to(device).eval(), tokenizer, device

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        batch_size: int = 256,
        convert_to_tensor: bool = True,
        show_progress_bar: bool = False,
    ) -> Tensor:
        """`(n, d)` for n texts; each is cut after the tower's own limit, 77 tokens in most."""
        blocks = [
            self.model.encode_text(self.tokenizer(list(texts[i : i + batch_size])).to(self.device)).float()
            for i in range(0, len(texts), batch_size)
        ]
        return torch.cat(blocks)


def clip_name(encoder: str) -> tuple[str, str | None]:
    """The model and the weights in `open_clip:MODEL/WEIGHTS`; a folder or a model of the hub has its own.

    Raises ValueError where no weights are named: a tower with random weights relates nothing.

    >>> clip_name("open_clip:ViT-B-32/laion2b_s34b_b79k")
    ('ViT-B-32', 'laion2b_s34b_b79k')
    >>> clip_name("open_clip:ViT-B-32//models/mine.pt"), clip_name("open_clip:local-dir:/models/clip")
    (('ViT-B-32', '/models/mine.pt'), ('local-dir:/models/clip', None))
    """
    given = encoder.removeprefix(CLIP)
    if given.startswith((FOLDER, HUB)):
        return given, None
    model, _, weights = given.partition("/")
    if not model or not weights:
        raise ValueError(
            f"encoder {encoder!r} must name its weights, as {CLIP}ViT-B-32/laion2b_s34b_b79k or "
            f"{CLIP}ViT-B-32//path/of/a/file.pt"
        )
    return model, weights


def clip_encoder(encoder: str, device: str | None) -> ClipEncoder:
    """The encoder of that name; weights that are no file are taken from the cache of the hub, or downloaded.

    Raises ValueError for a model or weights that open_clip does not have; ImportError without the extra.
    """
    library: Any = need("open_clip", extra="clip")
    model, weights = clip_name(encoder)
    if weights is not None and model not in library.list_models():
        raise ValueError(
            f"encoder {encoder!r}: open_clip has no {model!r}; {hint(model, library.list_models())}"
        )
    tags = library.list_pretrained_tags_by_model(model) if weights is not None else []
    if weights is not None and weights not in tags and not Path(weights).expanduser().is_file():
        known = hint(weights, tags) if tags else "no weights of it are published"
        raise ValueError(f"encoder {encoder!r}: {weights!r} is neither a file nor published weights; {known}")
    source = weights if weights is None or weights in tags else str(Path(weights).expanduser())
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    made = library.create_model(model, pretrained=source, require_pretrained=True)
    return ClipEncoder(made, library.get_tokenizer(model), place)


def clip_revision(model: ClipEncoder) -> str:
    """The SHA-256 of the weights of the text tower: what tells two of them apart, wherever they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.model.state_dict().items()):
        if not name.startswith("visual."):
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
