"""What a run is trained on and measured on: a list of samples, with or without captions, or a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoint.data import SOURCES, STREAMS, Samples, Stream
from counterpoint.data.batches import batch_source, plain_batches
from counterpoint.data.captions import Captioned, Keys, Source
from counterpoint.data.memory import in_memory
from counterpoint.data.stream_batches import Rows, StreamSource
from counterpoint.evaluate import Result, extract, retrieval, zero_shot
from counterpoint.evaluate.features import frozen
from counterpoint.evaluate.zero_shot import imagenet_names
from counterpoint.models.encoder import Encoder
from counterpoint.models.towers import TwoTowers
from counterpoint.objectives import Objective
from counterpoint.ranks.collectives import Ranks
from counterpoint.similarity import ShuffledGraph, SimilarityGraph
from counterpoint.train.recipe import Data, Recipe
from counterpoint.train.setup import (
    Relations,
    Say,
    Splits,
    check_columns,
    load_graph,
    load_splits,
    takes_tiles,
)


@dataclass(frozen=True)
class Training:
    """What a run is trained on.

    samples: how many ids its relations know at least, of those from 0. keys: of the samples, by id.
    """

    source: Source
    relations: Relations
    samples: int
    keys: Keys


def load_training(
    recipe: Recipe,
    encoder: Encoder,
    objective: Objective,
    device: torch.device,
    say: Say = print,
    share: tuple[int, int] = (0, 1),
) -> Training:
    """The batches of a recipe, and what its objective is told of them.

    share: (k, m) for the k-th of m processes, k from 0.

    Raises ValueError where the recipe does not fit its data, or asks to measure what that does not have.
    """
    check_evaluation(recipe, evaluation_splits(recipe, say))
    if recipe.data.streamed:
        return _from_stream(recipe, encoder, objective, device, share)
    samples = load_splits(recipe.data, say).train
    source: Source = batch_source(
        samples,
        recipe.views.spec,
        recipe.train.batch_size,
        seed=recipe.seed,
        workers=recipe.train.workers,
        on_error=recipe.data.on_error,
        device=device,
        share=share,
    )
    if isinstance(encoder, TwoTowers):
        source = Captioned(source, samples, encoder.text.tokenizer, recipe.seed, device)
    relations = Relations.of(objective, recipe, samples, load_graph(recipe, say))
    return Training(source, relations, len(samples), samples.keys)


def _from_stream(
    recipe: Recipe, encoder: Encoder, objective: Objective, device: torch.device, share: tuple[int, int]
) -> Training:
    if "labels" in objective.requires:
        raise ValueError(f"{objective.name} requires labels, which a stream does not have")
    graph, rows = _store(recipe)
    source = StreamSource(
        open_stream(recipe.data),
        recipe.views.spec,
        recipe.train.batch_size,
        seed=recipe.seed,
        workers=recipe.train.workers,
        device=device,
        share=share,
        tokenize=encoder.text.tokenizer if isinstance(encoder, TwoTowers) else None,
        rows=rows,
    )
    wanted = graph if "target" in objective.accepts else None
    # A stream may draw a sample twice for one batch, which then is no other sample.
    same = "ids" in objective.accepts
    relations = Relations(None, wanted, takes_tiles(objective, recipe), same)
    samples = recipe.train.batch_size if graph is None else len(graph)
    return Training(source, relations, samples, source.keys)


def open_stream(data: Data) -> Stream:
    """The stream that a recipe names."""
    return STREAMS[data.source](split=data.train, on_error=data.on_error, **data.arguments)


def _store(recipe: Recipe) -> tuple[SimilarityGraph | None, Rows | None]:
    """The graph of the store that a recipe names, and where in it the sample of a key stands."""
    similarity = recipe.similarity
    if similarity is None:
        return None, None
    if similarity.graph != "store":
        raise ValueError(
            f"similarity.graph={similarity.graph!r} is built from a list of samples, and a stream has none: "
            "build a store first, and name it: similarity={graph: store, path: ...}"
        )
    from counterpoint.similarity.store import EmbeddingStore

    store = EmbeddingStore.open(similarity.arguments["path"])
    graph: SimilarityGraph = store.graph()
    if similarity.noise:
        graph = ShuffledGraph(graph, similarity.noise, similarity.noise_seed)

    def rows(keys: Sequence[str], captions: Sequence[str]) -> tuple[Tensor, dict[int, str]]:
        found, faults = store.look_up(keys, captions)
        return torch.from_numpy(found), faults

    return graph, rows


def evaluation_splits(recipe: Recipe, say: Say = print) -> Splits:
    """The splits that are measured: those of `evaluate_on`, or of the data itself.

    Of a stream they are its `held_out` shards, as train and test alike.

    Raises ValueError for a stream that has neither.

    >>> from counterpoint.train.recipe import parse_recipe
    >>> given = {"name": "a", "data": {"source": "shapes", "count": 8}, "objective": "ntxent"}
    >>> len(evaluation_splits(parse_recipe(given)).train)
    8
    """
    if recipe.evaluate_on is not None:
        return load_splits(recipe.evaluate_on, say)
    if not recipe.data.streamed:
        return load_splits(recipe.data, say)
    held_out = recipe.data.arguments["held_out"]
    if held_out is None:
        raise ValueError(
            "a stream is not measured: give data.held_out, shards for retrieval, "
            "or evaluate_on={source: ...}, another data set"
        )
    on_error = recipe.data.on_error
    samples, skipped = in_memory(SOURCES["shards"](held_out, on_error=on_error), on_error=on_error)
    if skipped:
        say(f"skipped {len(skipped)} broken pictures, the first is {skipped[0]}")
    return Splits(samples, samples)


def check_text_tower(recipe: Recipe) -> None:
    """ValueError where the recipe asks for what only a text tower can do, and has none."""
    asked = recipe.evaluate
    for name, wanted in (("zero_shot", asked.zero_shot), ("retrieval", asked.retrieval)):
        if wanted and recipe.model.text is None:
            raise ValueError(
                f"recipe {recipe.name!r}: evaluate.{name} embeds texts: it needs model.text, a text tower"
            )


def check_evaluation(recipe: Recipe, splits: Splits) -> None:
    """ValueError where the recipe asks to measure what its data or its model does not have."""
    check_columns(recipe, splits)
    check_text_tower(recipe)
    asked, test = recipe.evaluate, splits.test
    if asked.retrieval and test.captions is None and test.all_captions is None:
        raise ValueError(f"evaluate.retrieval needs captions, and data {test.name!r} has none")
    if asked.zero_shot is not None:
        for column in asked.zero_shot.columns or (None,):
            _class_names(test, column, asked.zero_shot.names)


def _class_names(test: Samples, column: str | None, names: str) -> Sequence[str]:
    """What zero-shot calls the classes of a column: "data" as they are called there, or "imagenet"."""
    labels = test.column(column)
    if names == "data":
        return labels.names
    # Folders of ImageNet are called by the ids, where no file says what they mean.
    return imagenet_names(labels.names if labels.ids is None else labels.ids)


def measure_with_text(encoder: Encoder, test: Samples, recipe: Recipe) -> list[Result]:
    """The results that need a text tower: zero-shot accuracy and retrieval, whichever the recipe asks for."""
    asked = recipe.evaluate
    if not isinstance(encoder, TwoTowers) or not (asked.zero_shot or asked.retrieval):
        return []
    on_error = recipe.data.on_error
    spec, workers = recipe.views.spec.plain(), recipe.train.workers
    batches = plain_batches(test, spec, asked.batch_size, workers=workers, on_error=on_error)
    pictures = extract(encoder, batches, test, layer="z", missing=on_error)
    results: list[Result] = []
    with frozen(encoder.text):
        if asked.zero_shot is not None:
            for column in asked.zero_shot.columns or (None,):
                names = _class_names(test, column, asked.zero_shot.names)
                k = tuple(one for one in asked.zero_shot.k if one <= len(names)) or (1,)
                sentences = asked.zero_shot.templates
                results += zero_shot(pictures, encoder.text.embed, column, sentences, k, names)
        if asked.retrieval:
            results += retrieval(pictures, test, encoder.text.embed)
    return results


class LeftOut:
    """What a run could not use, over all its processes since they began: each sample and each shard once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._samples: dict[str, None] = {}
        self._shards: dict[str, None] = {}
        self._told = 0, 0

    def count(self) -> int:
        """How many samples so far. Every process must call it."""
        samples = list(self._source.skipped)
        shards = list(self._source.broken) if isinstance(self._source, StreamSource) else []
        new = samples[self._told[0] :], shards[self._told[1] :]
        self._told = len(samples), len(shards)
        everyone = [new]
        if (ranks := Ranks.of(None)) is not None:
            any_new = any(count for (count,) in ranks.tell([len(new[0]) + len(new[1])]))
            everyone = ranks.objects(new) if any_new else []
        for keys, urls in everyone:
            self._samples |= dict.fromkeys(keys)
            self._shards |= dict.fromkeys(urls)
        return len(self._samples)

    def lines(self) -> list[str]:
        """What is said of it at the end; nothing where all could be used. Every process must call it."""
        lines = []
        if count := self.count():
            lines.append(f"skipped {count} broken pictures, the first is {next(iter(self._samples))}")
        if self._shards:
            first = next(iter(self._shards))
            lines.append(f"{len(self._shards)} shards could not be read to their end, the first is {first}")
        return lines
