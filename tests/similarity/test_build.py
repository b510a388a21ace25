"""The graphs a recipe names, built from samples."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from counterpoint.data.samples import Labels, Samples
from counterpoint.similarity import (
    GRAPHS,
    ClassGraph,
    EmbeddingGraph,
    InstanceGraph,
    LabelGraph,
    RandomGraph,
    ShuffledGraph,
    Similarity,
    SimilarityGraph,
    write_store,
)

FINE = Labels(torch.tensor([0, 2, 1, -1]), ["tabby_cat", "fire_truck", "persian_cat"])
COARSE = Labels(torch.tensor([0, 0, 1, -1]), ["animal", "vehicle"])
CAPTIONS = ["a cat", "a kitten", "a red truck", "a cat"]


def samples(labels=None, captions=None) -> Samples:
    return Samples(
        "pets", ["a", "b", "c", "d"], lambda i: Image.new("RGB", (8, 8)), labels or {}, captions=captions
    )


FULL = samples({"fine": FINE, "coarse": COARSE}, CAPTIONS)
IDS = torch.arange(4)


# One way to write each kind; a new kind needs an entry here.
FILES = Path(tempfile.mkdtemp())
(FILES / "kinds.yaml").write_text("thing: {cat: [tabby cat, persian cat], vehicle: [fire truck]}")
(FILES / "data.tsv").write_text(
    "wnid\tlemmas\thypernyms\nn1\tentity\t\nn2\tanimal; beast\tn1\nn3\tvehicle\tn1\n"
)
(FILES / "table.csv").write_text("id,price,shop\nd,4,\nc,3,x\nb,2,y\na,1,x\n")
GIVEN = np.arange(25.0).reshape(5, 5)
np.savez(FILES / "matrix.npz", matrix=GIVEN + GIVEN.T, keys=np.array(list("edcba")))
np.save(FILES / "vectors.npy", np.arange(1, 11, dtype=np.float16).reshape(5, 2))
(FILES / "keys.txt").write_text("e\nd\nc\nb\na\n")
(FILES / "edges.csv").write_text("a,b,weight\na,b,0.5\nb,c,0.25\n")
STORE = FILES / "store"
write_store(STORE, torch.eye(4), FULL.keys, name="corners")

WRITTEN = {
    "instance": {},
    "label": {"column": "coarse"},
    "class": {"template": "a {}"},
    "caption": {},
    "store": {"path": str(STORE)},
    "taxonomy": {"path": str(FILES / "kinds.yaml"), "measure": "wup"},
    "wordnet": {"path": str(FILES / "data.tsv"), "column": "coarse", "measure": "lch"},
    "metadata": {"path": str(FILES / "table.csv"), "key": "id", "numbers": ["price"], "categories": ["shop"]},
    "matrix": {"path": str(FILES / "matrix.npz")},
    "vectors": {"path": str(FILES / "vectors.npy"), "keys": str(FILES / "keys.txt")},
    "edges": {"path": str(FILES / "edges.csv")},
    "nearest": {"of": {"graph": "caption"}, "k": 1},
    "random_class": {"seed": 1},
    "random_sample": {"seed": 1},
    "sum": {"of": [{"graph": "label", "weight": 0.5}, {"graph": "caption", "weight": 0.5}]},
    "product": {"of": [{"graph": "label", "column": "coarse"}, {"graph": "caption"}]},
    "clip": {"of": {"graph": "caption"}, "low": 0.2},
    "power": {"of": {"graph": "caption"}, "exponent": 2},
    "threshold": {"of": {"graph": "caption"}, "least": 0.3},
}


def build(kind, data=FULL, column=None, **given) -> SimilarityGraph:
    return Similarity(graph=kind, **given).build(data, column)


@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_can_be_written_in_a_recipe_and_read_again(kind):
    section = Similarity(graph=kind, **WRITTEN[kind])
    again = Similarity.model_validate_json(section.model_dump_json())
    assert again == section
    graph = section.build(FULL)
    assert isinstance(graph, SimilarityGraph)
    assert graph.batch(IDS).shape == (4, 4)
    assert torch.equal(again.build(FULL).batch(IDS), graph.batch(IDS))


@pytest.mark.parametrize(
    ("kind", "column", "want", "name"),
    [
        ("instance", None, lambda: InstanceGraph(4), "instances"),
        ("label", None, lambda: LabelGraph(FINE.values), "labels (fine)"),
        ("label", "coarse", lambda: LabelGraph(COARSE.values), "labels (coarse)"),
        ("random_class", "coarse", lambda: RandomGraph("class", labels=COARSE.values, seed=3), None),
        ("random_sample", None, lambda: RandomGraph("sample", n=4, seed=3), "random per sample (seed 3)"),
        (
            "class",
            "coarse",
            lambda: ClassGraph.from_names(COARSE.values, COARSE.names),
            "class names (all-MiniLM-L6-v2)",
        ),
        ("caption", None, lambda: EmbeddingGraph.from_texts(CAPTIONS), "captions (all-MiniLM-L6-v2)"),
    ],
)
def test_a_builder_gives_the_graph_of_its_name(kind, column, want, name):
    graph = build(kind, column=column, **({"seed": 3} if kind.startswith("random") else {}))
    assert type(graph) is type(want())
    assert torch.equal(graph.batch(IDS), want().batch(IDS))
    assert graph.name == (name or want().name)


def test_the_template_is_used():
    plain = build("class").batch(IDS)
    other = build("class", template="{}").batch(IDS)
    assert (plain - other)[0, 1].abs() > 0.01


@pytest.mark.parametrize("kind", ["label", "class", "random_class"])
def test_missing_labels_are_named(kind):
    for data, words in [
        (
            samples(),
            f"a '{kind}' graph needs labels, but data 'pets' has none; it has neither labels nor captions",
        ),
        (samples(captions=CAPTIONS), "data 'pets' has none; it has captions$"),
        (
            samples({"y": Labels(torch.full((4,), -1), ["a"])}),
            "none of the 4 samples of data 'pets' has one in column 'y'",
        ),
    ]:
        with pytest.raises(ValueError, match=words):
            build(kind, data)
    with pytest.raises(ValueError, match="no label column 'breed'; it has fine, coarse"):
        build(kind, column="breed")


def test_missing_captions_are_named():
    with pytest.raises(ValueError, match=r"data 'pets' has none; it has label columns fine, coarse$"):
        build("caption", samples({"fine": FINE, "coarse": COARSE}))
    with pytest.raises(ValueError, match="neither labels nor captions"):
        build("caption", samples())
    with pytest.raises(ValueError, match=r"in data 'pets' the one of 'c' \(sample 2\) is ' '"):
        build("caption", samples(captions=["a", "b", " ", "c"]))


def test_a_column_of_its_own_comes_before_that_of_the_data():
    fine = {"graph": "label"}
    coarse = {"graph": "label", "column": "coarse"}
    graph = build("sum", column="fine", of=[{**fine, "weight": 0.5}, {**coarse, "weight": 0.5}])
    want = 0.5 * LabelGraph(FINE.values) + 0.5 * LabelGraph(COARSE.values)
    assert torch.equal(graph.batch(IDS), want.batch(IDS))
    assert graph.name == "0.5 * labels (fine) + 0.5 * labels (coarse)"


def test_noise_is_of_every_kind():
    clean, noisy = build("caption"), build("caption", noise=0.5, noise_seed=1)
    assert isinstance(noisy, ShuffledGraph)
    assert torch.equal(noisy.batch(IDS), clean.batch(noisy.sources))
    assert torch.equal(noisy.batch(IDS), ShuffledGraph(clean, 0.5, 1).batch(IDS))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"graph": "clas"}, "unknown graph 'clas'.*did you mean 'class'"),
        ({"graph": "class", "templat": "{}"}, r"similarity\.templat is not a key .*did you mean 'template'"),
        ({"graph": "caption", "template": "{}"}, r"similarity\.template is not a key .*graph 'caption'"),
        ({"graph": "label", "seed": 3}, r"similarity\.seed is not a key"),
        ({"graph": "random_class", "seed": "x"}, r"similarity\.seed: .*integer, got 'x'"),
        ({"graph": "sum"}, r"similarity\.of is missing"),
        ({"graph": "sum", "of": [{"graph": "captoin"}]}, "unknown graph 'captoin'.*'caption'"),
        ({"graph": "product", "of": [{"graph": "label", "weight": 2}]}, "weight is not a key"),
        ({"graph": "label", "noise": 1.5}, "noise"),
        ({"graph": "label", "noise": 0.5, "noise_seed": 2**63}, "noise_seed"),
    ],
)
def test_what_a_section_refuses(given, words):
    with pytest.raises(ValueError, match=words):
        Similarity(**given)


def test_sections_of_version_0_1_are_read():
    """They had every field written out, whether the graph used it or not."""
    old = {"graph": "caption", "encoder": "minilm", "template": "a photo of a {}", "seed": 0}
    assert Similarity(**old) == Similarity(graph="caption")
    assert Similarity(**{**old, "graph": "instance"}) == Similarity(graph="instance")


def test_a_matrix_of_classes_is_found_by_name(tmp_path):
    table = np.array([[1, 0.2, 0.7], [0.2, 1, 0.1], [0.7, 0.1, 1]])
    order = [2, 0, 1]
    names = np.array([FINE.names[i] for i in order])
    np.savez(tmp_path / "t.npz", table=table[np.ix_(order, order)], keys=names)
    want = ClassGraph(FINE.values, torch.from_numpy(table)).batch(IDS)
    assert torch.equal(build("matrix", path=str(tmp_path / "t.npz"), by="class").batch(IDS), want)
    np.save(tmp_path / "t.npy", table)  # in the order of the labels
    assert torch.equal(build("matrix", path=str(tmp_path / "t.npy"), by="class").batch(IDS), want)
    with pytest.raises(ValueError, match="has 3 rows for 2 classes"):
        build("matrix", path=str(tmp_path / "t.npy"), by="class", column="coarse")
    with pytest.raises(ValueError, match="lacks 2 of the 2 classes, the first is 'animal'"):
        build("matrix", path=str(tmp_path / "t.npz"), by="class", column="coarse")
    with pytest.raises(ValueError, match="needs labels"):
        build("matrix", samples(), path=str(tmp_path / "t.npz"), by="class")


def test_rows_of_files_are_found_by_key():
    """The files are of a, b, c, d and one more, in another order."""
    want = torch.from_numpy(GIVEN + GIVEN.T).float()[[4, 3, 2, 1]][:, [4, 3, 2, 1]]
    assert torch.equal(build("matrix", **WRITTEN["matrix"]).batch(IDS), want)
    vectors = torch.arange(1.0, 11.0).reshape(5, 2)[[4, 3, 2, 1]]
    got = build("vectors", **WRITTEN["vectors"]).batch(IDS)
    assert torch.allclose(got, EmbeddingGraph(vectors).batch(IDS))
    marked = FILES / "marked.txt"  # as editors on Windows write it
    marked.write_text("\ufeffa\r\nb\r\nc\r\nd\r\ne\r\n", encoding="utf-8", newline="")
    got = build("vectors", path=WRITTEN["vectors"]["path"], keys=str(marked)).batch(IDS)
    assert torch.allclose(got, EmbeddingGraph(torch.arange(1.0, 11.0).reshape(5, 2)).batch(IDS))
    metadata = build("metadata", **WRITTEN["metadata"], bandwidths={"price": 1.0}).batch(IDS)
    assert float(metadata[0, 2]) == pytest.approx(0.5 * np.exp(-2) + 0.5)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("taxonomy", {"path": "absent.csv"}, r"there is no file absent\.csv"),
        ("taxonomy", {"path": str(FILES / "kinds.yaml"), "column": "coarse"}, "has no class 'animal'.*"),
        ("taxonomy", {"path": "x", "measure": "wu"}, r"similarity\.measure: .*'path', 'lch' or 'wup'"),
        ("wordnet", {"path": str(FILES / "data.tsv")}, "'tabby_cat' is not in WordNet.*"),
        ("metadata", {"path": str(FILES / "table.csv"), "key": "id"}, "needs a column of numbers or"),
        ("matrix", {"path": str(FILES / "vectors.npy")}, r"a square matrix, got shape \(5, 2\)"),
        ("matrix", {"path": str(FILES / "edges.csv")}, "must be a file that ends in .npy, .npz"),
        ("vectors", {"path": str(FILES / "vectors.npy")}, "has 5 rows for 4 samples.*give keys"),
        ("nearest", {"of": {"graph": "caption"}, "k": 4}, "k is 4, but there are only 3 other samples"),
    ],
)
def test_what_graphs_from_files_refuse(kind, given, words):
    with pytest.raises(ValueError, match=words):
        build(kind, **given)


@pytest.mark.parametrize("kind", [">f4", ">i2", np.longdouble, np.float16, np.uint16])
def test_numbers_of_any_kind_and_keys_as_bytes(tmp_path, kind):
    np.savez(tmp_path / "m.npz", a=np.eye(4, dtype=kind), keys=np.array([b"d", b"c", b"b", b"a"]))
    assert build("matrix", path=str(tmp_path / "m.npz")).batch(IDS).equal(torch.eye(4))
    np.save(tmp_path / "v.npy", np.eye(4, dtype=kind))
    assert build("vectors", path=str(tmp_path / "v.npy")).batch(IDS).equal(torch.eye(4))


def test_damaged_arrays_are_named(tmp_path):
    whole = (FILES / "matrix.npz").read_bytes()
    for name, content in [("cut.npz", whole[:100]), ("cut.npy", b"\x93NUMPY"), ("x.safetensors", b"12")]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} cannot be read: "):
            build("matrix", path=str(tmp_path / name))
    (tmp_path / "keys.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(ValueError, match=r"keys\.txt is not UTF-8"):
        build("vectors", path=str(FILES / "vectors.npy"), keys=str(tmp_path / "keys.txt"))
    np.savez(tmp_path / "keys.npz", a=np.eye(4), keys=np.array("abcd"))
    with pytest.raises(ValueError, match=r"keys of .*keys\.npz must be texts of shape \(n,\)"):
        build("matrix", path=str(tmp_path / "keys.npz"))
    np.savez(tmp_path / "two.npz", a=np.eye(4), b=np.eye(4))
    with pytest.raises(ValueError, match="must hold one array beside keys, it holds a, b"):
        build("matrix", path=str(tmp_path / "two.npz"))
    np.savez(tmp_path / "twice.npz", a=np.eye(4), keys=np.array(list("abca")))
    with pytest.raises(ValueError, match="has the key 'a' twice"):
        build("matrix", path=str(tmp_path / "twice.npz"))
    np.savez(tmp_path / "lacks.npz", a=np.eye(3), keys=np.array(list("abc")))
    with pytest.raises(ValueError, match="lacks 1 of the 4 samples, the first is 'd'"):
        build("matrix", path=str(tmp_path / "lacks.npz"))
