"""The examples of docs/similarity.md run, and its numbers are what the graphs give."""

import doctest
import gzip
import json
import random
import re
import warnings
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from real_data import real_data

from counterpoint.similarity import ClassGraph, EmbeddingGraph, describe

PAGE = Path(__file__).parents[2] / "docs" / "similarity.md"
TAU_S = (0.05, 0.1, 0.2)


def test_the_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried > 30
    assert failed == 0


def table_rows(title: str) -> dict[int, list[tuple[float, float]]]:
    """Batch size to the pairs of percentages in the page's row of that graph."""
    rows = re.findall(rf"^\| {title} \| (\d+) \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        int(n): [(float(a), float(b)) for a, b in re.findall(r"([\d.]+) / ([\d.]+)", cells)]
        for n, cells in rows
    }


def share(target: torch.Tensor, tau_s: float) -> tuple[float, float]:
    """As the page has it, but without building the views: other samples count twice, the own one once."""
    weight = ((target.double() - 1) / tau_s).exp()
    own = weight.diagonal()
    total = 2 * weight.sum(dim=1) - own
    equal = 2 * (weight * (target > 0.9999)).sum(dim=1) - own
    return 100 * (own / total).mean().item(), 100 * (equal / total).mean().item()


def check_shares(title: str, batches: dict[int, list[torch.Tensor]]) -> None:
    rows = table_rows(title)
    assert sorted(rows) == [256, 1024, 4096]
    for n, targets in batches.items():
        for stated, tau_s in zip(rows[n], TAU_S, strict=True):
            got = torch.tensor([share(target, tau_s) for target in targets]).mean(dim=0)
            # Other batches than the page's: at most two points and a half apart.
            assert got.tolist() == pytest.approx(stated, abs=2.5), (title, n, tau_s)


def class_batches(graph: ClassGraph) -> dict[int, list[torch.Tensor]]:
    g = torch.Generator().manual_seed(77)
    classes = len(graph.table)
    out = {}
    for n, count in [(256, 6), (1024, 3), (4096, 1)]:
        draws = [ClassGraph(torch.randint(classes, (n,), generator=g), graph.table) for _ in range(count)]
        out[n] = [draw.batch(torch.arange(n)) for draw in draws]
    return out


@pytest.mark.slow
def test_the_numbers_of_imagenet():
    index = json.loads((real_data("imagenet-sample") / "imagenet_class_index.json").read_text())
    names = [index[str(i)][1] for i in range(1000)]
    labels = torch.arange(1000)
    means = {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="classes with one name")
        for template in ("a photo of a {}", "{}", "a {}"):
            graph = ClassGraph.from_names(labels, names, template=template)
            means[template] = describe(graph, labels)["mean"]
            if template == "a photo of a {}":
                check_shares("ImageNet class names", class_batches(graph))
                near = graph.batch(labels).fill_diagonal_(-1)
                assert names[int(near[names.index("tabby")].argmax())] == "chiton"
        names[names.index("tabby")] = "tabby_cat"
        near = ClassGraph.from_names(labels, names).batch(labels).fill_diagonal_(-1)
    cats = {names[i] for i in near[names.index("tabby_cat")].topk(4).indices.tolist()}
    assert cats == {"Siamese_cat", "tiger_cat", "Madagascar_cat", "Egyptian_cat"}
    text = PAGE.read_text(encoding="utf-8")
    stated = [
        re.search(pattern, text).group(1)
        for pattern in (
            r"off-diagonal mean of ([\d.]+) ",
            r"ImageNet mean is ([\d.]+),",
            r'with "a \{\}" it is ([\d.]+)\.',
        )
    ]
    assert list(means.values()) == pytest.approx([float(x) for x in stated], abs=0.002)


def test_the_numbers_of_cifar_100():
    schema = pq.read_schema(real_data("cifar100") / "test-00000-of-00001.parquet")
    names = json.loads(schema.metadata[b"huggingface"])["info"]["features"]["fine_label"]["names"]
    graph = ClassGraph.from_names(torch.arange(100), names)
    check_shares("CIFAR-100 class names", class_batches(graph))
    stated = re.search(r"CIFAR-100 the mean is ([\d.]+)\.", PAGE.read_text(encoding="utf-8"))
    assert describe(graph, torch.arange(100))["mean"] == pytest.approx(float(stated.group(1)), abs=0.002)


@pytest.mark.slow
def test_the_numbers_of_captions():
    with gzip.open(real_data("caption-text") / "captions.tsv.gz", "rt", encoding="utf-8") as file:
        captions = [line.rstrip("\n").split("\t")[2] for line in file][1:]
    graph = EmbeddingGraph.from_texts(random.Random(5).sample(captions, 1024))
    batches = {256: [graph.batch(ids) for ids in torch.arange(1024).split(256)]}
    batches[1024] = [graph.batch(torch.arange(1024))]
    check_shares("Flickr8k and COCO captions", batches)
    numbers = describe(graph, torch.arange(1024))
    assert numbers["mean"] == pytest.approx(0.07, abs=0.01)
    assert numbers["q95"] == pytest.approx(0.28, abs=0.02)
