"""nltk's WordNet similarities of random pairs of class synsets, as the CSV that the tests compare with.

    python benchmarks/wordnet_pairs.py FOLDER CLASSES.json OUT.csv

FOLDER has WordNet's database files (Debian: wordnet-base, in /usr/share/wordnet). nltk also wants the files
`lexnames` and `index.sense`, which that package lacks; neither matters to similarities.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

PAIRS = 200


def reader(folder: Path, scratch: Path):
    """nltk's reader on these files, laid out where nltk looks."""
    import nltk

    nltk.data.path.insert(0, str(scratch))
    home = scratch / "corpora" / "wordnet"
    shutil.copytree(folder, home)
    if not (home / "lexnames").exists():
        (home / "lexnames").write_text("".join(f"{k:02d}\tlex{k}\t1\n" for k in range(45)))
    (home / "index.sense").touch()  # maps senses between versions: not used here
    from nltk.corpus import wordnet

    return wordnet


def main(folder: str, classes: str, out: str) -> None:
    sets = json.loads(Path(classes).read_text())
    wnids = sorted({one if isinstance(one, str) else one[1] for part in sets.values() for one in part})
    rng = random.Random(0)
    pairs = [rng.sample(wnids, 2) for _ in range(PAIRS)]
    with tempfile.TemporaryDirectory() as scratch, Path(out).open("w", newline="") as stream:
        wordnet = reader(Path(folder), Path(scratch))
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["a", "b", "path", "lch", "wup"])
        for a, b in pairs:
            one, two = (wordnet.synset_from_pos_and_offset("n", int(wnid[1:])) for wnid in (a, b))
            values = [one.path_similarity(two), one.lch_similarity(two), one.wup_similarity(two)]
            writer.writerow([a, b, *(f"{value:.10f}" for value in values)])


if __name__ == "__main__":
    main(*sys.argv[1:])
