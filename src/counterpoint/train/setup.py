"""What a recipe names, made: its data, its graph, its encoder. Kept for the next run that names the same."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from counterpoint.data import SOURCES, Samples
from counterpoint.data.cameras import IDENTITY
from counterpoint.data.memory import in_memory
from counterpoint.data.samples import UNLABELLED
from counterpoint.evaluate.matching import check_sides
from counterpoint.models.encoder import Encoder, build_encoder
from counterpoint.models.towers import build_towers
from counterpoint.objectives import Objective
from counterpoint.similarity import Similarity, SimilarityGraph
from counterpoint.train.recipe import Data, Recipe

LOOKED_AT = 8  # pictures that tell whether equal keys of two splits are the same samples
HOLDOUT_SEED = 20240718  # fixed, so that every run with a holdout keeps back the same samples

Say = Callable[[str], None]


@dataclass(frozen=True)
class Splits:
    """The samples that are trained on and those that are evaluated."""

    train: Samples
    test: Samples


def load_splits(data: Data, say: Say = print) -> Splits:
    """Both splits of a recipe's data, small pictures decoded into memory; ValueError for a stream."""
    if data.streamed:
        raise ValueError(f"data.source={data.source!r} is a stream: it has no splits to be measured")
    splits, skipped = _splits(data.model_dump_json())
    if skipped:
        say(f"skipped {len(skipped)} broken pictures, the first is {skipped[0]}")
    return splits


@lru_cache(maxsize=2)
def _splits(key: str) -> tuple[Splits, list[str]]:
    data = Data.model_validate_json(key)
    train, skipped = _load(data, data.train)
    if data.holdout:
        picture = _pictures(train.keys)
        count = int(picture.max()) + 1
        place = torch.randperm(count, generator=torch.Generator().manual_seed(HOLDOUT_SEED)).argsort()
        kept = round(count * (1 - data.holdout))
        if kept in (0, count):
            raise ValueError(f"data.holdout={data.holdout} leaves one side empty: there are {count} samples")
        order, split = place[picture].argsort(stable=True), int((place[picture] < kept).sum())
        train, test = train.subset(order[:split]), train.subset(order[split:])
    else:
        test, more = _load(data, data.test)
        skipped = skipped + more
        _check_apart(data, train, test)
    if data.limit is not None:
        order = torch.arange(len(train))
        if data.limit_by == "random":  # a smaller limit keeps a part of what a larger one keeps
            order = torch.randperm(len(train), generator=torch.Generator().manual_seed(HOLDOUT_SEED))
        train = train.subset(order[: data.limit].sort().values)
    return Splits(train, test), skipped


def _pictures(keys: Sequence[str]) -> Tensor:
    """Which picture each sample shows `(n,)`: rows of a table may share one, as `PATH`, `PATH#2`, ..."""
    there, numbers = set(keys), dict[str, int]()

    def first(key: str) -> str:
        path, _, number = key.rpartition("#")
        return path if number.isdigit() and path in there else key

    return torch.tensor([numbers.setdefault(first(key), len(numbers)) for key in keys])


def _load(data: Data, split: str | None) -> tuple[Samples, list[str]]:
    source = SOURCES[data.source]
    takes_on_error = {"on_error": data.on_error} if "on_error" in inspect.signature(source).parameters else {}
    return in_memory(source(split=split, **data.arguments, **takes_on_error), on_error=data.on_error)


def _check_apart(data: Data, train: Samples, test: Samples) -> None:
    """ValueError where pictures that are trained on are in the test split too.

    Keys alone do not tell: row numbers begin at 0 in every split. Of those in common a few are looked at.
    """
    place = {key: i for i, key in enumerate(train.keys)}
    common = [(place[key], i) for i, key in enumerate(test.keys) if key in place]
    alike = [_same(train, a, test, b) for a, b in common[:: -(-len(common) // LOOKED_AT) or 1]]
    if any(alike) and False not in alike:
        raise ValueError(
            f"{len(common)} of the {len(test)} samples of data.test={data.test!r} are in "
            f"data.train={data.train!r} too, such as {test.keys[common[0][1]]!r}: "
            "give splits that are apart, or data.holdout"
        )


def _same(a: Samples, i: int, b: Samples, j: int) -> bool | None:
    """Whether two samples show the same picture; None where one cannot be read."""
    try:
        first, second = a.picture(i), b.picture(j)
    except ValueError:
        return None
    return first.size == second.size and first.tobytes() == second.tobytes()


def _check_identities(recipe: Recipe, splits: Splits) -> None:
    """ValueError where a holdout parts the pictures of identities that are to be told from others."""
    by_identity = recipe.views.spec.pair_by is not None or recipe.evaluate.matching is not None
    if not (recipe.data.holdout and by_identity and IDENTITY in splits.train.labels):
        return
    train, test = (set(part.column(IDENTITY).values.tolist()) for part in (splits.train, splits.test))
    if parted := (train & test) - {UNLABELLED}:
        raise ValueError(
            f"data.holdout={recipe.data.holdout} parts the pictures of {len(parted)} identities between "
            "training and test; give data.holdout=0 and splits of identities, such as data.train=train "
            "data.test=test"
        )


def check_columns(recipe: Recipe, splits: Splits) -> None:
    """ValueError where the recipe asks to evaluate a label column that the data lacks."""
    for column in recipe.evaluate.columns or ():
        if column not in splits.train.labels:
            has = ", ".join(splits.train.labels)
            raise ValueError(
                f"evaluate.columns asks for {column!r}, but data {splits.train.name!r} has "
                + (f"only {has}" if has else "no labels: set evaluate.columns=null")
            )
    _check_identities(recipe, splits)
    if recipe.evaluate.matching is not None:
        check_sides(splits.test, recipe.evaluate.matching)


def load_graph(recipe: Recipe, say: Say = print) -> SimilarityGraph | None:
    """The similarity graph over the train split, or None where the recipe has none."""
    if recipe.similarity is None:
        return None
    return _graph(recipe.data.model_dump_json(), recipe.similarity.model_dump_json())


@lru_cache(maxsize=4)
def _graph(data_key: str, similarity_key: str) -> SimilarityGraph:
    data, similarity = Data.model_validate_json(data_key), Similarity.model_validate_json(similarity_key)
    return similarity.build(_splits(data_key)[0].train, data.label)


def load_encoder(recipe: Recipe) -> Encoder:
    """The encoder at its start: the same weights for the same seed, whatever the objective."""
    model = recipe.model
    encoder = build_encoder(
        model.backbone,
        stem=model.stem,
        width_multiplier=model.width,
        head=model.head,
        head_norm=model.head_norm,
        head_final_norm=model.head_final_norm,
        head_activation=model.head_activation,
        extra_linear=model.extra_linear,
        seed=recipe.seed,
        weights=model.weights,
    )
    if model.text is None:
        return encoder
    norm, activation = model.head_norm, model.head_activation
    text = model.text.model_dump()
    return build_towers(encoder, **text, head_norm=norm, head_activation=activation, seed=recipe.seed)


def takes_tiles(objective: Objective, recipe: Recipe) -> Callable[[int], bool]:
    """Whether the target of so many samples is best given by tiles, each having the views of the recipe."""
    views = recipe.views.spec.count + (recipe.model.text is not None)
    return partial(objective.streams, views=views)


@dataclass(frozen=True)
class Relations:
    """What the objective is told of the samples of a batch, looked up by their ids."""

    labels: Tensor | None
    graph: SimilarityGraph | None
    by_tiles: Callable[[int], bool] = lambda n: False
    same: bool = False  # tell the objective the ids, since a sample may come twice

    @classmethod
    def of(
        cls, objective: Objective, recipe: Recipe, train: Samples, graph: SimilarityGraph | None
    ) -> Relations:
        """Those side arguments that the objective uses; ValueError where the data lacks a required one."""
        labels = train.column(recipe.data.label).values if "labels" in objective.requires else None
        wanted = graph if "target" in objective.accepts else None
        return cls(labels, wanted, takes_tiles(objective, recipe))

    def batch(self, ids: Tensor, device: torch.device, everyone: Tensor | None = None) -> dict[str, Any]:
        """The side arguments for these samples.

        everyone: the ids of the whole batch, where `ids` are the share of one of several processes.
        """
        everyone = ids if everyone is None else everyone
        side: dict[str, Any] = {}
        if self.labels is not None:
            side["labels"] = self.labels[ids].to(device)
        if self.graph is not None:
            # In full, it would be larger than all else that an objective without a table of scores needs.
            if self.by_tiles(len(everyone)):
                side["target"] = self.graph.tiles(everyone.to(device))
            elif len(ids) < len(everyone):
                side["target"] = self.graph.between(ids, everyone).to(device)
            else:
                side["target"] = self.graph.batch(ids).to(device)
        if self.same:
            side["ids"] = ids.to(device)
        return side


def fingerprint(encoder: torch.nn.Module) -> str:
    """A short hash of all weights and buffers, to show that two runs started alike."""
    digest = hashlib.sha256()
    for name, tensor in encoder.state_dict().items():
        digest.update(json.dumps([name, list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
