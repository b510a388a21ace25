"""The command line: one thin function per command."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TextIO

import typer
from rich.console import Console

from counterpoint import __version__
from counterpoint.cli_similarity import similarity_app

if TYPE_CHECKING:
    from PIL import Image

    from counterpoint.evaluate import Result

app = typer.Typer(
    name="counterpoint",
    help="Train encoders by contrast when samples are related, and see what the relations changed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"counterpoint {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    pass


recipes_app = typer.Typer(help="See and copy the recipes that come with the package.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")
app.add_typer(similarity_app, name="similarity")

out_console = Console()
err_console = Console(stderr=True)

RecipeArg = Annotated[str, typer.Argument(help="a recipe's name (see `recipes list`) or a YAML file")]
Overrides = Annotated[list[str] | None, typer.Argument(help="changes to the recipe, as key=value")]
Resume = Annotated[bool, typer.Option("--resume", help="continue what is in the output folder")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace what is in the output folder")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="print the resolved recipe and what would be written")
]


@app.command(epilog="Example: `counterpoint train demo/xclr --out runs/first optim.lr=0.002 train.epochs=5`")
def train(
    recipe: RecipeArg,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run; runs/NAME/seed-K if not given")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Train one recipe and measure the result."""
    from counterpoint.train.compare import measure, run_folder
    from counterpoint.train.devices import is_first
    from counterpoint.train.loop import fit
    from counterpoint.train.recipe import load_recipe
    from counterpoint.train.run import FILES, Run

    resolved = load_recipe(recipe, overrides or [])
    folder = out or run_folder(Path("runs"), resolved)
    if dry_run:
        print(resolved.to_yaml(), end="")
        state = "exists already" if Run(folder).exists else "new"
        print(f"# would write to {folder} ({state}): checkpoints/, {', '.join(FILES)}")
        return
    run = fit(resolved, folder, resume=resume, overwrite=overwrite, console=err_console)
    if not is_first():  # of the processes that torchrun or srun started, one measures
        return
    _print_results(measure(run, err_console))
    print(f"run: {run.folder}")


@app.command(epilog="Example: `counterpoint evaluate runs/demo/xclr/seed-0`")
def evaluate(runs: Annotated[list[Path], typer.Argument(help="folders of trained runs")]) -> None:
    """Measure trained runs by the protocols of their recipes."""
    from counterpoint.train.compare import measure
    from counterpoint.train.run import Run

    for folder in runs:
        print(f"{folder}")
        _print_results(measure(Run(folder), err_console))


@app.command(epilog="Example: `counterpoint compare demo --seeds 0,1,2 --out runs/demo train.epochs=5`")
def compare(
    words: Annotated[
        list[str], typer.Argument(help="recipes or groups of recipes, then changes as key=value")
    ],
    out: Annotated[Path, typer.Option(help="folder of the comparison")] = Path("runs/comparison"),
    seeds: Annotated[str, typer.Option(help="comma-separated seeds")] = "0,1,2",
    vary: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,VALUE: an ablation, every recipe that has the key with each value"),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
) -> None:
    """Train several recipes with several seeds; print one table and write one report."""
    from counterpoint.train import vary as ablation
    from counterpoint.train.compare import COLUMNS, plan, run_folder, table
    from counterpoint.train.compare import compare as run_comparison
    from counterpoint.train.recipe import find_recipes, read_recipe

    overrides = [word for word in words if "=" in word]
    files = [file for word in words if "=" not in word for file in find_recipes(word)]
    if not files:
        raise ValueError("name at least one recipe, such as demo")
    varied = ablation.vary([read_recipe(file, overrides) for file in files], vary or [])
    recipes = [one.recipe for one in varied]
    numbers = _seeds(seeds)
    if dry_run:
        folders = [str(run_folder(out, run)) for run in plan(recipes, numbers, out, resume, overwrite)]
        for one in varied:
            print(f"{one.recipe.name}: {one.told()}" if vary else one.recipe.to_yaml())
        print(f"# would write: {', '.join(folders)}")
        return
    page = out / "report.html"
    if page.exists() and not (resume or overwrite):
        raise ValueError(f"{page} is there already: continue with --resume or replace it with --overwrite")
    if vary:
        ablation.write_plan(out, varied)
    lines = run_comparison(recipes, numbers, out, resume=resume, overwrite=overwrite, console=err_console)
    at_once = len(lines) if vary else COLUMNS
    for start in range(0, len(lines), at_once):
        out_console.print(table(lines[start : start + at_once], down=bool(vary)))
    if vary:
        print(f"table: {ablation.write_numbers(out, varied, lines)}")
    runs = [
        run_folder(out, recipe.model_copy(update={"seed": seed})) for recipe in recipes for seed in numbers
    ]
    print(f"report: {_write_report(runs, page, out, overwrite=True)}")


@app.command(epilog="Example: `counterpoint report runs/demo --baseline simclr --out demo.html`")
def report(
    folder: Annotated[Path, typer.Argument(help="folder of a comparison, or of one run")],
    out: Annotated[
        Path | None, typer.Option(help="the page to write; FOLDER/report.html if not given")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="recipe the others are held against; the first one if not given")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the HTML report of runs that are there already."""
    from counterpoint.names import hint
    from counterpoint.train.run import Run

    found = sorted(path.parent for path in folder.rglob("recipe.yaml"))
    if not found:
        raise ValueError(f"there is no run under {folder}")
    if baseline is not None:
        names = {run: Run(run).recipe.name for run in found}
        if baseline not in names.values():
            known = hint(baseline, sorted(set(names.values())))
            raise ValueError(f"no run under {folder} has the recipe {baseline!r}: {known}")
        found.sort(key=lambda run: names[run] != baseline)
    print(f"report: {_write_report(found, out or folder / 'report.html', folder, overwrite)}")


@app.command(epilog="Example: `counterpoint audit runs/demo/simclr/seed-0 --column object`")
def audit(
    source: Annotated[
        Path, typer.Argument(help="folder of a trained run, or embeddings in .npz, .npy, .pt or .parquet")
    ],
    out: Annotated[
        Path | None, typer.Option(help="folder to write to; SOURCE/audit, or FILE-audit, if not given")
    ] = None,
    split: Annotated[str | None, typer.Option(help="of a run: train (if not given) or test")] = None,
    layer: Annotated[
        str | None, typer.Option(help="of a run: h, before the head (if not given), or z")
    ] = None,
    column: Annotated[str | None, typer.Option(help="labels to doubt; the first column if not given")] = None,
    count: Annotated[int, typer.Option(help="pairs, and labels, to list")] = 500,
    candidates: Annotated[
        int | None, typer.Option(help="nearest samples that each is told from; 32 if not given")
    ] = None,
    by: Annotated[str, typer.Option(help="score pairs by share (copies) or weight (same class)")] = "share",
    table: Annotated[str, typer.Option(help="write tables as parquet or csv")] = "parquet",
    pictures: Annotated[
        Path | None, typer.Option(help="of embeddings: the folder that keys, as paths, start from")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """List probable copies, false negatives and wrong labels of a data set."""
    from counterpoint.report.audit import write_audit
    from counterpoint.train.audited import audited

    folder = out or (source / "audit" if source.is_dir() else source.with_name(f"{source.stem}-audit"))
    features, picture = audited(source, split, layer, pictures, err_console)
    written = write_audit(features, folder, picture, count, candidates, by, column, table, overwrite)
    print("\n".join(written.lines))
    for file in written.files:
        print(f"{file.stem}: {file}")


@recipes_app.command("list", epilog="Example: `counterpoint recipes list`")
def recipes_list() -> None:
    """Name the recipes that come with the package."""
    from counterpoint.train.recipe import recipe_names

    print("\n".join(recipe_names()))


@recipes_app.command("show", epilog="Example: `counterpoint recipes show cifar100/xclr`")
def recipes_show(recipe: RecipeArg) -> None:
    """Print a recipe as it is written."""
    from counterpoint.train.recipe import find_recipes

    for file in find_recipes(recipe):
        print(file.read_text(encoding="utf-8"), end="")


@recipes_app.command("copy", epilog="Example: `counterpoint recipes copy cifar100/xclr mine.yaml`")
def recipes_copy(recipe: RecipeArg, to: Annotated[Path, typer.Argument(help="the file to write")]) -> None:
    """Copy a recipe to a file of yours, to change it there."""
    from counterpoint.train.recipe import find_recipes

    files = find_recipes(recipe)
    if len(files) > 1:
        raise ValueError(f"{recipe} is a group; copy one of {', '.join(f'{recipe}/{f.stem}' for f in files)}")
    if to.exists():
        raise ValueError(f"{to} exists already")
    to.write_text(files[0].read_text(encoding="utf-8"), encoding="utf-8")
    print(f"recipe: {to}")


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes whole numbers with commas between them, got {text!r}") from None
    for seed in seeds:
        if not 0 <= seed < 2**63:
            raise ValueError(f"--seeds takes numbers from 0 to 2^63 - 1, got {seed}")
    return seeds


def _print_results(results: list[Result]) -> None:
    asked = [(str(result.settings["column"]), result.protocol, _detail(result)) for result in results]
    widths = [max((len(row[place]) for row in asked), default=0) for place in range(3)]
    for result, row in zip(results, asked, strict=True):
        words = " ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True))
        print(f"{words} {100 * result.value:6.2f} %")


def _detail(result: Result) -> str:
    """What tells a result from others of its label column and protocol, such as `recall@1, a to b`."""
    if result.protocol == "matching":
        at = f"@{result.settings['k']}" if "k" in result.settings else ""
        return f"{result.metric}{at}, {result.settings['direction']}"
    return {"knn": f"k={result.settings.get('k')}", "zero_shot": f"top-{result.settings.get('k')}"}.get(
        result.protocol, ""
    )


def _write_report(runs: list[Path], page: Path, folder: Path, overwrite: bool) -> Path:
    from counterpoint.report import write_report
    from counterpoint.train.run import Run
    from counterpoint.train.sources import evaluation_splits
    from counterpoint.train.vary import PLAN

    def say(line: str) -> None:
        err_console.print(line, highlight=False, markup=False, soft_wrap=True)

    if page.exists() and not overwrite:
        raise ValueError(f"{page} is there already: replace it with --overwrite, or give another --out")
    picture = None
    try:
        test = evaluation_splits(Run(runs[0]).recipe, say).test
        index = {key: i for i, key in enumerate(test.keys)}

        def picture(key: str) -> Image.Image:
            return test.picture(index[key])

    except ValueError as error:
        say(f"the report shows no pictures: {error}")
    title = f"Comparison: {folder.resolve().name}"
    return write_report(runs, page, title=title, picture=picture, overwrite=overwrite, ablation=folder / PLAN)


def _stop(reason: str) -> NoReturn:
    err_console.print(
        f"counterpoint: {' '.join(reason.split())}", highlight=False, markup=False, soft_wrap=True
    )
    sys.exit(2)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One plain line for a warning of ours; other libraries' warnings are for developers, not for users."""
    if category is UserWarning or category.__module__.startswith("counterpoint."):
        text = f"note: {' '.join(str(message).split())}"
        err_console.print(text, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line: a user's mistake is one line and exit 2."""
    warnings.showwarning = _warn
    try:
        app()
    except (ValueError, ImportError) as error:
        _stop(str(error))
    except (MemoryError, OverflowError, RecursionError) as error:
        _stop(f"a number or a nesting is too large: {str(error) or type(error).__name__}")
    except OSError as error:
        _stop(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))


if __name__ == "__main__":
    main()
