"""Linear probes trained as papers train them: for a number of epochs, at a learning rate, on frozen features.

`linear_probe` solves a penalised problem, so that its number has no learning rate and no last epoch. Papers
train a linear layer instead, each in its own way, and their numbers depend on that way. The protocols here
are those ways by name. None standardises the features, and none looks at the test split before the last
epoch is done: the accuracy is that of the last epoch, never of the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from counterpoint.evaluate.columns import Rows, labelled_rows
from counterpoint.evaluate.features import Features, frozen
from counterpoint.evaluate.record import Result
from counterpoint.names import hint

VERSION = 1

Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]
"""From the epoch, counted from 0, to pairs: rows of the training split `(b,)` and features `(b, d)`."""


@dataclass(frozen=True)
class Training:
    """How a linear layer is trained.

    optimizer: torch's, "sgd" or "adam". momentum: of sgd. weight_decay: on weights and bias, as torch has it.
    lr: the rate of a batch of `batch_size`. A training split smaller than that is one batch, with sgd at a
        rate that is smaller in proportion.
    schedule: "linear" goes to 0 in a straight line, from step to step; "constant".
    start: "zero", or "uniform" in -1/sqrt(d) .. 1/sqrt(d), as torch starts a linear layer.
    augmentation: "none" reads each picture once, as it is evaluated. "crop_flip" reads other views in every
        epoch: random crops of 0.08 to 1 of the area with sides 3:4 to 4:3, half of them mirrored.
    standardise: take off the mean and divide by the deviation of the training features.
    """

    optimizer: Literal["sgd", "adam"]
    lr: float
    batch_size: int
    epochs: int = 100
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Literal["linear", "constant"] = "constant"
    start: Literal["zero", "uniform"] = "uniform"
    augmentation: Literal["none", "crop_flip"] = "none"
    standardise: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("batch_size", self.batch_size, 1), ("epochs", self.epochs, 1)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be a finite number above 0, got {self.lr}")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight_decay must be a finite number >= 0, got {self.weight_decay}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.augmentation != "none" and self.standardise:
            raise ValueError("standardise needs augmentation='none': other features come in every epoch")
        for name, allowed in (
            ("optimizer", ("sgd", "adam")),
            ("schedule", ("linear", "constant")),
            ("start", ("zero", "uniform")),
            ("augmentation", ("none", "crop_flip")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")


_SGD = Training("sgd", lr=1.6, batch_size=4096, momentum=0.9, schedule="linear", start="zero")

PROTOCOLS: dict[str, Training] = {
    # MMCL on ImageNet (Shah et al. 2022, and its released code); the second without the crops.
    "linear-sgd-crops": replace(_SGD, augmentation="crop_flip"),
    "linear-sgd": _SGD,
    # QARe and the relational-reasoning code base it builds on.
    "linear-adam": Training("adam", lr=1e-3, batch_size=128),
    # MMCL on CIFAR-100, from HCL's code base, on fixed features and without its choice of the best epoch.
    "linear-adam-512": Training("adam", lr=1e-3, batch_size=512, weight_decay=1e-6),
}


def trained_linear(
    train: Features,
    test: Features,
    column: str | None = None,
    protocol: str = "linear-adam",
    seed: int = 0,
    *,
    batches: Batches | None = None,
    device: torch.device | str = "cpu",
    **changes: Any,
) -> Result:
    """Accuracy on `test` of a linear layer trained on `train` by a published protocol.

    Use when you want a number beside a published one. To compare encoders use `linear_probe` or `knn`: this
    number moves with the learning rate and with the scale of the features.

    column: the label column; None takes the first one of `train`. Rows without a label are dropped from both
        splits and counted in the settings.
    protocol: "linear-sgd-crops": zero start, SGD with momentum 0.9, rate 1.6 at batch 4096, to 0 in a
        straight line, 100 epochs of random crops and flips (MMCL). "linear-sgd": the same without crops.
        "linear-adam": Adam at 1e-3, batch 128, 100 epochs (QARe). "linear-adam-512": Adam at 1e-3, batch
        512, weight decay 1e-6, 100 epochs (MMCL on CIFAR-100).
    seed: of the order and of a random start.
    batches: for a protocol with crops: `batches(epoch)` gives rows of `train` and features of other crops of
        those pictures, in random order and in pieces of any size; see `crop_batches`.
    device: where the layer is trained; pieces from `batches` are brought there.
    changes: fields of `Training` that shall differ; the result's settings say them.

    Raises ValueError for an unknown protocol or field, for a value out of range, for `batches` that are
    missing, not asked for, or name rows that are not there, and for splits that do not fit together.

    >>> from counterpoint.data.samples import Labels
    >>> kinds = Labels(torch.tensor([0, 0, 1, 1]), ["x", "y"])
    >>> h = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 1.0], [0.2, 0.8]])
    >>> split = Features(h, keys=["a", "b", "c", "d"], labels={"kind": kinds}, name="toy")
    >>> result = trained_linear(split, split, protocol="linear-adam", lr=0.1, epochs=20)
    >>> result.value, result.settings["optimizer"], result.settings["lr"]
    (1.0, 'adam', 0.1)
    """
    how = training(protocol, **changes)
    if how.augmentation != "none" and batches is None:
        raise ValueError(
            f"protocol {protocol!r} needs batches=, the features of random crops, epoch by epoch"
        )
    if how.augmentation == "none" and batches is not None:
        raise ValueError(f"protocol {protocol!r} has augmentation='none' and takes no batches=")
    rows = labelled_rows(train, test, column)
    classes = torch.unique(rows.train_labels)
    generator = torch.Generator().manual_seed(seed)
    layer = _Layer(rows.train.shape[1], len(classes), how, generator, torch.device(device))
    n = len(rows.train)
    if batches is None:
        h, h_test = _scaled(rows, how.standardise)
        x, y = h.to(layer.place), torch.searchsorted(classes, rows.train_labels).to(layer.place)
        loss = layer.fit(lambda epoch: _shuffled(x, y, generator), n)
    else:
        h_test = rows.test
        known = _class_of_row(train, column, classes)
        loss = layer.fit(lambda epoch: _labelled(batches(epoch), known, layer.place), n)
    right = int((classes[layer.predict(h_test)] == rows.test_labels).sum())
    settings: dict[str, JsonValue] = {**rows.settings, **asdict(how), "seed": seed, "train_loss": loss}
    return Result(
        protocol=protocol,
        version=VERSION,
        value=right / len(rows.test),
        n=len(rows.test),
        settings=settings,
        chosen=("train_loss",),
    )


def training(protocol: str, **changes: Any) -> Training:
    """How that protocol trains, with some fields changed.

    >>> training("linear-adam", epochs=5).epochs
    5
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown linear protocol {protocol!r}: {hint(protocol, PROTOCOLS)}")
    fields = list(Training.__dataclass_fields__)
    for name in changes:
        if name not in fields:
            raise ValueError(f"protocol {protocol!r} has no setting {name!r}: {hint(name, fields)}")
    return replace(PROTOCOLS[protocol], **changes)


def crop_batches(
    encoder: nn.Module, views: Callable[[int], Iterable[tuple[Tensor, Tensor]]], layer: str = "h"
) -> Batches:
    """`batches` for `trained_linear`: features of random crops, made anew in every epoch by a frozen encoder.

    views: from the epoch to pairs of ids `(b,)` and pictures `(b, ...)` where the encoder is.

    The encoder is in eval mode only while it runs, and is left byte for byte as it was.

    >>> class Flat(nn.Module):
    ...     def forward(self, x):
    ...         return x.flatten(1), x.flatten(1)
    >>> batches = crop_batches(Flat(), lambda epoch: [(torch.tensor([1, 0]), torch.ones(2, 3, 1, 1) * epoch)])
    >>> [(ids.tolist(), h.tolist()) for ids, h in batches(2)]
    [([1, 0], [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])]
    """

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for ids, x in views(epoch):
            with frozen(encoder), torch.no_grad():
                h, z = encoder(x)
            yield ids, (h if layer == "h" else z).float()

    return batches


class _Layer:
    """A linear layer and its optimiser. The bias is the last row of the weight `(d + 1, K)`."""

    def __init__(
        self, width: int, classes: int, how: Training, generator: torch.Generator, place: torch.device
    ) -> None:
        self.how, self.place = how, place
        weight = torch.zeros(width + 1, classes)
        if how.start == "uniform":
            weight.uniform_(-(width**-0.5), width**-0.5, generator=generator)
        self.weight = weight.to(place).requires_grad_()
        self.optimizer: torch.optim.Optimizer
        # Fused: an epoch of small batches is otherwise spent in calls.
        if how.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(
                [self.weight], how.lr, how.momentum, weight_decay=how.weight_decay, fused=True
            )
        else:
            self.optimizer = torch.optim.Adam(
                [self.weight], how.lr, weight_decay=how.weight_decay, fused=True
            )

    def fit(self, pieces: Callable[[int], Iterable[tuple[Tensor, Tensor]]], n: int) -> float:
        """Train on the pieces of every epoch; n rows an epoch. The mean loss of the last epoch."""
        batch = min(self.how.batch_size, n)
        peak = self.how.lr * (batch / self.how.batch_size if self.how.optimizer == "sgd" else 1)
        total = self.how.epochs * -(-n // batch)
        step, seen, loss = 0, 0, torch.zeros((), device=self.place)
        for epoch in range(self.how.epochs):
            seen, loss = 0, torch.zeros((), device=self.place)
            for x, y in _batches(pieces(epoch), batch):
                left = max(0.0, 1 - step / total) if self.how.schedule == "linear" else 1.0
                self.optimizer.param_groups[0]["lr"] = peak * left
                loss += self._step(x, y)
                step, seen = step + 1, seen + len(y)
        if not seen:
            raise ValueError("batches gave no labelled row in the last epoch")
        mean = float(loss) / seen
        if not torch.isfinite(self.weight).all():
            raise ValueError(
                f"the linear layer's weights are not finite after {step} steps at lr={self.how.lr}: "
                "a smaller lr may help"
            )
        return mean

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step on the mean cross entropy of a batch; the sum of its losses."""
        with torch.no_grad():
            # The gradient by hand: at these sizes autograd takes longer than the products.
            log_p = torch.addmm(self.weight[-1], x, self.weight[:-1]).log_softmax(dim=1)
            truth = y[:, None]
            loss = -log_p.gather(1, truth).sum()
            residual = log_p.exp_().scatter_add_(1, truth, torch.full_like(truth, -1, dtype=x.dtype))
            residual /= len(y)
            if self.weight.grad is None:
                self.weight.grad = torch.empty_like(self.weight)
            torch.mm(x.T, residual, out=self.weight.grad[:-1])
            torch.sum(residual, dim=0, out=self.weight.grad[-1])
        self.optimizer.step()
        return loss

    def predict(self, h: Tensor) -> Tensor:
        """The column `(n,)`, on the CPU, of the best class of each row `(n, d)`."""
        with torch.no_grad():
            parts = [
                torch.addmm(self.weight[-1], part.to(self.place), self.weight[:-1]).argmax(dim=1).cpu()
                for part in torch.split(h, 8192)
            ]
        return torch.cat(parts)


def _shuffled(h: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(h), generator=generator).to(h.device)
    # One gather an epoch: a gather a batch would cost as much as the step.
    yield h.index_select(0, order), y.index_select(0, order)


def _labelled(
    pieces: Iterable[tuple[Tensor, Tensor]], known: Tensor, place: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pieces with classes for ids; rows without a label are left out."""
    for ids, h in pieces:
        ids = ids.cpu()
        if len(ids) != len(h):
            raise ValueError(f"batches gave {len(ids)} rows of train and {len(h)} features")
        outside = ids[(ids < 0) | (ids >= len(known))]
        if len(outside):
            raise ValueError(f"batches gave row {int(outside[0])}, and train has {len(known)} rows")
        y = known[ids]
        kept = y >= 0
        yield h.to(place)[kept.to(place)], y[kept].to(place)


def _batches(pieces: Iterable[tuple[Tensor, Tensor]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of any size joined and cut into batches of one size; the last may be short."""
    waiting: list[tuple[Tensor, Tensor]] = []
    count = 0
    for x, y in pieces:
        waiting.append((x, y))
        count += len(y)
        if count < size:
            continue
        x, y = _joined(waiting)
        whole = count - count % size
        yield from zip(torch.split(x[:whole], size), torch.split(y[:whole], size), strict=True)
        waiting, count = [(x[whole:], y[whole:])], count - whole
    if count:
        yield _joined(waiting)


def _joined(pieces: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return (
        pieces[0]
        if len(pieces) == 1
        else (torch.cat([x for x, _ in pieces]), torch.cat([y for _, y in pieces]))
    )


def _scaled(rows: Rows, standardise: bool) -> tuple[Tensor, Tensor]:
    if not standardise:
        return rows.train, rows.test
    deviation, mean = torch.std_mean(rows.train, dim=0, correction=0)
    deviation = torch.where(deviation <= 1e-6 * mean.abs(), 1, deviation)
    return (rows.train - mean) / deviation, (rows.test - mean) / deviation


def _class_of_row(train: Features, column: str | None, classes: Tensor) -> Tensor:
    """`(n,)`: the position in `classes` of each row's label, -1 for none."""
    _, labels = train.column(column)
    places = torch.searchsorted(classes, labels.values.clamp_min(int(classes[0])))
    return torch.where(labels.known, places, -1)
