"""The refresh: sources in, the recipe's ladder of filters, a snapshot out, and every decision in the ledger.

    with store.lock("refresh"):
        run = Refresh(store, recipe, engine=engine, verifier=verifier)
        for step in run.steps:
            run.run(step)
        snapshot = run.finish()

is what `refresh` does, and what a flow does with a task for each step. Samples and verdicts are recorded as
they arrive and decisions at the end of each filter: a refresh that is cut off and started again pays for nothing
twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from assay.filters import (
    answer_format,
    answers,
    contamination,
    difficulty,
    duplicates,
    selection,
    shortcut,
    suspect_gold,
)
from assay.pipelines import parsed, review, sources
from assay.pipelines import snapshot as snapshots
from assay.pipelines.engines import Engine
from assay.pipelines.errors import RecipeError, SourceError
from assay.pipelines.ledger import BACK_SCAN, back_scanned
from assay.pipelines.models import resolve
from assay.pipelines.recipe import NEEDS_MODEL, Benchmark, RefreshRecipe, recipe_hash
from assay.pipelines.rows import place_of
from assay.pipelines.scoring import GRADED, Scoring
from assay.pipelines.snapshot import Snapshot
from assay.pipelines.store import SCHEMAS, Store
from assay.pipelines.verify import Verifier

if TYPE_CHECKING:
    from assay.pipelines.generate import Progress

__all__ = ["Refresh", "back_scan", "benchmark_index", "embed", "read_benchmark", "refresh"]

REMEDY = {
    "parse": "Check the fields of [[sources]].",
    "review": "Look at the verdicts of the review.",
    "format": "Set the formats that you want to 'keep' in [format].",
    "answer": "Raise max_chars in [answer], or check which field of the source is the answer.",
    "duplicates": "Raise threshold in [duplicates].",
    "contamination": "The sources are the benchmarks: use other sources, or fewer [[benchmarks]].",
    "max_scored": "Raise max_scored.",
    "shortcut": "Take fewer samples in [shortcut], or harder sources.",
    "difficulty": "Widen band in [difficulty], or change [model]: a stronger one if too_hard leads, a weaker "
    "one if too_easy does; raise max_tokens if unknown_pass_rate does.",
    "suspect_gold": "Raise min_share in [suspect_gold], or check the golds of the sources.",
    "selection": "Raise size in [selection].",
}  # fmt: skip
NO_HITS = pl.DataFrame(schema=dict.fromkeys(("snapshot", "problem_id", "reason", "evidence"), pl.String))


def refresh(
    store: Store,
    recipe: RefreshRecipe,
    *,
    engine: Engine | Callable[[], Engine] | None = None,
    verifier: Verifier | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Runs the whole ladder under the store's lock and returns the snapshot.

    Args:
        engine: an engine, or what makes one (called when a filter first needs samples). Without one, only
            recorded samples are read: a new band over old evidence calls no model.
        verifier: reads golds and grades samples; without one, recorded verdicts are read.
        progress: handed to `generate.sample`.

    Raises:
        SourceError: a source cannot be read, or a filter left nothing; the ledger is written first.
        StoreError: another refresh holds the lock.
    """
    with store.lock("refresh"):
        run = Refresh(store, recipe, engine=engine, verifier=verifier, progress=progress)
        for step in run.steps:
            run.run(step)
        return run.finish()


class Refresh:
    """One refresh: `steps` names its steps in order, `run` does one, `finish` writes the snapshot.

    `remarks` gathers what the person who started it should know and no error is.
    """

    def __init__(
        self,
        store: Store,
        recipe: RefreshRecipe,
        *,
        engine: Engine | Callable[[], Engine] | None = None,
        verifier: Verifier | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.store, self.recipe, self.verifier = store, recipe, verifier
        self.scoring = Scoring(store, recipe, engine, verifier, progress)
        self.reviewed = review.read(recipe.suspect_gold.review or review.file_of(store))
        self.steps = _steps(recipe, bool(self.reviewed))
        self.time = snapshots.now()
        self.id = snapshots.new_id(recipe_hash(recipe), self.time)
        self.pool = pl.DataFrame(schema=SCHEMAS["problems"])
        self.benchmarks: list[dict[str, Any]] = []
        self._problems = self.pool
        self._decisions: dict[str, pl.DataFrame] = {}
        self._funnel: list[dict[str, Any]] = []
        self._graded = pl.DataFrame(schema=GRADED)
        self._rates = difficulty.pass_rates(self._graded)
        self._copies: pl.DataFrame | None = None
        self._index: contamination.BenchmarkIndex | None = None
        self.remarks: list[str] = []
        if recipe.model is None and "shortcut" in self.steps:
            self.remarks.append("without a model, shortcut looks only for golds that can be guessed")

    def run(self, step: str) -> dict[str, Any]:
        """Does one step and records its decisions; returns the funnel's row (see `snapshot.FUNNEL`).

        Raises:
            SourceError: nothing is left; names the filter, the reasons with their counts, and what to change.
        """
        decisions = self._parse() if step == "parse" else getattr(self, f"_{step}")()
        in_pool = pl.col("id").is_in(self.pool["id"].implode())
        own = decisions if step == "parse" else decisions.filter(in_pool)
        kept = own.filter("keep")
        self._record(step, decisions)
        self._decisions[step] = own
        rejected = own.filter(~pl.col("keep"))["reason"].value_counts(sort=True)
        row = {"filter": step, "rows_in": own.height, "rows_out": kept.height}
        self._funnel.append(row | {"reasons": json.dumps(dict(rejected.rows()))})
        self.pool = self.pool.join(kept.select("id"), on="id", how="semi", maintain_order="left")
        if step == "format" and "reformulate" in self.recipe.format.model_dump().values():
            self.pool = answer_format.reformulate(self.pool)
        if self.pool.is_empty():
            self._give_up(step, dict(rejected.rows()))
        return self._funnel[-1]

    def finish(self) -> Snapshot:
        """Writes the snapshot's folder and record, after scanning older ones for benchmarks new to them."""
        made = self._snapshot()
        if self._index is not None:
            stages = self.recipe.contamination.stages
            found = back_scan(self.store, self._index, self.benchmarks, stages)["snapshot"].value_counts(sort=True)
            some = ", ".join(f"{name} ({rows} rows)" for name, rows in found.head(5).rows())
            if some:
                self.remarks.append(f"older snapshots that hold benchmark items: {some}{', ...' * (len(found) > 5)}")
        older = back_scanned(self.store).unique(["snapshot", "problem_id"])
        snapshots.write(self.store, made, self._kept(), self._rejected(), older)
        snapshots.record(self.store, made)
        return made

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            id=self.id,
            parent=snapshots.latest(self.store),
            recipe_hash=recipe_hash(self.recipe),
            recipe=self.recipe.model_dump(mode="json"),
            benchmarks=self.benchmarks,
            funnel=pl.DataFrame(self._funnel, schema=snapshots.FUNNEL),
            time=self.time,
        )

    def _record(self, step: str, decisions: pl.DataFrame) -> None:
        rows = decisions.rename({"id": "problem_id"}).with_columns(
            snapshot=pl.lit(self.id), filter=pl.lit(step), time=pl.lit(snapshots.now())
        )
        self.store.append("decisions", rows.select(SCHEMAS["decisions"].names()))

    def _give_up(self, step: str, reasons: dict[str, int]) -> None:
        snapshots.record(self.store, self._snapshot())
        counts = ", ".join(f"{reason} {rows}" for reason, rows in reasons.items())
        raise SourceError(
            f"recipe '{self.recipe.name}': filter '{step}' left nothing of {self._funnel[-1]['rows_in']} "
            f"problems: {counts}. {REMEDY[step]} The ledger of snapshot {self.id} holds every decision."
        )

    def _parse(self) -> pl.DataFrame:
        """Every row of every source: new problems are added to the store, what is no problem is rejected."""
        read = [parsed.read(self.store, source) for source in self.recipe.sources]
        problems, unparsable = pl.concat(p for p, _ in read), pl.concat(u for _, u in read)
        known = self.store.scan("problems").select("id", first="first_seen").unique("id", keep="first")
        seen = problems.join(known.collect(), on="id", how="left", maintain_order="left")
        self.store.append("problems", seen.filter(pl.col("first").is_null()).drop("first"))
        self.pool = seen.with_columns(first_seen=pl.coalesce("first", "first_seen")).drop("first")
        self._problems = pl.concat([self.pool, unparsable.select("id", "source")], how="diagonal")
        place = pl.format("row {} of {}", "source_key", "source")
        good = problems.select("id", keep=True, reason=pl.lit(None, pl.String), evidence=place)
        bad = unparsable.select(
            "id",
            keep=False,
            reason=pl.format("unparsable_{}", pl.col("reason").str.extract(r"^(\w+)")),
            evidence=pl.format("{}, row {}: {}", "file", "line", "reason"),
        )
        return pl.concat([good, bad.cast(good.schema)])

    def _review(self) -> pl.DataFrame:
        """Repairs golds, which are graded anew, and drops what a person dropped."""
        self.reviewed, odd = review.resolve(self.reviewed, self.store.scan("problems").collect()["id"].unique())
        self.remarks += [f"review: {text}" for text in odd]
        self._problems, _ = review.apply(self._problems, self.reviewed)
        self.pool, decisions = review.apply(self.pool, self.reviewed)
        return decisions

    def _format(self) -> pl.DataFrame:
        return answer_format.decide(self.pool, self.recipe.format.model_dump())

    def _answer(self) -> pl.DataFrame:
        """With a verifier, also what it cannot read; programs have tests instead of a gold."""
        pool, max_chars = self.pool, self.recipe.answer.max_chars
        if self.verifier is not None:
            short = pl.col("answer").str.len_chars() <= answers.longest_read(max_chars)
            golds = pool.filter(pl.col("kind") == "math", short)["answer"].unique()
            faults = parsed.gold_faults(self.store, self.verifier, golds)
            pool = pool.join(faults, on="answer", how="left", maintain_order="left")
        return answers.decide(pool, max_chars)

    def _duplicates(self) -> pl.DataFrame:
        decisions = duplicates.decide(self.pool, threshold=self.recipe.duplicates.threshold)
        self._copies = duplicates.sources_of(self.pool, decisions)
        return decisions

    def _contamination(self) -> pl.DataFrame:
        self._index, self.benchmarks = benchmark_index(self.recipe)
        self.remarks += [f"benchmark {b['name']}: {b['faults']}" for b in self.benchmarks if b["faults"]]
        settings = self.recipe.contamination
        vectors = embed(settings.embeddings, self.pool["problem"].to_list()) if settings.embeddings else None
        decisions = contamination.decide(self.pool, self._index, vectors, settings.stages, settings.cosine)
        return self._judged(decisions, self._index) if settings.judge else decisions

    def _judged(self, decisions: pl.DataFrame, index: contamination.BenchmarkIndex) -> pl.DataFrame:
        hits = contamination.soft(decisions)
        texts = dict(self.pool.select("id", "problem").iter_rows())
        pairs = [(texts[name], index.texts[benchmark][at]) for name, benchmark, at in hits.iter_rows()]
        words = self.scoring.judged(pairs, self.recipe.contamination.judge_tokens)
        return contamination.settle(decisions, hits.with_columns(same=pl.Series(words, dtype=pl.Boolean)))

    def _max_scored(self) -> pl.DataFrame:
        """The first by a hash of their ids, so that the same problems are drawn again as long as they are there."""
        size = self.recipe.max_scored
        assert size is not None
        return selection.decide(self.pool, size, self.recipe.selection.seed, None).with_columns(
            reason=pl.when(~pl.col("keep")).then(pl.lit("not_scored"))
        )

    def _shortcut(self) -> pl.DataFrame:
        """Guessable first, since it costs nothing; the others are asked for direct answers, if there is a model."""
        settings = self.recipe.shortcut
        guessed = shortcut.guessable(self.pool, settings.guess_rows, settings.guess_lift, settings.guess_p)
        if self.recipe.model is None:
            return guessed
        rest = self.pool.filter(guessed["keep"])
        direct = self.scoring.graded(
            rest, "direct", settings.samples, temperature=settings.temperature, max_tokens=settings.max_tokens
        )
        asked = shortcut.decide(rest, difficulty.pass_rates(direct), settings.threshold)
        found = pl.concat([guessed.filter(~pl.col("keep")), asked])
        return self.pool.select("id").join(found, on="id", how="left", maintain_order="left")

    def _difficulty(self) -> pl.DataFrame:
        settings = self.recipe.difficulty
        self._think(self.pool)
        return difficulty.decide(self.pool, self._rates, *settings.band, settings.inclusive, settings.unknown)

    def _suspect_gold(self) -> pl.DataFrame:
        """Also of what was too hard: a wrong gold looks like a hard problem, and repair needs to find it."""
        rows, settings = self.pool.select("id"), self.recipe.suspect_gold
        if "difficulty" in self._decisions:
            hard = self._decisions["difficulty"].filter(pl.col("reason") == "too_hard")
            rows = pl.concat([rows, hard.select("id")])
        self._think(self.pool)
        doubtful = self._problems.join(rows, on="id", how="semi")
        own = self._graded.filter(pl.col("problem_id").is_in(rows["id"].implode()))
        others = self._beside(doubtful)
        strong, weak = self._model() if len(others) else None, others["model"].unique().sort().to_list()
        answers = pl.concat([own, others])
        found = suspect_gold.decide(rows, answers, settings.min_share, settings.min_samples, strong, weak)
        confirmed = [name for name, item in self.reviewed.items() if item.verdict == "confirm"]
        cleared = _cleared(found, confirmed)
        if suspects := cleared.filter(~pl.col("keep"), ~pl.col("id").is_in(list(self.reviewed))).height:
            command = f"assay review -s {self.store.path}" + (f" -o {settings.review}" if settings.review else "")
            self.remarks.append(f"{suspects} golds are suspect: `{command}` writes them to a file")
        return cleared

    def _beside(self, problems: pl.DataFrame) -> pl.DataFrame:
        """What other models answered in the same mode, from the record; see `Scoring.beside`."""
        if self._graded.is_empty():
            return pl.DataFrame(schema=GRADED)
        return self.scoring.beside(problems, self._model())

    def _model(self) -> str:
        """The fingerprint of the model whose samples were graded."""
        return str(self._graded["model"].item(0))

    def _selection(self) -> pl.DataFrame:
        settings = self.recipe.selection
        size = self.pool.height if settings.size is None else settings.size
        by = [] if settings.balance == "none" else settings.balance.split(" and ")
        return selection.decide(self._with_rates(self.pool), size, settings.seed, by, self._diversity())

    def _diversity(self) -> Any:
        """Vectors of the pool for a diverse choice, [n, d] of length 1, or None."""
        kind, texts = self.recipe.selection.diversity, self.pool["problem"]
        if kind == "embeddings":
            assert self.recipe.contamination.embeddings is not None
            return embed(self.recipe.contamination.embeddings, texts.to_list())
        return selection.sketches(texts) if kind == "words" else None

    def _think(self, problems: pl.DataFrame) -> None:
        """Adds graded samples of these problems in the model's own mode; adaptive where the recipe says so.

        Each round doubles the samples of the undecided problems, which thus all have equally many.
        """
        assert self.recipe.model is not None
        settings, mode = self.recipe.difficulty, self.recipe.model.mode
        new = problems.join(self._rates, left_on="id", right_on="problem_id", how="anti", maintain_order="left")
        samples = settings.samples
        graded = self.scoring.graded(new, mode, samples)
        rates = difficulty.pass_rates(graded)
        while settings.adaptive and samples < settings.max_samples:
            ids = difficulty.undecided(rates, *settings.band, settings.max_samples)
            if not ids:
                break
            samples = min(2 * samples, settings.max_samples)
            more = self.scoring.graded(new.filter(pl.col("id").is_in(ids)), mode, samples)
            graded = pl.concat([graded.filter(~pl.col("problem_id").is_in(ids)), more])
            rates = difficulty.pass_rates(graded)
        self._graded, self._rates = pl.concat([self._graded, graded]), pl.concat([self._rates, rates])

    def _with_rates(self, problems: pl.DataFrame) -> pl.DataFrame:
        rates = self._rates
        columns = rates.join(difficulty.buckets(rates), on="problem_id").select(
            "problem_id", "samples", "correct", "wrong", "pass_rate", "bucket",
            pass_rate_low="low", pass_rate_high="high", pass_rate_model="model",
        )  # fmt: skip
        return problems.join(columns, left_on="id", right_on="problem_id", how="left", maintain_order="left")

    def _other_rates(self) -> pl.DataFrame:
        """`id, other_rates`: the recorded pass rates of every further model, side by side."""
        rates = difficulty.pass_rates(self._beside(self.pool))
        return rates.group_by(pl.col("problem_id").alias("id")).agg(
            other_rates=pl.struct("model", "correct", "wrong", "pass_rate").sort_by("model")
        )

    def _kept(self) -> pl.DataFrame:
        """The pool with its pass rates, and with the sources and the number of the copies dropped for each row."""
        rows = self._with_rates(self.pool).join(self._other_rates(), on="id", how="left", maintain_order="left")
        if self._copies is not None:
            return rows.join(self._copies, on="id", how="left", maintain_order="left")
        return rows.with_columns(sources=pl.concat_list("source"), copies=pl.lit(0, pl.Int64))

    def _rejected(self) -> pl.DataFrame:
        """Every row that some filter rejected, with the first that did."""
        found = pl.concat(
            rows.filter(~pl.col("keep")).select("id", "reason", "evidence", filter=pl.lit(step))
            for step, rows in self._decisions.items()
        )
        columns = ("id", "filter", "reason", "evidence")
        return self._problems.join(found.select(columns), on="id", maintain_order="left")


def _cleared(decisions: pl.DataFrame, confirmed: list[str]) -> pl.DataFrame:
    """Suspects whose gold a person confirmed are none."""
    cleared = ~pl.col("keep") & pl.col("id").is_in(confirmed)
    return decisions.with_columns(
        keep=pl.col("keep") | cleared,
        reason=pl.when(~cleared).then("reason"),
        evidence=pl.when(cleared).then(pl.format("gold confirmed by a person; {}", "evidence")).otherwise("evidence"),
    )


def _steps(recipe: RefreshRecipe, reviewed: bool) -> tuple[str, ...]:
    """The parse, a person's review, the ladder, and the cap on scoring before the first filter that needs a model."""
    ladder: list[str] = list(recipe.ladder)
    first = next((i for i, name in enumerate(ladder) if name in NEEDS_MODEL), None)
    if recipe.max_scored is not None and first is not None:
        ladder.insert(first, "max_scored")
    return ("parse", *(["review"] if reviewed else []), *ladder)


def read_benchmark(benchmark: Benchmark) -> tuple[pl.DataFrame, dict[str, Any]]:
    """A benchmark's items, and its name, revision, hash and counts, with what could not be read as declared.

    A row whose question is there and whose gold is not what was declared is an item all the same.

    Raises:
        SourceError: as `sources.read`; or the hash is not the recipe's.
    """
    items, unread = sources.read(benchmark)
    faulty = unread.height
    if faulty:
        bare = {"answer": None, "answer_is": "text", "answer_pattern": None, "options": None, "key": None}
        asked, unread = sources.read(benchmark.model_copy(update=bare))
        items = pl.concat([items, asked.join(items, on="text_hash", how="anti", maintain_order="left")])
    found = sources.content_hash(items)
    if benchmark.hash not in (None, found):
        raise SourceError(
            f"{place_of(benchmark)}: benchmark '{benchmark.name}' has hash {found}, and the recipe pins "
            f"{benchmark.hash}: this is another version. Get the pinned one, or pin this one."
        )
    why = ", ".join(f"{reason} ({rows})" for reason, rows in unread["reason"].value_counts(sort=True).head(3).rows())
    counts = {"rows": items.height, "without_gold": faulty - unread.height, "unread": unread.height}
    told = (
        f"{counts['without_gold']:,} rows of unparsable gold, looked for by their question" * (faulty > unread.height),
        f"{counts['unread']:,} rows unparsable and NOT looked for: {why}" * (unread.height > 0),
    )
    described = {"name": benchmark.name, "revision": benchmark.revision, "hash": found}
    return items, described | counts | {"faults": "; ".join(filter(None, told))}


def benchmark_index(recipe: RefreshRecipe) -> tuple[contamination.BenchmarkIndex, list[dict[str, Any]]]:
    """The recipe's benchmarks ready to be looked for, and of each what `read_benchmark` says."""
    read = [read_benchmark(benchmark) for benchmark in recipe.benchmarks]
    texts = {described["name"]: items["problem"].to_list() for items, described in read}
    model = recipe.contamination.embeddings
    vectors = {name: embed(model, items) for name, items in texts.items()} if model else None
    return contamination.BenchmarkIndex.build(texts, vectors), [described for _, described in read]


def back_scan(
    store: Store, index: contamination.BenchmarkIndex, benchmarks: list[dict[str, Any]], stages: Sequence[str]
) -> pl.DataFrame:
    """Scans older snapshots for benchmarks that they did not know, and adds what it finds to the ledger.

    A benchmark, by its hash, is known at a stage where the snapshot or a later one looked for it at that stage: each
    refresh looks into all snapshots before it. Only what is not known is looked for.

    Args:
        stages: those that count; of them, `embedding` is left out.

    Returns:
        `snapshot, problem_id, reason, evidence` of every hit that was not recorded before.
    """
    hits, stages = [NO_HITS], [stage for stage in stages if stage != "embedding"]
    known: set[tuple[str, str]] = set()
    for row in store.scan("snapshots").sort("time", descending=True).collect().to_dicts():
        file = snapshots.folder_of(store, row["id"]) / "data" / "train.parquet"
        if not file.exists():
            continue
        looked = json.loads(row["recipe"]).get("contamination", {}).get("stages", [])
        known |= {(benchmark["hash"], stage) for benchmark in json.loads(row["benchmarks"]) for stage in looked}
        new = [b["name"] for b in benchmarks if {(b["hash"], stage) for stage in stages} - known]
        if new:
            part = contamination.BenchmarkIndex.build({name: index.texts[name] for name in new})
            found = contamination.decide(pl.read_parquet(file, columns=["id", "problem"]), part, stages=stages)
            found = found.filter(~pl.col("keep")).rename({"id": "problem_id"})
            hits.append(found.with_columns(snapshot=pl.lit(row["id"])).select(NO_HITS.columns))
    new_hits = pl.concat(hits).join(back_scanned(store), on=["snapshot", "problem_id", "evidence"], how="anti")
    rows = new_hits.with_columns(filter=pl.lit(BACK_SCAN), keep=pl.lit(False), time=pl.lit(snapshots.now()))
    store.append("decisions", rows)
    return new_hits


def embed(model: str, texts: list[str]) -> Any:
    """Sentence embeddings [len(texts), d]."""
    return _encoder(model).encode(texts, normalize_embeddings=True, show_progress_bar=False)


@cache
def _encoder(model: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise RecipeError(
            f"[contamination] embeddings = '{model}' needs sentence-transformers: install it, or leave it out"
        ) from None
    return SentenceTransformer(resolve(model))
