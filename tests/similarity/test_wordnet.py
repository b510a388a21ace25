"""WordNet's similarities against nltk's numbers, its files, and class names."""

import csv
import json
import math
import zipfile
from pathlib import Path

import pytest
import torch
from real_data import real_data

from counterpoint.data.samples import Labels, Samples
from counterpoint.similarity import wordnet as module
from counterpoint.similarity.build_files import wordnet
from counterpoint.similarity.taxonomy import Taxonomy
from counterpoint.similarity.wordnet import NOUN_DEPTH, WordNet, read_senses

PAIRS = Path(__file__).with_name("nltk_pairs.csv")
# Three synsets in the form of wndb(5WN), with an instance and a pointer to an adjective.
DATA = """  1 This software and database is being provided
00001740 03 n 01 entity 0 000 | that which is
00015388 03 n 02 animal 0 living_thing 1 002 @ 00001740 n 0000 + 00010000 a 0101 | an animal
02084071 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 002 @ 00015388 n 0000 ~ 02085272 n 0000 | a dog
02099999 05 n 02 Laika 0 chap 0 001 @i 02084071 n 0000 | the dog
10114209 18 n 02 dog 0 chap 0 001 @ 00001740 n 0000 | a dull man
"""


@pytest.fixture(scope="module")
def table() -> WordNet:
    return WordNet.read(real_data("wordnet") / "wordnet30_noun_closure.tsv")


@pytest.mark.parametrize("measure", ["path", "lch", "wup"])
def test_200_pairs_have_the_numbers_of_nltk(table, measure):
    """The CSV is what nltk 3.10.4 gives on the files of wordnet-base 3.0: benchmarks/wordnet_pairs.py."""
    rows = list(csv.DictReader(PAIRS.open()))
    assert len(rows) == 200
    wnids = list(dict.fromkeys(row[side] for row in rows for side in ("a", "b")))
    place = {wnid: k for k, wnid in enumerate(wnids)}
    found = table.taxonomy(wnids).similarity(wnids, measure, table.order()).double()
    scale = math.log(2 * NOUN_DEPTH) if measure == "lch" else 1.0
    for row in rows:
        value = scale * float(found[place[row["a"]], place[row["b"]]])
        assert value == pytest.approx(float(row[measure]), abs=1e-6), row


def test_all_class_sets_are_placed(table):
    sets = json.loads((real_data("wordnet") / "class_wnids.json").read_text())
    for name in ("cifar10", "cifar100"):
        assert table.find([one for one, _ in sets[name]]) == [wnid for _, wnid in sets[name]]
    for name in ("tiny-imagenet-200", "imagenet-1k"):
        assert table.find(sets[name]) == sets[name]


def test_cats_are_nearer_to_dogs_than_to_lorries(table):
    names = ["tiger", "leopard", "bus"]
    wnids = table.find(names)
    for measure in ("path", "lch", "wup"):
        g = table.taxonomy(wnids).similarity(wnids, measure)
        assert g[0, 1] > g[0, 2] + 0.2, measure


def test_database_files_are_read(tmp_path):
    (tmp_path / "data.noun").write_text(DATA)
    net = WordNet.read(tmp_path)
    assert net.lemmas["n02084071"] == ["dog", "domestic dog", "Canis familiaris"]
    assert dict(net.hypernyms) == {
        "n00001740": [],
        "n00015388": ["n00001740"],
        "n02084071": ["n00015388"],
        "n02099999": ["n02084071"],
        "n10114209": ["n00001740"],
    }
    assert net.find(["laika", "Living_thing", "domestic dog, pet"]) == ["n02099999", "n00015388", "n02084071"]
    kinds = net.taxonomy(["n02099999"])
    assert isinstance(kinds, Taxonomy)
    assert kinds.depth == NOUN_DEPTH
    assert kinds.similarity(["n02099999", "n00001740"])[0, 1] == pytest.approx(1 / 4)


def test_missing_and_ambiguous_names_are_named(tmp_path):
    (tmp_path / "data.noun").write_text(DATA)
    net = WordNet.read(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"'anmal' is not in WordNet: .*did you mean 'animal'\?; 'chap' has 2 "
        r"senses in WordNet \(n02099999, n10114209\): give its wnid in senses",
    ):
        net.find(["anmal", "laika", "dog", "chap"])
    assert net.find(["dog"], {"Dog": "n10114209"}) == ["n10114209"]
    with pytest.raises(ValueError, match="sense 'n09999999' of 'dog' is not in WordNet"):
        net.find(["dog"], {"dog": "n09999999"})


def test_near_names_are_looked_for_where_they_are_told(monkeypatch):
    """In the whole of WordNet each takes a second."""
    looked = []
    hint = module.hint
    monkeypatch.setattr(module, "hint", lambda name, known: looked.append(name) or hint(name, known))
    net = WordNet({"n1": []}, {"n1": ["dog"]})
    names = [f"dogs {i}" for i in range(25)]
    with pytest.raises(ValueError, match=r"'dogs 0' is not .*'dogs 9' is not in WordNet: .*; and 15 more$"):
        net.find(["dog", *names])
    assert looked == names[:10]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("data.noun", "hello world\n", r"line 1 is not a line of WordNet's data\.noun"),
        ("data.noun", DATA.replace("@ 00001740 n 0000 | a dull man", "@ 00"), "line 6 is not a line"),
        ("data.noun", "  licence\n", "has no synsets"),
        ("x.tsv", "wnid\tlemmas\n", "lacks the column 'hypernyms'"),
        ("x.tsv", "wnid\tlemmas\thypernyms\nn1\t\t\n", "row 1 has no wnid or no lemmas"),
        ("x.tsv", "wnid\tlemmas\thypernyms\n", "has no rows"),
        ("x.tsv", "wnid\tlemmas\thypernyms\nn1\t" + "x" * 200_000 + "\t\n", r"x\.tsv is not a table"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        WordNet.read(tmp_path if name == "data.noun" else tmp_path / name)


def test_files_that_are_not_utf8_are_named(tmp_path):
    for name, head in (("data.noun", b""), ("x.tsv", b"wnid\tlemmas\thypernyms\n")):
        (tmp_path / name).write_bytes(head + b"\xff\xfe")
        with pytest.raises(ValueError, match=f"{name} is not UTF-8"):
            WordNet.read(tmp_path if name == "data.noun" else tmp_path / name)


def test_where_wordnet_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WNHOME", raising=False)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path / "none"))
    home = tmp_path / "nltk_data" / "corpora" / "wordnet"
    if not Path("/usr/share/wordnet").exists() and not Path("/usr/share/nltk_data").exists():
        with pytest.raises(ValueError, match="WordNet is not found: give path"):
            WordNet.read()
    home.mkdir(parents=True)
    (home / "data.noun").write_text(DATA)
    monkeypatch.setenv("WNHOME", str(home))
    assert len(WordNet.read().lemmas) == 5
    with pytest.raises(ValueError, match=r"has no data\.noun"):
        WordNet.read(tmp_path)
    with pytest.raises(ValueError, match="there is no folder or file"):
        WordNet.read(tmp_path / "absent")


def test_the_zip_that_nltk_downloads(tmp_path, monkeypatch):
    file = tmp_path / "corpora" / "wordnet.zip"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("wordnet/README", "WordNet")
        made.writestr("wordnet/data.noun", DATA)
    (tmp_path / "data.noun").write_text(DATA)
    want = WordNet.read(tmp_path)
    assert WordNet.read(file) == want
    if not Path("/usr/share/wordnet").exists():
        monkeypatch.delenv("WNHOME", raising=False)
        monkeypatch.setenv("NLTK_DATA", str(tmp_path))
        assert WordNet.read() == want
    content = file.read_bytes()
    place = content.index(b"data.noun") + 40  # in what is packed
    file.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
    with pytest.raises(ValueError, match=r"wordnet\.zip is no zip, or damaged"):
        WordNet.read(file)
    file.write_bytes(content[:100])
    with pytest.raises(ValueError, match=r"wordnet\.zip is no zip, or damaged: File is not a zip file"):
        WordNet.read(file)
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("README", "")
    with pytest.raises(ValueError, match=r"wordnet\.zip has no data\.noun"):
        WordNet.read(file)


def test_ids_that_the_data_has_choose_the_sense(tmp_path):
    (tmp_path / "data.noun").write_text(DATA)
    values = torch.tensor([0, 1])

    def graph(ids, **arguments):
        labels = Labels(values, ["chap", "domestic dog"], ids=ids)
        samples = Samples("made", ["a", "b"], lambda i: None, labels={"label": labels})
        return wordnet(samples, path=str(tmp_path), **arguments).batch(values)[0, 1]

    with pytest.raises(ValueError, match="'chap' has 2 senses"):
        graph(None)
    # From Laika to the dog it is one step, from the dull man three, by way of entity and animal.
    assert graph(["n02099999", "n02084071"]) == pytest.approx(1 / 2)
    assert graph(["n10114209", "n02084071"]) == pytest.approx(1 / 4)
    # Folders are not always called by ids, and what is asked for comes first.
    with pytest.raises(ValueError, match="'chap' has 2 senses"):
        graph(["chaps", "dogs"])
    senses = tmp_path / "senses.json"
    senses.write_text('{"chap": "n02099999"}')
    assert graph(["n10114209", "n02084071"], senses=str(senses)) == pytest.approx(1 / 2)


def test_a_hypernym_that_is_missing_is_named():
    net = WordNet({"n1": ["n2"]}, {"n1": ["dog"]})
    with pytest.raises(ValueError, match="no synset 'n2', a hypernym"):
        net.taxonomy(["n1"])


def test_senses_files(tmp_path):
    file = tmp_path / "s.json"
    for given in ({"dog": "n1"}, [["dog", "n1"]], {"mine": [["dog", "n1"]], "imagenet": ["n2"]}):
        file.write_text(json.dumps(given))
        assert read_senses(file) == {"dog": "n1"}
    for given, words in [
        ([["dog", "n1"], ["dog", "n2"]], "two wnids"),
        ([], "no pair"),
        ({"a": 1}, "wnid, got"),
    ]:
        file.write_text(json.dumps(given))
        with pytest.raises(ValueError, match=words):
            read_senses(file)
    file.write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        read_senses(file)


def test_a_table_of_1000_classes_is_symmetric(table):
    wnids = json.loads((real_data("wordnet") / "class_wnids.json").read_text())["imagenet-1k"][:150]
    for measure in ("path", "lch", "wup"):
        g = table.taxonomy(wnids).similarity(wnids, measure, table.order())
        assert torch.equal(g, g.T)
        assert float(g.min()) >= 0
        assert float(g.fill_diagonal_(0).max()) < 1
