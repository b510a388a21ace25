"""Seconds of the kNN and linear protocols against scikit-learn on the same features.

    python benchmarks/probes.py [--repeats 3] [--only knn|linear] [--no-peers]

Features are generated: correlated and not negative, as a network's are. The linear arms fit one strength, the
one our grid chooses; `grid` is the whole protocol with its choice among seven. Accuracy stands beside each
time, so that an arm cannot win by stopping early. `cpu_seconds` is processor time over all threads: where
other programs share the machine, run with OMP_NUM_THREADS=1 and read that column.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from measure import measure_in_turn, versions, write_csv
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from counterpoint.data.samples import Labels
from counterpoint.evaluate import Features, knn, linear_probe

KNN = ((4000, 1000, 64, 10), (50_000, 5000, 512, 100))
LINEAR = ((4000, 1000, 64, 10), (50_000, 5000, 256, 100))
K = (1, 5, 20, 200)
OUT = Path(__file__).parent / "results" / "probes.csv"


def split(n: int, d: int, classes: int, seed: int) -> Features:
    """Features of one split; the classes are the same for every seed."""
    fixed, g = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    middle = torch.randn(classes, d, generator=fixed)
    mix = torch.randn(d, d, generator=fixed) * torch.logspace(0, -2, d)[:, None]
    y = torch.randint(classes, (n,), generator=g)
    h = ((middle[y] + 3 * torch.randn(n, d, generator=g)) @ mix + 1).relu()
    names = [str(c) for c in range(classes)]
    return Features(h, [str(i) for i in range(n)], {"class": Labels(y, names)}, f"split-{seed}")


def knn_arms(train: Features, test: Features) -> dict[str, Callable[[], float]]:
    def theirs() -> float:
        peer = KNeighborsClassifier(20, metric="cosine", algorithm="brute")
        peer.fit(train.h.numpy(), train.labels["class"].values.numpy())
        return float(peer.score(test.h.numpy(), test.labels["class"].values.numpy()))

    return {
        "counterpoint, k=1 5 20 200": lambda: knn(train, test, k=K, weights="uniform")[2].value,
        "counterpoint, k=20": lambda: knn(train, test, k=20, weights="uniform")[0].value,
        "scikit-learn, k=20": theirs,
    }


def linear_arms(train: Features, test: Features) -> dict[str, Callable[[], float]]:
    chosen = linear_probe(train, test).settings["l2_chosen"]
    assert isinstance(chosen, float)

    def theirs() -> float:
        scaler = StandardScaler()
        x = scaler.fit_transform(train.h.numpy())
        peer = LogisticRegression(C=1 / (chosen * len(x)), max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            peer.fit(x, train.labels["class"].values.numpy())
        return float(peer.score(scaler.transform(test.h.numpy()), test.labels["class"].values.numpy()))

    return {
        "counterpoint, grid": lambda: linear_probe(train, test).value,
        "counterpoint, one l2": lambda: linear_probe(train, test, l2=chosen).value,
        "scikit-learn, one l2": theirs,
    }


def keep(
    accuracy: dict[str, float], busy: dict[str, list[float]], name: str, arm: Callable[[], float]
) -> None:
    """Run the arm once; keep what it reached and the processor time it took."""
    begin = time.process_time()
    accuracy[name] = arm()
    busy.setdefault(name, []).append(time.process_time() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("knn", "linear"))
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    rows = []
    for task, sizes, arms_of in (("knn", KNN, knn_arms), ("linear", LINEAR, linear_arms)):
        if options.only not in (None, task):
            continue
        for n, n_test, d, classes in sizes:
            train, test = split(n, d, classes, 1), split(n_test, d, classes, 2)
            accuracy: dict[str, float] = {}
            busy: dict[str, list[float]] = {}
            arms = {
                name: partial(keep, accuracy, busy, name, arm)
                for name, arm in arms_of(train, test).items()
                if options.peers or name.startswith("counterpoint")
            }
            seconds = measure_in_turn(arms, options.repeats, warmup=int(n < 10_000))
            for name in arms:
                row = {
                    "task": task, "n": n, "n_test": n_test, "d": d, "classes": classes, "arm": name,
                    "seconds": round(statistics.median(seconds[name]), 3),
                    "cpu_seconds": round(statistics.median(busy[name][-options.repeats :]), 3),
                    "accuracy": round(accuracy[name], 4),
                }  # fmt: skip
                print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                rows.append(row | versions())
    if options.only is None and options.peers:
        write_csv(OUT, rows)


if __name__ == "__main__":
    main()
