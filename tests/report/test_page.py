import json
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_runs import METHODS, NAMES, Method, make_runs, picture, write_metrics
from PIL import Image

from counterpoint.evaluate.record import load_results
from counterpoint.report import write_report
from counterpoint.report.runs import read_run

VOID = {"meta", "img", "br", "link", "input", "hr"}
SECTIONS = ("answer", "table", "curves", "neighbours", "classes", "gallery", "made")


class Page(HTMLParser):
    """The parts of a page that the tests look at; refuses tags that do not close in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self.open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag not in VOID:
            self.open.append((tag, found.get("id")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag, f"</{tag}> is out of order"

    def handle_data(self, data: str) -> None:
        names = [name for name, _ in self.open]
        if "td" in names or "th" in names:
            self.cells[-1][-1] += data
        part = next((name for tag, name in self.open if tag in ("header", "section")), None)
        if part and "style" not in names:
            self.texts[part] = self.texts.get(part, "") + data

    def text(self, part: str) -> str:
        return " ".join(self.texts.get(part, "").split())

    def row(self, name: str) -> list[str]:
        """The cells of the first row that starts with this name."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.cells]
        return next(row for row in rows if row and row[0].startswith(name))


Write = Callable[..., Page]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(folders: Sequence[Path], **options: object) -> Page:
        out = write_report(
            folders, tmp_path / "page.html", **({"title": "A look", "overwrite": True} | options)
        )
        return Page(out.read_text(encoding="utf-8"))

    return call


@pytest.fixture(scope="module")
def full(runs: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("page") / "page.html"
    return write_report(runs, out, title="What captions change", picture=picture).read_text(encoding="utf-8")


def test_page_is_well_formed_and_has_every_section(full: str) -> None:
    page = Page(full)
    assert [i for i in page.ids if i in SECTIONS] == list(SECTIONS)
    assert len(page.ids) == len(set(page.ids))
    targets = {a["href"] for tag, a in page.tags if tag == "a"}
    assert targets <= {f"#{name}" for name in SECTIONS}
    # Every reference inside a plot points at something on the page.
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', full))
    assert used - {"table"} <= set(page.ids)


def test_page_needs_nothing_beside_it(full: str) -> None:
    page = Page(full)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert "@import" not in full
    assert not re.search(r"https?://", full)
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has a script in {name}"
            if name in ("src", "href") and value is not None:
                assert value.startswith(("#", "data:image/")), f"{tag} {name}={value[:60]}"
    assert all(not url.startswith(("http", "//")) for url in re.findall(r"url\(([^)]*)\)", full))


def test_page_is_small_and_holds_the_pictures(full: str) -> None:
    assert len(full.encode()) < 3_000_000
    assert full.count("<img ") == 6 + 6 * 3 * 5


def test_noisy_pictures_stay_within_the_size(runs: Sequence[Path], tmp_path: Path) -> None:
    def noise(key: str) -> Image.Image:
        rng = np.random.default_rng(int(key.split("/")[1]))
        return Image.fromarray(rng.integers(0, 256, (400, 500, 3), dtype=np.uint8))

    out = write_report(runs, tmp_path / "page.html", title="Noise", picture=noise)
    assert out.stat().st_size < 3_000_000
    assert "<img " in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", [method.name for method in METHODS])
def test_table_holds_the_means_of_the_results(full: str, runs: Sequence[Path], method: str) -> None:
    values: dict[tuple[str, str], list[float]] = {}
    for folder in runs:
        if folder.parent.name == method:
            for result in load_results(folder / "results.json"):
                if result.settings.get("k") in (20, None):
                    values.setdefault((result.protocol, str(result.settings["column"])), []).append(
                        result.value
                    )
    measured = [values[protocol, column] for protocol in ("knn", "linear") for column in NAMES]
    expected = [
        f"{100 * statistics.mean(seeds):.1f}± {100 * statistics.stdev(seeds):.1f}" for seeds in measured
    ]
    row = Page(full).row(method)
    assert row[0] == f"{method}3 seeds"
    assert [cell.removeprefix("≈ ") for cell in row[1:13]] == expected
    assert row[13] == "1 min 23 s"


def test_best_and_close_cells_are_marked(full: str, runs: Sequence[Path]) -> None:
    page = Page(full)
    marked = [a.get("class") for tag, a in page.tags if tag == "td"]
    assert marked.count("best") == 12
    from counterpoint.report.runs import read_methods
    from counterpoint.report.tables import build_table

    cells = [cell for row in build_table(read_methods(runs)).cells.values() for cell in row.values()]
    assert marked.count("close") == sum(cell.close for cell in cells) > 0


def test_answer_names_the_best_and_its_gain(full: str) -> None:
    text = Page(full).text("answer")
    assert "supcon is best on object (" in text
    assert re.search(r"points above the baseline", text)
    assert "The baseline infonce has the highest mean on" in text
    assert "Clearly below: " in text


def test_names_are_escaped_everywhere(write: Write, tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    names = dict(NAMES) | {"object": (*(f"{evil}{i}" for i in range(9)), "</b>$x_1$ & co")}
    methods = [
        Method(f"{evil} & {method.name}", method.objective | {"tau": evil}, method.weights,
               None if method.similarity is None else {"graph": evil, "encoder": evil}, method.related)
        for method in METHODS
    ]  # fmt: skip
    folders = []
    for place, method in enumerate(methods):
        folders += make_runs(
            tmp_path / str(place), [method], (0, 1), 400, 900, names, [f"{evil} in a caption"] * 400
        )
    page = write(folders, title=f"{evil} title", picture=picture)
    assert "script" not in {tag for tag, _ in page.tags}
    for part in ("answer", "table", "classes", "gallery", "made"):
        assert evil in page.text(part), part
    assert f"{evil} in a caption" in page.text("gallery")
    assert "</b>$x_1$ & co" in page.text("classes")


def test_incomplete_runs_are_listed_and_left_out_of_the_means(
    runs: Sequence[Path], write: Write, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(f, tmp_path / f.parent.name / f.name)) for f in runs]
    (folders[1] / "results.json").unlink()
    (folders[4] / "results.json").write_text('[{"protocol": "knn"')
    (folders[5] / "recipe.yaml").unlink()
    (folders[8] / "features.npz").write_bytes(b"PK not an archive")
    page = write(folders, picture=picture)
    text = page.text("answer")
    assert "infonce, seed 1: no results.json. It counts in no table." in text
    assert "supcon, seed 1: results.json is not JSON" in text
    assert "supcon, seed 2: no recipe.yaml" in text
    assert "xclr-captions seed 2: " in text
    assert "is not an npz file of features" in text
    assert page.row("infonce")[0] == "infonce2 seeds"
    kept = [r.value for f in (folders[0], folders[2]) for r in load_results(f / "results.json")
            if r.protocol == "linear" and r.settings["column"] == "place"]  # fmt: skip
    assert f"{100 * np.mean(kept):.1f}" in page.row("infonce")[12]


def test_folder_without_anything_is_listed(runs: Sequence[Path], write: Write, tmp_path: Path) -> None:
    empty = tmp_path / "later" / "seed-3"
    empty.mkdir(parents=True)
    page = write([*runs, empty])
    assert "later, seed 3: no recipe.yaml; no results.json; no metrics.csv" in page.text("answer")
    assert page.row("later")[0] == "laterno results"


def test_collapse_and_chance_are_warned_of(runs: Sequence[Path], write: Write, tmp_path: Path) -> None:
    folders = [Path(shutil.copytree(f, tmp_path / f.parent.name / f.name)) for f in runs]
    write_metrics(folders[0] / "metrics.csv", METHODS[0], 0, learns=False)
    lines = (folders[7] / "metrics.csv").read_text().splitlines()
    place = lines[0].split(",").index("spread")
    last = lines[-1].split(",")
    last[place] = "0.004"
    (folders[7] / "metrics.csv").write_text("\n".join([*lines[:-1], ",".join(last)]) + "\n")
    page = write(folders)
    assert "infonce, seed 0: at chance: the loss is 6.2" in page.text("answer")
    assert "xclr-captions, seed 1: collapsed: all embeddings point the same way (spread 0.004)" in page.text(
        "answer"
    )
    assert "Something went wrong in training" in page.text("curves")


def test_single_seed_shows_no_spread(runs: Sequence[Path], write: Write) -> None:
    page = write(runs[::3], picture=picture)
    assert page.row("infonce")[0] == "infonce1 seed"
    everything = " ".join(page.text(part) for part in SECTIONS)
    assert "±" not in everything
    assert "≈" not in everything
    assert "With 1 seed it is not clear which differences are luck." in page.text("answer")
    assert "is best on" not in page.text("answer")
    assert "Clearly" not in page.text("answer")


def test_single_recipe_has_nothing_to_compare_with(runs: Sequence[Path], write: Write) -> None:
    page = write(runs[6:], picture=picture)
    assert "There is no second recipe to compare it with." in page.text("answer")
    assert "baseline" not in " ".join(page.text(part) for part in SECTIONS)
    assert "best" not in [a.get("class") for tag, a in page.tags if tag == "td"]


def test_without_pictures_the_gallery_keeps_its_labels(runs: Sequence[Path], write: Write) -> None:
    page = write(runs)
    assert "img" not in {tag for tag, _ in page.tags}
    assert "✓" in page.text("gallery")
    assert any(name in page.text("gallery") for name in NAMES["object"])


def test_runs_without_logs_features_or_graphs_still_make_a_page(
    runs: Sequence[Path], write: Write, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(f, tmp_path / f.parent.name / f.name)) for f in runs[:2]]
    for folder in folders:
        for name in ("metrics.csv", "features.npz", "graph.npz", "done.json"):
            (folder / name).unlink(missing_ok=True)
    page = write(folders, picture=picture)
    assert "No run has a similarity graph" in page.text("classes")
    assert "No run has stored features" in page.text("gallery")
    assert "No run has a training log." in page.text("curves")


def test_runs_that_differ_in_more_than_the_seed_are_warned_of(
    runs: Sequence[Path], write: Write, tmp_path: Path
) -> None:
    folders = [Path(shutil.copytree(f, tmp_path / f.parent.name / f.name)) for f in runs[:2]]
    recipe = folders[1] / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 0.001", "lr: 0.01"))
    assert "infonce: its runs differ in more than the seed: optim.lr" in write(folders).text("answer")


def test_existing_page_is_kept_unless_asked(runs: Sequence[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    with pytest.raises(ValueError, match=r"page\.html is there already"):
        write_report(runs[:1], out, title="A look")
    assert out.read_text() == "mine"
    write_report(runs[:1], out, title="A look", overwrite=True)
    assert out.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_same_runs_give_the_same_page(runs: Sequence[Path], full: str, tmp_path: Path) -> None:
    again = write_report(runs, tmp_path / "page.html", title="What captions change", picture=picture)
    assert again.read_text(encoding="utf-8") == full


def test_resolved_recipes_and_protocols_are_on_the_page(full: str) -> None:
    text = Page(full).text("made")
    assert "objective.tau_s" in text
    assert "tau_s: 0.1" in text
    assert "accuracy on object, colour, size, texture, background, place; k 1, 5, 20, 100" in text
    assert "train_classes: object 10, colour 8" in text


def test_template_and_style_are_in_the_package() -> None:
    from importlib.resources import files

    for name in ("page.html.jinja", "page.css"):
        assert (files("counterpoint.report") / name).is_file()


def test_seconds_come_from_done_json(runs: Sequence[Path], write: Write, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs[0], tmp_path / "infonce" / "seed-0"))
    (folder / "done.json").write_text(json.dumps({"steps": 1, "seconds": 7300.0}))
    assert "2 h 1 min" in write([folder]).row("infonce")


def test_a_plot_has_no_key_for_a_recipe_that_it_does_not_draw(tmp_path: Path, write: Write) -> None:
    folders = make_runs(tmp_path / "runs", seeds=(0,), test=60, train=60)
    log = folders[1] / "metrics.csv"
    head, *rows = log.read_text().splitlines()
    place = head.split(",").index("chance")
    cells = [row.split(",") for row in rows]
    log.write_text("\n".join([head, *(",".join([*c[:place], "", *c[place + 1 :]]) for c in cells)]) + "\n")
    page = write(folders)
    names = [read_run(folder).name for folder in folders]
    section = page.text("curves")
    loss, rest = section.split("Loss minus chance", 1)[1].split("Not drawn", 1)
    assert rest.startswith(f", as its log holds no chance: {names[1]}.")
    assert names[0] in loss
    assert names[1] not in loss
    assert rest.count(names[1]) == 3
    assert f"{names[1]} logs no chance" in section
    assert "All 3 recipes learn" not in section


def test_matching_compares_like_with_like():
    from types import SimpleNamespace as Made

    from counterpoint.evaluate import Result
    from counterpoint.report.page import _warnings
    from counterpoint.report.trained import objective_of

    def results(rows):
        asked = (("recall", "a to b", rows), ("recall", "b to a", 9), ("assignment", "one to one", 20))
        return [
            Result(
                protocol="matching",
                version=1,
                metric=metric,
                value=0.5,
                n=n,
                settings={"column": "identity", "direction": direction},
            )
            for metric, direction, n in asked
        ]

    def method(rows):
        run = Made(name="m", seed=0, warning="", results=results(rows), recipe={})
        return Made(name="m", runs=[run], whole=[run])

    assert _warnings([method(200), method(200)]) == []
    (line,) = _warnings([method(200), method(150)])
    assert line.startswith("identity, recall a to b: not all results count the same number")
    assert line.endswith("(150, 200)")
    for term, meaning in (
        ({"name": "qare"}, "The pictures of one view are to be spread out evenly."),
        ({"name": "qare", "weight": 0}, ""),
        ({"name": "qare", "weight": -1}, ""),
        ({"name": "qare", "shift": -1}, ""),
        ({"name": "infonce"}, "Only the other view of the same picture counts as alike."),
    ):
        assert objective_of(Made(recipe={"objective": term}))[1] == meaning
