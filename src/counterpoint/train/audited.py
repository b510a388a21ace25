"""What `counterpoint audit` looks at: a run's own data through its encoder, or a file of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image
from rich.console import Console

from counterpoint.data import Samples
from counterpoint.data.batches import plain_batches
from counterpoint.data.decode import read_picture
from counterpoint.data.faults import existing_folder
from counterpoint.evaluate import Features, extract
from counterpoint.evaluate.embeddings import load_embeddings
from counterpoint.train.compare import load_trained
from counterpoint.train.run import Run
from counterpoint.train.sources import evaluation_splits

SPLITS = ("train", "test")
LAYERS = ("h", "z")

Picture = Callable[[str], Image.Image]


def audited(
    source: Path,
    split: str | None = None,
    layer: str | None = None,
    pictures: Path | None = None,
    console: Console | None = None,
) -> tuple[Features, Picture | None]:
    """Features and the pictures behind them, by key.

    source: the folder of a trained run, or a file that `load_embeddings` reads.
    split, layer: of a run: "train" and "h" if not given. pictures: of a file: the folder that its keys, as
        paths, start from.

    Raises ValueError for what does not go with the source, for a run without a checkpoint, and where the file
    or its data cannot be read.
    """
    if source.is_dir():
        if pictures is not None:
            raise ValueError("--pictures goes with a file of embeddings: a run has its own pictures")
        return _of_run(Run(source), split or "train", layer or "h", console or Console(stderr=True))
    if split is not None or layer is not None:
        raise ValueError(f"--split and --layer go with the folder of a run; {source} is not a folder")
    features = load_embeddings(source)
    if pictures is None:
        return features, None
    folder = existing_folder(pictures).resolve()

    def picture(key: str) -> Image.Image:
        # The keys come with the file, which may be someone else's.
        try:
            inside = (folder / key).resolve().is_relative_to(folder)
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a zero byte
            raise ValueError(f"picture {key!r} cannot be read: {error}") from None
        if not inside:
            raise ValueError(f"picture {key!r} is not inside {folder}")
        return read_picture(folder / key, key)

    return features, picture


def _of_run(run: Run, split: str, layer: str, console: Console) -> tuple[Features, Picture]:
    for name, value, allowed in (("split", split, SPLITS), ("layer", layer, LAYERS)):
        if value not in allowed:
            raise ValueError(f"--{name} must be {' or '.join(allowed)}, got {value!r}")
    recipe = run.recipe
    encoder = load_trained(run, console)
    samples: Samples = getattr(evaluation_splits(recipe), split)
    batches = plain_batches(
        samples,
        recipe.views.spec.plain(),
        recipe.evaluate.batch_size,
        workers=recipe.train.workers,
        on_error=recipe.data.on_error,
    )
    features = extract(
        encoder, batches, samples, layer="z" if layer == "z" else "h", missing=recipe.data.on_error
    )
    place = {key: i for i, key in enumerate(samples.keys)}
    return features, lambda key: samples.picture(place[key])
