"""WordNet: nouns and what they are kinds of, for ImageNet, Tiny ImageNet, CIFAR and classes of your own."""

from __future__ import annotations

import csv
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from counterpoint.names import hint
from counterpoint.similarity.taxonomy import Taxonomy

NOUN_DEPTH = 19  # edges on the longest way down from "entity" in WordNet 3.0
COLUMNS = ("wnid", "lemmas", "hypernyms")
SHOWN = 10


@dataclass(frozen=True)
class WordNet:
    """Nouns of WordNet by wnid: "n" and the eight-digit offset, which is also the ImageNet id.

    hypernyms: what each synset is a kind or an instance of, as wnids.
    lemmas: the words of each synset, the first of which names it.

    >>> words = {"n02084071": ["dog"], "n02121620": ["cat"], "n00001740": ["entity"]}
    >>> up = {"n02084071": ["n00001740"], "n02121620": ["n00001740"], "n00001740": []}
    >>> WordNet(up, words).find(["Cat", "n02084071"])
    ['n02121620', 'n02084071']
    """

    hypernyms: Mapping[str, Sequence[str]]
    lemmas: Mapping[str, Sequence[str]]
    depth: int = NOUN_DEPTH

    @classmethod
    def read(cls, path: str | Path | None = None) -> Self:
        """WordNet from a folder or a table.

        path: a folder with `data.noun`, as the Debian package `wordnet-base`, Princeton's `dict/` and nltk's
            `corpora/wordnet` have it; the `wordnet.zip` that nltk downloads; or a `.tsv` with the columns
            `wnid`, `lemmas` ("; " between) and `hypernyms` (spaces between). By default the first such folder
            or zip of `WNHOME`, /usr/share/wordnet and `nltk_data`.

        Raises ValueError where there is none, and by line where a file is not of that form.
        """
        place = _find() if path is None else Path(path).expanduser()
        if not place.exists():
            raise ValueError(f"there is no folder or file {place}")
        file: Path | zipfile.Path | None = place
        try:
            if place.is_file() and place.suffix.lower() != ".zip":
                return cls(*_read_table(place))
            file = _data_noun(place)
            if file is None:
                raise ValueError(f"{place} has no data.noun: it is not a folder of WordNet")
            return cls(*_read_data(file))
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
        except csv.Error as error:
            raise ValueError(f"{file} is not a table: {error}") from None
        # A flipped bit may also ask for a password, or for a compression that nobody knows: RuntimeError.
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise ValueError(f"{place} is no zip, or damaged: {error}") from None

    def taxonomy(self, wnids: Sequence[str]) -> Taxonomy:
        """The part of WordNet above these synsets, with WordNet's own depth."""
        up: dict[str, Sequence[str]] = {}
        frontier = list(wnids)
        while frontier:
            wnid = frontier.pop()
            if wnid in up:
                continue
            if wnid not in self.hypernyms:
                raise ValueError(
                    f"WordNet has no synset {wnid!r}, a hypernym of another one: is its file cut short?"
                )
            up[wnid] = self.hypernyms[wnid]
            frontier.extend(up[wnid])
        return Taxonomy(up, depth=self.depth)

    def order(self) -> dict[str, str]:
        """A name for each synset, by which nltk chooses between equally deep shared hypernyms."""
        return {wnid: words[0].replace(" ", "_").lower() + ".n" for wnid, words in self.lemmas.items()}

    def find(self, names: Sequence[str], senses: Mapping[str, str] | None = None) -> list[str]:
        """The synset of each class name, as wnids.

        A name may be a wnid, or a noun that names one synset only; underscores and case do not count, and of
        "goldfish, Carassius auratus" the part before the comma is tried too.
        senses: the wnids of other names. Those of CIFAR-10 and CIFAR-100 are known.

        Raises ValueError that lists names which are not in WordNet, each with the nearest, and names with
        several senses, each with their wnids.
        """
        known, words = _cifar(), self._by_word()
        given = {_plain(name): wnid for name, wnid in (senses or {}).items()}
        found: list[str] = []
        faults: list[str] = []
        bad = 0
        for name in names:
            # A wnid is its own name; words come with or without their synonyms.
            tries = [_plain(name), _plain(name.split(",")[0])]
            chosen = [given[one] for one in tries if one in given]
            choices = next((words[one] for one in tries if one in words), [])
            chosen += [one for one in (name, known.get(tries[0], "")) if one in self.hypernyms]
            chosen += choices if len(choices) == 1 else []
            if chosen and chosen[0] in self.hypernyms:
                found.append(chosen[0])
                continue
            bad += 1
            # The nearest of 117,000 nouns takes a second to find: not for names that are not told.
            if len(faults) == SHOWN:
                continue
            if chosen:
                faults.append(f"the sense {chosen[0]!r} of {name!r} is not in WordNet")
            else:
                faults.append(_fault(name, choices, words))
        if faults:
            more = f"; and {bad - SHOWN} more" if bad > SHOWN else ""
            raise ValueError(f"{'; '.join(faults)}{more}")
        return found

    def _by_word(self) -> dict[str, list[str]]:
        words: dict[str, list[str]] = {}
        for wnid, lemmas in self.lemmas.items():
            for lemma in dict.fromkeys(_plain(lemma) for lemma in lemmas):
                words.setdefault(lemma, []).append(wnid)
        return words


@lru_cache(maxsize=2)
def load_wordnet(path: str | None) -> WordNet:
    """`WordNet.read`, kept for the next graph of the process."""
    return WordNet.read(path)


def read_senses(path: str | Path) -> dict[str, str]:
    """The wnids of class names, from a JSON file.

    path: `{"crane": "n02012849"}`, a list of such pairs, or lists of pairs by the name of a class set.

    Raises ValueError on another form, or a name with two wnids.
    """
    file = Path(path).expanduser()
    try:
        given = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"senses {file} cannot be read: {error}") from None
    senses: dict[str, str] = {}
    for name, wnid in _pairs(given):
        if not isinstance(name, str) or not isinstance(wnid, str):
            raise ValueError(f"senses {file}: expected a class name and a wnid, got {name!r} and {wnid!r}")
        if senses.setdefault(name, wnid) != wnid:
            raise ValueError(f"senses {file}: {name!r} has two wnids, {senses[name]!r} and {wnid!r}")
    if not senses:
        raise ValueError(f"senses {file} has no pair of a class name and a wnid")
    return senses


def _pairs(given: Any) -> list[tuple[Any, Any]]:
    if isinstance(given, dict):
        return [
            pair
            for name, value in given.items()
            for pair in (_pairs(value) if isinstance(value, list) else [(name, value)])
        ]
    if not isinstance(given, list):
        return [(given, None)]
    # Lists of bare wnids, as a class set in label order has them, say nothing of names.
    return [(one[0], one[1]) for one in given if isinstance(one, list) and len(one) == 2]


def _fault(name: str, choices: Sequence[str], words: Mapping[str, Sequence[str]]) -> str:
    if choices:
        listed = ", ".join(choices[:5]) + (", ..." if len(choices) > 5 else "")
        return f"{name!r} has {len(choices)} senses in WordNet ({listed}): give its wnid in senses"
    return f"{name!r} is not in WordNet: {hint(_plain(name), words)}"


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


@lru_cache(maxsize=1)
def _cifar() -> dict[str, str]:
    file = Path(__file__).with_name("cifar_senses.json")
    return {_plain(name): wnid for name, wnid in json.loads(file.read_text(encoding="utf-8")).items()}


def _find() -> Path:
    home = os.environ.get("WNHOME")
    tried = [Path(home)] if home else []
    tried += [Path("/usr/share/wordnet")]
    data = [Path(part) for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    data += [Path.home() / "nltk_data", Path("/usr/share/nltk_data"), Path("/usr/local/share/nltk_data")]
    # nltk leaves the zip that it downloads as it is.
    tried += [folder / "corpora" / name for folder in data for name in ("wordnet", "wordnet.zip")]
    for place in tried:
        if place.is_file() or _data_noun(place) is not None:
            return place
    raise ValueError(
        "WordNet is not found: give path, a folder with data.noun (Debian's package wordnet-base, or nltk's "
        f"corpora/wordnet), or nltk's wordnet.zip; tried {', '.join(map(str, tried))}"
    )


def _data_noun(place: Path) -> Path | zipfile.Path | None:
    """The nouns in a folder or a zip of WordNet; None where there are none."""
    root: Path | zipfile.Path = zipfile.Path(place) if place.is_file() else place
    tries = (root / "data.noun", root / "dict" / "data.noun", root / "wordnet" / "data.noun")
    return next((file for file in tries if file.is_file()), None)


def _read_data(file: Path | zipfile.Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The database form of wndb(5WN)."""
    hypernyms: dict[str, list[str]] = {}
    lemmas: dict[str, list[str]] = {}
    with file.open("r", encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            if line.startswith("  "):
                continue  # the licence
            try:
                fields = line.partition("|")[0].split()
                wnid, count = "n" + fields[0], int(fields[3], 16)
                lemmas[wnid] = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
                start = 5 + 2 * count
                pointers = [fields[start + 4 * k : start + 4 * k + 3] for k in range(int(fields[start - 1]))]
                hypernyms[wnid] = [
                    "n" + to for sign, to, kind in pointers if sign in ("@", "@i") and kind == "n"
                ]
            except (IndexError, ValueError):
                raise ValueError(f"{file}, line {number} is not a line of WordNet's data.noun") from None
    if not lemmas:
        raise ValueError(f"{file} has no synsets")
    return hypernyms, lemmas


def _read_table(file: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    hypernyms: dict[str, list[str]] = {}
    lemmas: dict[str, list[str]] = {}
    with file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        for name in COLUMNS:
            if name not in (reader.fieldnames or []):
                raise ValueError(
                    f"{file} lacks the column {name!r}; a table of WordNet has {', '.join(COLUMNS)}"
                )
        for number, row in enumerate(reader, start=1):
            words = [word.strip() for word in (row["lemmas"] or "").split(";") if word.strip()]
            if not row["wnid"] or not words:
                raise ValueError(f"{file}, row {number} has no wnid or no lemmas")
            lemmas[row["wnid"]], hypernyms[row["wnid"]] = words, (row["hypernyms"] or "").split()
    if not lemmas:
        raise ValueError(f"{file} has no rows")
    return hypernyms, lemmas
