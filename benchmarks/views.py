"""Views per second of the in-memory pipeline against torchvision's PIL transforms in a two-worker DataLoader.

    python benchmarks/views.py [--count 4096] [--repeats 5]

Both make the same views of the same pictures, two per sample, in batches of 256, an epoch per repeat, in
turn. The pictures of torchvision's arm are decoded PIL images in memory, and its workers are started before
the clock is, so that only the making of views is compared. With COUNTERPOINT_DATA set, the 32-pixel pictures
are those of CIFAR-100 there; else, and at 64 pixels, they are generated.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

import torch
from measure import cpu_seconds, measure_in_turn, peak_memory, versions, write_csv
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

from counterpoint.data import SOURCES, Samples
from counterpoint.data.batches import batch_source
from counterpoint.data.memory import in_memory, tensor_picture
from counterpoint.data.pil_views import POLICIES, picture_transform
from counterpoint.data.views import ViewSpec, view_spec

BATCH = 256
WORKERS = 2
CASES = (("simclr", 32), ("simclr_small", 32), ("supcon", 32), ("simclr", 64))
OURS, THEIRS, THEIRS_V2 = "counterpoint", "torchvision", "torchvision v2"
SHOWN = {
    "views/s": "views_per_s",
    "ratio": "ratio",
    "fastest s": "fastest_s",
    "slowest s": "slowest_s",
    "CPU us": "cpu_us_per_view",
    "CPU ratio": "cpu_ratio",
    "MiB": "peak_mib",
}
OUT = Path(__file__).parent / "results" / "views.csv"


class Pairs(Dataset):
    """Two views of each PIL picture, as SimCLR code commonly makes them."""

    def __init__(self, pictures: list[Image.Image], transform: nn.Module | v1.Compose) -> None:
        self.pictures, self.transform = pictures, transform

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        return i, self.transform(self.pictures[i]), self.transform(self.pictures[i])


def classic(spec: ViewSpec) -> v1.Compose:
    """The spec in torchvision's first transforms API, the one most published code uses."""
    steps = [v1.RandomResizedCrop(spec.size, spec.crop_scale), v1.RandomHorizontalFlip(spec.flip)]
    if spec.auto_augment:
        steps.append(v1.AutoAugment(v1.AutoAugmentPolicy(POLICIES[spec.auto_augment].value)))
    if spec.jitters:
        steps.append(v1.RandomApply([v1.ColorJitter(*spec.strengths)], spec.jitter_p))
    if spec.grey_p:
        steps.append(v1.RandomGrayscale(spec.grey_p))
    if spec.blur_p:
        steps.append(v1.RandomApply([v1.GaussianBlur(spec.blur_kernel, spec.blur_sigma)], spec.blur_p))
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(spec.mean, spec.std)])


def generated(count: int, size: int) -> Samples:
    """Smooth colourful pictures."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = nn.functional.interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)
    tensor = (255 * smooth).round().to(torch.uint8)
    keys = [str(i) for i in range(count)]
    return Samples("generated", keys, lambda i: tensor_picture(tensor, i), tensor=tensor)


def cifar(count: int) -> Samples:
    """CIFAR-100 if it is there, else generated."""
    root = os.environ.get("COUNTERPOINT_DATA")
    if not root or not (Path(root) / "cifar100").is_dir():
        return generated(count, 32)
    samples = SOURCES["parquet"](path=Path(root) / "cifar100", split="test")
    return in_memory(samples.subset(range(min(count, len(samples)))))[0]


def loader(pictures: list[Image.Image], transform: nn.Module | v1.Compose) -> DataLoader:
    return DataLoader(
        Pairs(pictures, transform),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        persistent_workers=True,
    )


def drain(batches: object) -> None:
    for _ in batches:
        pass


def case(preset: str, size: int, samples: Samples, repeats: int) -> list[dict[str, object]]:
    """The rows of one preset and picture size."""
    spec = view_spec(preset, size=size)
    pictures = [samples.picture(i) for i in range(len(samples))]
    source = batch_source(samples, spec, BATCH)
    old, new = loader(pictures, classic(spec)), loader(pictures, picture_transform(spec))
    epochs = iter(range(10_000))
    arms = {
        OURS: lambda: drain(source.epoch(next(epochs))),
        THEIRS: lambda: drain(old),
        THEIRS_V2: lambda: drain(new),
    }
    seconds = measure_in_turn(arms, repeats, warmup=1)
    cpu = measure_in_turn(arms, repeats, warmup=0, clock=cpu_seconds)
    views = source.steps_per_epoch * BATCH * spec.count
    base, cpu_base = statistics.median(seconds[THEIRS]), statistics.median(cpu[THEIRS])
    return [
        {
            "pictures": samples.name,
            "preset": preset,
            "size": size,
            "arm": name,
            "workers": 0 if name == OURS else WORKERS,
            "views": views,
            "repeats": repeats,
            "median_s": round(statistics.median(times), 4),
            "fastest_s": round(min(times), 4),
            "slowest_s": round(max(times), 4),
            "views_per_s": round(views / statistics.median(times)),
            "ratio": round(base / statistics.median(times), 2),
            "cpu_us_per_view": round(1e6 * statistics.median(cpu[name]) / views, 1),
            "cpu_ratio": round(cpu_base / statistics.median(cpu[name]), 2),
            "peak_mib": round(peak_memory(arms[name]) or 0) or "",
            **versions(),
        }
        for name, times in seconds.items()
    ]


def main() -> None:
    """Run all cases, print the table and write the CSV."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4096, help="pictures per epoch")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    small, large = cifar(given.count), generated(given.count, 64)
    print(f"{'preset':<14}{'size':>5}  {'arm':<16}" + "".join(f"{title:>11}" for title in SHOWN))
    rows = []
    for preset, size in CASES:
        for row in case(preset, size, small if size == 32 else large, given.repeats):
            rows.append(row)
            shown = "".join(f"{row[column]:>11}" for column in SHOWN.values())
            print(f"{preset:<14}{size:>5}  {row['arm']:<16}{shown}", flush=True)
    write_csv(OUT, rows)
    print(f"rows: {OUT}")


if __name__ == "__main__":
    main()
