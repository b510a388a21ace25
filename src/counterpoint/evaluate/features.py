"""Features of a frozen encoder: what every probe reads."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor, nn

from counterpoint.data.samples import Labels, Samples
from counterpoint.files import write_whole

LAYERS = ("h", "z")


@dataclass(frozen=True)
class Features:
    """One feature row per sample of a split, and what is known of each sample.

    h: `(n, d)` float32, in the order of the samples.
    keys: one string per sample, as in `Samples`.
    labels: named label columns; the first one is the default of the probes.
    name: the split, as `Samples.name`; it goes into the record of each result.
    layer: "h" (backbone) or "z" (head).
    captions: one text per sample, or None.

    Raises ValueError for counts that differ and for a row that is not finite.

    >>> kinds = Labels(torch.tensor([0, 1]), ["x", "y"])
    >>> Features(torch.eye(2), keys=["a", "b"], labels={"kind": kinds}).width
    2
    """

    h: Tensor
    keys: Sequence[str]
    labels: Mapping[str, Labels] = field(default_factory=dict)
    name: str = ""
    layer: str = "h"
    captions: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.h.ndim != 2 or self.h.dtype != torch.float32:
            raise ValueError(f"features must be (n, d) float32, got {tuple(self.h.shape)} {self.h.dtype}")
        if len(self.keys) != len(self.h):
            raise ValueError(f"{len(self.keys)} keys for {len(self.h)} feature rows")
        if self.captions is not None and len(self.captions) != len(self.h):
            raise ValueError(f"{len(self.captions)} captions for {len(self.h)} feature rows")
        for column, labels in self.labels.items():
            if len(labels.values) != len(self.h):
                raise ValueError(
                    f"label column {column!r} has {len(labels.values)} values for {len(self.h)} feature rows"
                )
        if self.layer not in LAYERS:
            raise ValueError(f"layer must be one of {', '.join(LAYERS)}, got {self.layer!r}")
        bad = (~torch.isfinite(self.h)).any(dim=1).nonzero().flatten()
        if len(bad):
            raise ValueError(
                f"features of {self.name or 'this split'} hold values that are not finite in {len(bad)} of "
                f"{len(self.h)} rows; the first is {self.keys[int(bad[0])]!r}"
            )

    def __len__(self) -> int:
        return len(self.h)

    @property
    def width(self) -> int:
        return self.h.shape[1]

    def column(self, name: str | None = None) -> tuple[str, Labels]:
        """The name and labels of that column, or of the first one."""
        if not self.labels:
            raise ValueError(f"features of {self.name or 'this split'} have no labels")
        if name is None:
            name = next(iter(self.labels))
        if name not in self.labels:
            raise ValueError(
                f"features of {self.name or 'this split'} have no label column {name!r}; "
                f"they have {', '.join(self.labels)}"
            )
        return name, self.labels[name]


def extract(
    encoder: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    samples: Samples,
    device: torch.device | str | None = None,
    layer: Literal["h", "z"] = "h",
    missing: Literal["stop", "skip"] = "stop",
) -> Features:
    """Run a frozen encoder over every sample once.

    encoder: `encoder(x)` gives `(h, z)`. It runs in eval mode and without gradients; afterwards each of
        its modules is in the mode it was in, and parameters and buffers are byte for byte what they were.
    batches: pairs of ids `(b,)` int64, positions in `samples`, and inputs `(b, ...)`; any order.
    device: where the encoder is; None takes it from the encoder's parameters.
    missing: "skip" leaves out samples that are in no batch, whose pictures cannot be read, say.

    Raises ValueError for a sample that is missing or comes twice, for an id out of range and for features
    that are not finite.

    >>> from PIL import Image
    >>> class Flat(nn.Module):
    ...     def forward(self, x):
    ...         return x.flatten(1), x.flatten(1)
    >>> samples = Samples("two", ["a", "b"], picture=lambda i: Image.new("RGB", (1, 1)))
    >>> x = torch.arange(6.0).reshape(2, 3, 1, 1)
    >>> extract(Flat(), [(torch.tensor([1]), x[1:]), (torch.tensor([0]), x[:1])], samples).h.tolist()
    [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    if layer not in LAYERS:
        raise ValueError(f"layer must be one of {', '.join(LAYERS)}, got {layer!r}")
    if not len(samples):
        raise ValueError(f"data {samples.name!r} has no samples")
    place = _place(encoder, device)
    seen = torch.zeros(len(samples), dtype=torch.bool)
    rows: Tensor | None = None
    with frozen(encoder), torch.no_grad():
        for ids, x in batches:
            ids = ids.cpu()
            _count(ids, seen, samples)
            out = encoder(x.to(place))[LAYERS.index(layer)]
            if out.ndim != 2 or len(out) != len(ids):
                raise ValueError(f"the encoder gave {layer} {tuple(out.shape)} for {len(ids)} samples")
            if rows is None:
                rows = torch.empty(len(samples), out.shape[1])
            rows[ids] = out.float().cpu()
    absent = (~seen).nonzero().flatten()
    if rows is None or (len(absent) and missing == "stop"):
        raise ValueError(
            f"{len(absent)} of {len(samples)} samples of {samples.name!r} were not in the batches; "
            f"the first is {samples.keys[int(absent[0])]!r}"
        )
    if len(absent):
        rows, samples = rows[seen], samples.subset(seen.nonzero().flatten())
    return Features(rows, list(samples.keys), dict(samples.labels), samples.name, layer, samples.captions)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards every module's mode and every buffer is as before.

    Restoring the mode module by module matters: a user may train with some layers held in eval mode.
    Buffers are put back too, because a module may count or queue in `forward` whatever its mode.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    >>> with frozen(model):
    ...     model.training
    False
    >>> model.training, model[1].training
    (True, False)
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                setattr(module, name, buffer.copy_(before))


def save_features(
    path: Path | str, features: Features, dtype: Literal["float16", "float32"] = "float16"
) -> None:
    """Write features as an npz file: `h`, `keys`, and `labels_<column>`, `names_<column>` per label column.

    The file also holds `name`, `layer` and, where there are any, `captions`. It is written whole or not at
    all.

    Raises ValueError when float16 cannot hold a row to one per cent: float32 then does.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "features.npz"
    >>> save_features(path, Features(torch.eye(2), keys=["a", "b"]))
    >>> load_features(path).h.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if dtype not in ("float16", "float32"):
        raise ValueError(f"dtype must be float16 or float32, got {dtype!r}")
    h = features.h
    if dtype == "float16":
        h = h.half()
        error = (h.float() - features.h).norm(dim=1)
        bad = (~(error <= 0.01 * features.h.norm(dim=1))).nonzero().flatten()
        if len(bad):
            row = features.h[bad[0]]
            raise ValueError(
                f"float16 cannot hold {len(bad)} of {len(h)} feature rows: {features.keys[int(bad[0])]!r} "
                f"reaches {float(row.abs().max()):.3g}; save with dtype='float32'"
            )
    arrays = {
        "h": h.numpy(),
        "keys": np.array(list(features.keys), dtype=str),
        "name": np.array(features.name, dtype=str),
        "layer": np.array(features.layer, dtype=str),
    }
    if features.captions is not None:
        # As one JSON text, because an array of strings makes every one as long as the longest.
        arrays["captions"] = np.frombuffer(json.dumps(list(features.captions)).encode(), dtype=np.uint8)
    for column, labels in features.labels.items():
        arrays[f"labels_{column}"] = labels.values.numpy()
        arrays[f"names_{column}"] = np.array(list(labels.names), dtype=str)
    write_whole(Path(path), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def load_features(path: Path | str) -> Features:
    """Read what `save_features` wrote; `h` comes back as float32.

    Raises ValueError that names the file when it holds no features.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "features.npz"
    >>> kinds = Labels(torch.tensor([0, -1]), ["x"])
    >>> save_features(path, Features(torch.eye(2), keys=["a", "b"], labels={"kind": kinds}))
    >>> load_features(path).labels["kind"].values.tolist()
    [0, -1]
    """
    path = Path(path)
    try:
        stored = np.load(path, allow_pickle=False)
        if not isinstance(stored, NpzFile):
            raise ValueError("it holds one bare array")
        with stored:
            arrays = {name: stored[name] for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not an npz file of features: {error}") from error
    columns = [name.removeprefix("labels_") for name in arrays if name.startswith("labels_")]
    wanted = ["h", "keys", *(f"names_{column}" for column in columns)]
    for name in wanted:
        if name not in arrays:
            raise ValueError(f"{path} holds no array {name!r}")
    labels = {}
    for column in columns:
        values = torch.from_numpy(arrays[f"labels_{column}"]).long()
        labels[column] = Labels(values, arrays[f"names_{column}"].tolist())
    name = str(arrays.get("name", ""))
    layer = str(arrays.get("layer", "h"))
    captions = json.loads(arrays["captions"].tobytes()) if "captions" in arrays else None
    h = torch.from_numpy(arrays["h"]).float()
    return Features(h, arrays["keys"].tolist(), labels, name, layer, captions)


def _place(encoder: nn.Module, device: torch.device | str | None) -> torch.device:
    first = next(encoder.parameters(), None)
    if device is None:
        return torch.device("cpu") if first is None else first.device
    wanted = torch.device(device)
    if first is None:
        return wanted
    # Moving a caller's encoder would change it; "cuda" without a number accepts any card.
    if first.device.type != wanted.type or wanted.index not in (None, first.device.index):
        raise ValueError(f"the encoder is on {first.device}, device is {wanted}: move the encoder first")
    return first.device


def _count(ids: Tensor, seen: Tensor, samples: Samples) -> None:
    if ids.ndim != 1 or ids.dtype != torch.int64:
        raise ValueError(f"ids must be (b,) int64, got {tuple(ids.shape)} {ids.dtype}")
    outside = ids[(ids < 0) | (ids >= len(seen))]
    if len(outside):
        raise ValueError(f"id {int(outside[0])} is not among the {len(seen)} samples of {samples.name!r}")
    times = seen.long().index_add_(0, ids, torch.ones_like(ids))
    repeated = (times > 1).nonzero().flatten()
    if len(repeated):
        key = samples.keys[int(repeated[0])]
        raise ValueError(f"sample {key!r} of {samples.name!r} comes twice in the batches")
    seen[ids] = True
