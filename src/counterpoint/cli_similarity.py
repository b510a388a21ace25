"""The commands about similarity graphs and their stores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from counterpoint.data import Samples
    from counterpoint.similarity import SimilarityGraph
    from counterpoint.similarity.store import Manifest
    from counterpoint.similarity.store_files import KeyTable
    from counterpoint.similarity.store_write import Progress as Report

similarity_app = typer.Typer(
    help="Build, look at and merge the stores of similarity graphs.", no_args_is_help=True
)

err_console = Console(stderr=True)
LINE_EVERY = 30.0  # seconds between two lines where there is no terminal
STORE_BATCHES = [256, 1024, 4096]

DataOption = Annotated[
    str | None,
    typer.Option("--data", help='a data section, "source: table, path: my.csv", or a recipe with one'),
]
Split = Annotated[str, typer.Option(help="of the data: train or test")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is there")]
Changes = Annotated[list[str] | None, typer.Argument(help="changes to the data, such as data.path=other.csv")]


@similarity_app.command(
    epilog='Example: `counterpoint similarity build --data "source: table, path: my.csv" --out stores/my`'
)
def build(
    out: Annotated[Path, typer.Option(help="the folder of the store")],
    changes: Changes = None,
    data: DataOption = None,
    split: Split = "train",
    table: Annotated[
        Path | None, typer.Option(help="instead of data: a .csv, .tsv, .jsonl or .parquet with texts")
    ] = None,
    key: Annotated[str | None, typer.Option(help="column of the table's keys; else row numbers")] = None,
    text: Annotated[
        str | None, typer.Option(help="what is encoded: caption, or a label column; of a table: its column")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help="sentence with {} for the text; several are averaged")
    ] = None,
    encoder: Annotated[str, typer.Option(help="text encoder: minilm, a model's name or folder")] = "minilm",
    batch_size: Annotated[
        int | None, typer.Option(help="texts per forward pass; else 64 on a CPU, 256 elsewhere", min=1)
    ] = None,
    accelerator: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    devices: Annotated[int, typer.Option(help="processes, or GPUs, of this machine", min=1)] = 1,
    nodes: Annotated[int, typer.Option(help="machines that share the folder", min=1)] = 1,
    overwrite: Overwrite = False,
) -> None:
    """Encode the texts of a data set once, into a folder that batches are read from.

    A build that was interrupted goes on when the same command is given again.
    """
    from counterpoint.data.text_table import text_table
    from counterpoint.similarity.store_build import build_store

    if (data is None) == (table is None):
        raise ValueError("give the data to encode: either --data or --table")
    if table is not None:
        if text is None:
            raise ValueError("--table needs --text, the column to encode")
        _no_changes(changes, "--table")
        name, (keys, texts) = table.name, text_table(table, text, key)
        templates = template or ["{}"]
    else:
        if key is not None:
            raise ValueError("--key goes with --table: data has keys of its own")
        name, keys, text, texts = _data_texts(str(data), split, changes or [], text)
        templates = template or ["{}" if text == "caption" else "a photo of a {}"]
    fabric = _fabric(accelerator, devices, nodes)
    began = time.perf_counter()
    with _bar(f"{len(set(texts)):,} texts of {len(texts):,} samples", fabric.global_rank == 0) as report:
        store = build_store(
            out,
            keys,
            texts,
            encoder=encoder,
            templates=templates,
            data=name,
            text=str(text),
            batch_size=batch_size,
            device=str(fabric.device),
            overwrite=overwrite,
            fabric=fabric,
            progress=report,
        )
    if fabric.global_rank == 0:
        m = store.manifest
        seconds = time.perf_counter() - began
        print(f"{m.samples:,} samples, {m.distinct:,} texts, width {m.width}, {seconds:.1f} s")
        print(f"store: {store.path}")


@similarity_app.command(epilog="Example: `counterpoint similarity info stores/my --check`")
def info(
    store: Annotated[Path, typer.Argument(help="the folder of a store")],
    check: Annotated[bool, typer.Option("--check", help="read every file and compare its hash")] = False,
) -> None:
    """Print what a store holds and how it was made."""
    from counterpoint.similarity.store import EmbeddingStore

    opened = EmbeddingStore.open(store)
    for name, value in _facts(opened.manifest).items():
        print(f"{name:<12} {value}")
    if check:
        opened.check()
        print(f"{'check':<12} every file has the hash it was written with")


@similarity_app.command(epilog="Example: `counterpoint similarity merge stores/a stores/b --out stores/all`")
def merge(
    stores: Annotated[list[Path], typer.Argument(help="the stores of the parts")],
    out: Annotated[Path, typer.Option(help="the folder of the new store")],
    overwrite: Overwrite = False,
) -> None:
    """Write the stores of several parts of a data set as one."""
    from counterpoint.similarity.store import EmbeddingStore
    from counterpoint.similarity.store_merge import merge_stores

    parts = [EmbeddingStore.open(path) for path in stores]
    with _bar(f"{len(parts)} stores", True) as report:
        merged = merge_stores(out, parts, overwrite=overwrite, progress=report)
    print(f"{merged.manifest.samples:,} samples, {merged.manifest.distinct:,} texts")
    print(f"store: {merged.path}")


@similarity_app.command(
    epilog='Example: `counterpoint similarity inspect stores/my --data "source: table, path: my.csv"`'
)
def inspect(
    graph: Annotated[str, typer.Argument(help="the folder of a store, or a recipe that has a graph")],
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="the page to write")] = Path("similarity.html"),
    data: DataOption = None,
    split: Split = "train",
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="comma-separated numbers of samples per batch; else a quarter of the recipe's, it, and four "
            "times it, or 256,1024,4096 for a store"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="of the samples that are drawn", min=0, max=2**63 - 1)] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Write the page that tau_s is chosen by: similarities, pairs, and how soft the target is.

    A recipe shows its own data. A store shows captions and pictures where --data is given.
    """
    from counterpoint.report.similarity_page import write_similarity_page
    from counterpoint.similarity.look import look_at
    from counterpoint.similarity.store import EmbeddingStore

    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out is the page to write")
    if out.exists() and not overwrite:
        raise ValueError(f"{out} is there already: replace it with --overwrite, or give another --out")
    given = None if batch_sizes is None else _numbers(batch_sizes)
    shown, samples, usual = _graph(graph, data, split, changes or [])
    sizes = given or usual
    look = look_at(shown, sizes, seed=seed)
    if samples is None:
        keys: Sequence[str] | KeyTable = EmbeddingStore.open(graph).keys
    else:
        keys = samples.keys
    page = write_similarity_page(
        shown,
        look,
        out,
        key=lambda row: keys[row],
        text=None if samples is None else _texts(samples),
        picture=None if samples is None else samples.picture,
        settings={"graph": shown.name, "of": graph, "seed": seed, "batch sizes": ",".join(map(str, sizes))},
        overwrite=overwrite,
    )
    print(f"page: {page}")


def _numbers(words: str) -> list[int]:
    try:
        return [int(part) for part in words.split(",")]
    except ValueError:
        raise ValueError(
            f"--batch-sizes takes whole numbers with commas between them, got {words!r}"
        ) from None


def _no_changes(changes: list[str] | None, what: str) -> None:
    if changes:
        raise ValueError(f"{changes[0]!r} changes the data that --data names, and {what} has none")


def _samples(data: str, split: str, changes: list[str]) -> Samples:
    from counterpoint.train.named_data import named_data, open_split

    return open_split(named_data(data, changes), split)


def _data_texts(
    words: str, split: str, changes: list[str], text: str | None
) -> tuple[str, list[str], str, list[str]]:
    """What data is called, its keys, what of it is encoded, and the texts."""
    from counterpoint.data.streams import stream_texts
    from counterpoint.similarity.store_encode import texts_of
    from counterpoint.train.named_data import named_data, open_split
    from counterpoint.train.sources import open_stream

    data = named_data(words, changes)
    if not data.streamed:
        samples = open_split(data, split)
        return samples.name, list(samples.keys), *texts_of(samples, text)
    if split != "train":
        raise ValueError(f"--split {split}: a stream is for training, and has no other split")
    if text not in (None, "caption"):
        raise ValueError(f"--text {text}: of a stream the captions are encoded, and nothing else")
    stream = open_stream(data)
    with _bar(f"reading {len(stream.urls):,} shards", _is_first(), "shards") as report:
        if report is not None:
            report(0, len(stream.urls))  # from here on the rate is counted
        keys, texts = stream_texts(stream, report)
    return stream.name, keys, "caption", texts


def _graph(
    words: str, data: str | None, split: str, changes: list[str]
) -> tuple[SimilarityGraph, Samples | None, list[int]]:
    """A graph, the samples it is of, where they are known, and the batch sizes to look at."""
    from counterpoint.similarity.store import EmbeddingStore
    from counterpoint.train.recipe import find_recipes, load_recipe
    from counterpoint.train.setup import load_graph, load_splits

    if Path(words).is_dir():
        store = EmbeddingStore.open(words)
        if data is None:
            _no_changes(changes, "a store alone")
            return store.graph(), None, STORE_BATCHES
        samples = _samples(data, split, changes)
        return store.graph_of(samples), samples, STORE_BATCHES
    if data is not None:
        raise ValueError(f"--data goes with a store: {words} is a recipe, or not there")
    try:
        find_recipes(words)
    except ValueError as error:
        raise ValueError(f"there is no store {words}, and {error}") from None
    recipe = load_recipe(words, changes)
    if recipe.data.streamed:
        raise ValueError(
            f"recipe {words} reads a stream, which has no list of samples: name its store instead"
        )
    graph = load_graph(recipe)
    if graph is None:
        raise ValueError(
            f"recipe {words} has no similarity section: give it one, such as similarity.graph=class"
        )
    n = recipe.train.batch_size
    return graph, load_splits(recipe.data).train, [max(2, n // 4), n, 4 * n]


def _texts(samples: Samples) -> Callable[[int], str] | None:
    """What is shown of a sample: its caption, or the name of its class."""
    if samples.captions is not None:
        captions = samples.captions
        return lambda row: captions[row]
    if not samples.labels:
        return None
    labels = samples.column()
    return lambda row: labels.names[label] if (label := int(labels.values[row])) >= 0 else "no label"


def _facts(m: Manifest) -> dict[str, object]:
    return {
        "data": m.data,
        "text": m.text,
        "samples": f"{m.samples:,}",
        "texts": f"{m.distinct:,} distinct ones",
        "encoder": m.encoder,
        "revision": m.revision or "none",
        "templates": "; ".join(m.templates),
        "vectors": f"width {m.width}, fp16, normalised, {2 * m.width * m.distinct / 1e6:,.1f} MB",
        "keys": f"sha256 {m.keys_sha256}",
        "content": f"sha256 {m.vectors_sha256}",
        "written by": f"counterpoint {m.counterpoint}, format {m.version}",
    }


def _fabric(accelerator: str, devices: int, nodes: int) -> Fabric:
    """The processes that share the work: those of torchrun or srun, or as many as are asked for."""
    from lightning_fabric import Fabric

    from counterpoint.train.devices import build_fabric, started_by
    from counterpoint.train.sections import Train

    shared = devices * nodes > 1
    try:
        if started_by() is None:
            fabric = Fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=nodes,
                strategy="ddp" if shared else "auto",
            )
        else:
            asked = {"accelerator": accelerator, "devices": devices, "nodes": nodes}
            fabric = build_fabric(Train.model_validate(asked))
    # Fabric says an unknown accelerator as ValueError and an absent one as RuntimeError or its own classes.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].replace("train.", "--")
        raise ValueError(
            f"--accelerator {accelerator} --devices {devices} cannot be used: {reason}"
        ) from None
    fabric.launch()
    return fabric


def _is_first() -> bool:
    """Whether this is the first of all processes, before they know of each other."""
    from counterpoint.train.devices import is_first

    # Fabric tells those that it starts itself by this alone; of srun's none has it.
    return is_first() and os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def _bar(title: str, shown: bool, unit: str = "texts") -> Iterator[Report | None]:
    """A progress bar with rate and time left; a line now and then where there is no terminal."""
    if not shown:
        yield None
        return
    live = err_console.is_terminal
    began, said = time.perf_counter(), time.perf_counter()
    first: int | None = None
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s  left"),
        TimeRemainingColumn(),
        console=err_console,
        transient=True,
        disable=not live,
    )
    task = progress.add_task(title, total=None, rate="-")

    def report(done: int, total: int) -> None:
        nonlocal first, said
        first = done if first is None else first
        now = time.perf_counter()
        rate = (done - first) / max(now - began, 1e-9)
        told = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        progress.update(task, completed=done, total=total, rate=told)
        if not live and now - said > LINE_EVERY:
            said = now
            line = f"{title}: {done:,} done"
            if rate:  # nothing is done before the first chunk: no rate yet, and no time left
                line += f", {told} {unit}/s, {(total - done) / rate:.0f} s left"
            err_console.print(line, highlight=False, markup=False, soft_wrap=True)

    with progress:
        yield report
