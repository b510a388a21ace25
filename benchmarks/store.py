"""Stores of similarity graphs: what a large one costs to open and to read, and how fast one is built.

    python benchmarks/store.py [--rows 12000000] [--small 100000] [--batches 1000] [--captions FILE.tsv.gz]

1. Random vectors as a store of --rows and one of --small: seconds to write, to open and to make the graph of,
   the target of a batch in turn from both, and the memory while --batches random batches are read.
2. With --captions, a table with a column `caption`: `build_store` against sentence-transformers' own `encode`
   of the same list, each called without options, in one process; on the wall clock and the processor's.
3. With --resnet: what the target is of a ResNet-50 training step of --batch samples, two views, 224 pixels.
   `cpu` is the processor time of a step of 8 samples on this machine, times batch / 8. `gpu, published` is no
   measurement of ours: 2 * batch pictures at 1,218 images/s (timm's ResNet-50, training with AMP, RTX 3090).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from measure import cpu_seconds, measure_in_turn, peak_memory, versions, write_csv

from counterpoint.data.text_table import text_table
from counterpoint.similarity import EmbeddingStore, build_store, write_store
from counterpoint.similarity.store_encode import SentenceEncoder

OUT = Path(__file__).parent / "results" / "store.csv"
WIDTH = 384
PUBLISHED = 1218  # images per second


class Numbers(Sequence):
    """Keys of many samples, made when they are asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> str:
        return f"{row:09}"


def random_vectors(start: int, stop: int) -> torch.Tensor:
    """The rows of one fixed table of normal numbers."""
    return torch.randn(stop - start, WIDTH, generator=torch.Generator().manual_seed(start))


def resident() -> float | None:
    """Resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def reading(folder: Path, rows: int, small: int, batch: int, batches: int) -> list[dict]:
    """Both stores written, opened and read in turn."""
    stores, lines = {}, []
    for name, count in (("large", rows), ("small", small)):
        free, needed = shutil.disk_usage(folder).free, 2 * count * WIDTH + 60 * count
        if free < 1.2 * needed:
            raise SystemExit(f"{needed / 1e9:.1f} GB are needed in {folder}, {free / 1e9:.1f} GB are free")
        begin = time.perf_counter()
        write_store(folder / name, random_vectors, Numbers(count), name="random", chunk_rows=16_384)
        written = time.perf_counter() - begin
        begin = time.perf_counter()
        store = EmbeddingStore.open(folder / name)
        opened = time.perf_counter() - begin
        before = resident()
        begin = time.perf_counter()
        stores[name] = store.graph()
        graph = time.perf_counter() - begin
        lines += [
            row("write", name, count, written),
            row("open", name, count, opened),
            row("graph", name, count, graph),
        ]
        print(f"{name}: {count:,} rows, written in {written:.1f} s, opened in {opened:.3f} s, "
              f"graph in {graph:.3f} s (resident {before or 0:.0f} MiB)")  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    arms = {
        name: lambda graph=graph: graph.batch(torch.randint(len(graph), (batch,), generator=draw))
        for name, graph in stores.items()
    }
    seconds = measure_in_turn(arms, repeats=max(5, min(50, batches // 4)), warmup=3)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, median in medians.items():
        lines.append(row("target", name, len(stores[name]), median, batch=batch))
    ratio = medians["large"] / medians["small"]
    print(f"target of {batch}: {1000 * medians['large']:.1f} ms from the large store, "
          f"{1000 * medians['small']:.1f} ms from the small one, {ratio:.2f} x")  # fmt: skip

    def read_all() -> None:
        for _ in range(batches):
            arms["large"]()

    peak = peak_memory(read_all)
    lines.append({**row("memory", "large", rows, None, batch=batch), "batches": batches, "peak_mib": peak})
    print(f"memory while {batches} batches are read: {peak or float('nan'):.0f} MiB")
    return lines


def encoding(folder: Path, captions: Path, limit: int | None) -> list[dict]:
    """Our build against the library's own call, on one list."""
    keys, texts = text_table(captions, "caption")
    keys, texts = keys[:limit], texts[:limit]
    encoder = SentenceEncoder("minilm", device="cpu")

    def ours() -> None:
        build_store(folder / "captions", keys, texts, encoder=encoder)

    def theirs() -> None:
        encoder._model.encode(texts, show_progress_bar=False)

    lines = []
    for name, run in (("build_store", ours), ("sentence-transformers encode", theirs)):
        begin, begin_cpu = time.perf_counter(), cpu_seconds()
        run()
        seconds, cpu = time.perf_counter() - begin, cpu_seconds() - begin_cpu
        rate = len(texts) / seconds
        lines.append({**row("encode", name, len(texts), seconds), "cpu_seconds": round(cpu, 3),
                      "texts_per_s": round(rate, 1), "distinct": len(set(texts))})  # fmt: skip
        print(f"{name}: {len(texts):,} texts ({len(set(texts)):,} distinct), {seconds:.1f} s, "
              f"{cpu:.1f} s of processor time, {rate:.0f} texts/s")  # fmt: skip
    return lines


def steps(batch: int, target: float) -> list[dict]:
    """One ResNet-50 step on this machine, scaled per sample; and the step of a published GPU rate."""
    from torchvision.models import resnet50

    model, pictures = resnet50(num_classes=128).train(), torch.randn(16, 3, 224, 224)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(pictures).square().mean().backward()
        optimizer.step()

    here = statistics.median(measure_in_turn({"": step}, repeats=3, clock=cpu_seconds)[""]) * batch / 8
    there = 2 * batch / PUBLISHED
    for name, seconds in (("cpu step, 8 samples scaled", here), ("gpu step, published", there)):
        print(
            f"{name}: {seconds:.2f} s for {batch} samples; the target is {100 * target / seconds:.2f} % of it"
        )
    return [
        {**row("step", "cpu, 8 samples scaled", None, here, batch=batch), "target_share": target / here},
        {**row("step", "gpu, published", None, there, batch=batch), "target_share": target / there},
    ]


def row(what: str, arm: str, count: int | None, seconds: float | None, batch: int | None = None) -> dict:
    """One line of the CSV."""
    return {"what": what, "arm": arm, "rows": count, "batch": batch,
            "seconds": None if seconds is None else round(seconds, 5)}  # fmt: skip


def main() -> None:
    """Run the parts asked for and write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--captions", type=Path)
    parser.add_argument("--limit", type=int, help="only so many captions")
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the stores are written and removed again")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        lines = reading(Path(folder), given.rows, given.small, given.batch, given.batches)
        target = next(
            line["seconds"] for line in lines if line["what"] == "target" and line["arm"] == "large"
        )
        if given.captions is not None:
            lines += encoding(Path(folder), given.captions, given.limit)
    if given.resnet:
        lines += steps(given.batch, target)
    known = versions()
    write_csv(given.out, [{**line, **known} for line in lines])
    print(f"rows: {given.out}")


if __name__ == "__main__":
    main()
