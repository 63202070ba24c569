"""The recipe of a dataset refresh: a model per section, and under each field what it means."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from assay.pipelines.equivalence import Policy
from assay.pipelines.prompts import budget_of
from assay.pipelines.settings import LocalPath, ModelName, Section, load, recipe_hash, resolved_json

__all__ = ["Answer", "Benchmark", "Cluster", "Contamination", "Difficulty", "Drift", "Duplicates", "Format",
           "LocalPath", "Model", "ModelName", "RefreshRecipe", "Section", "Selection", "Served", "Shortcut", "Source",
           "SuspectGold", "Table", "load", "read_refresh", "recipe_hash", "resolved_json", "without_model"]  # fmt: skip

Filter = Literal[
    "format", "answer", "duplicates", "contamination", "shortcut", "difficulty", "suspect_gold", "selection"
]
Action = Literal["keep", "drop"]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


def _valid_mode(mode: str) -> str:
    budget_of(mode)
    return mode


def _valid_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Mode = Annotated[str, AfterValidator(_valid_mode)]
Pattern = Annotated[str, AfterValidator(_valid_pattern)]


class Table(Section):
    """Rows of a file, or of a data set on the Hub, and which of their fields are what.

    A field is named as it is in the file; `other.source` or `prompt.0.content` reaches inside. Where a text
    may be built, `{name}` stands for a field: `"{body} {question}"`.
    """

    name: str
    """What decisions, reports and cards call it."""
    path: LocalPath | None = None
    """JSONL, JSON, CSV, TSV or Parquet, also `.gz`; or a folder that `datasets.load_dataset` opens."""
    hub: str | None = None
    """Name on the Hugging Face Hub, instead of `path`."""
    config: str | None = None
    """Configuration of the data set on the Hub or in the folder."""
    split: str = "train"
    """Split of the data set on the Hub or in the folder."""
    revision: str | None = None
    """Commit or tag on the Hub; for a file, what its publisher calls this version."""
    problem: str | tuple[str, ...]
    """Field of the problem, several to join with a space, or a text with `{field}` in it."""
    answer: str | tuple[str, ...] | None = None
    """Field of the gold; of several, the first that is not empty."""
    answer_is: Literal["text", "list", "index"] = "text"
    """`list`: several golds, joined with ", "; `index`: place in the options from 0, becomes a letter."""
    answer_pattern: Pattern | None = None
    """The gold is the first group (or all) of this expression's last match in the answer."""
    options: str | None = None
    """Field of the options: a list, a map of labels to options, or lists `text` and `label`."""
    key: str | None = None
    """Field, or text with `{field}` in it, that identifies a row; without it the row's text does."""
    where: dict[str, str | int | float | bool] = Field(default={})
    """Only rows whose fields have these values are read."""

    @model_validator(mode="after")
    def _one_place(self) -> "Table":
        if (self.path is None) == (self.hub is None):
            raise ValueError("give either path or hub")
        if self.answer_is == "index" and self.options is None:
            raise ValueError("answer_is = 'index' needs options")
        return self


class Source(Table):
    """A pool of problems to curate."""

    kind: Literal["math", "code"] = "math"
    """How answers are checked: by the mathematical verifier, or by running `tests`."""
    tests: str | None = None
    """Field of the tests that a program must pass."""
    license: str | None = None
    """The licence, or `{field}`."""
    domain: str | None = None
    """The subject, or `{field}`."""
    language: str = "en"
    """ISO 639-1 code, or `{field}`."""
    policy: Policy = Policy()
    """How this source's answers are graded: fields of `verify.Policy`, of which `verifier = "judge"` asks the recipe's
    [judge] where the rules find no match."""

    def grading(self) -> Policy:
        """The policy; programs are run, whatever it says."""
        return replace(self.policy, verifier="code") if self.kind == "code" else self.policy


class Benchmark(Table):
    """Problems that must not be trained on; `split` is usually test."""

    split: str = "test"
    """Split of the data set on the Hub or in the folder."""
    hash: str | None = None
    """SHA-256 that a snapshot's card and the dry run give of what was read; anything else is then an error."""


class Format(Section):
    """What becomes of each format; choices and proofs are dropped as in Kimi k1.5, section 2.1."""

    open: Action = "keep"
    """A question with one answer to find."""
    multiple_choice: Literal["keep", "drop", "reformulate"] = "drop"
    """Options in the text or apart; `reformulate` asks for the option's value where the stem stands alone."""
    true_false: Action = "drop"
    """Yes or no, true or false."""
    proof: Action = "drop"
    """A proof or an explanation is asked for."""
    multi_part: Action = "drop"
    """Several questions in one."""
    figure: Action = "drop"
    """A figure is needed and missing."""


class Answer(Section):
    """Which golds can be verified."""

    max_chars: Count = 100
    """Longest gold, characters (Big-Math)."""


class Duplicates(Section):
    """When two problems are one."""

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Jaccard similarity of near duplicates."""


class Contamination(Section):
    """How problems are compared with the benchmarks."""

    stages: tuple[Literal["exact", "ngram", "number_variant", "near", "embedding"], ...] = (
        *("exact", "ngram", "number_variant", "near", "embedding"),
    )
    """Those that drop a problem. Leave out `number_variant` and `near` for problems made from templates, which differ
    from the benchmark's by their numbers alone."""
    embeddings: ModelName | None = None
    """Sentence embedding model for paraphrases and translations; none: the stages that need no model."""
    cosine: Share = 0.76
    """Similarity of two embeddings that is a hit, set for all-MiniLM-L6-v2; an item that is far ahead of the others is
    one from 0.65. With a judge, less finds more."""
    judge: bool = False
    """[model] reads every `near` and `embedding` hit beside the benchmark's item; a clear no to all keeps the row."""
    judge_tokens: Count = 2048
    """Longest judgement; one without an end decides nothing."""

    @model_validator(mode="after")
    def _looking(self) -> Self:
        if not self.stages:
            raise ValueError("stages is empty, so that nothing would drop: name some or leave it out")
        return self


class Cluster(Section):
    """Machines joined by Ray (`ray start`), on which engines of their own share the work."""

    workers: Count = 2
    """Engines at once."""
    address: str | None = None
    """`ray://host:10001`; by default what `RAY_ADDRESS` names, or a cluster of this machine alone."""
    gpus: Annotated[float, Field(ge=0)] = 0
    """GPUs set aside for each engine."""


class Served(Section):
    """A model and the engine that runs it."""

    path: ModelName
    """Folder, or name on the Hub."""
    engine: Literal["vllm", "openai", "replay"] = "vllm"
    """`vllm` in this process, `openai` for servers at `urls`, `replay` for what the store has recorded."""
    urls: tuple[str, ...] = ()
    """Addresses of the servers, `http://host:8000`; work is spread over them, and what one leaves undone others do."""
    key: str | None = None
    """Environment variable that holds the servers' key; the key itself is written nowhere."""
    concurrency: Count = 64
    """Requests in flight on each server."""
    timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """Longest wait for one completion from a server."""
    cluster: Cluster | None = None
    """Spread engine = 'vllm' over several machines, which have the model under the same path."""

    @model_validator(mode="after")
    def _servers(self) -> Self:
        if (self.engine == "openai") != bool(self.urls):
            raise ValueError("urls and engine = 'openai' belong together")
        if self.cluster and self.engine != "vllm":
            raise ValueError("cluster is for engine = 'vllm'; servers are spread by urls")
        if any("@" in url for url in self.urls):
            raise ValueError("urls hold a user or a key; put the key into the environment variable that `key` names")
        return self


class Model(Served):
    """The model whose pass rate is the difficulty, and how it is sampled."""

    mode: Mode = "think"
    """`think`, `direct` or `budget=N`."""
    instruction: str | None = "Put your final answer within \\boxed{}."
    """Appended to every problem."""
    max_model_len: Count = 8192
    """Tokens of prompt and completion together."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """High, so that the samples differ."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus; 1 is the whole distribution."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """0 is the whole distribution."""
    max_tokens: Count = 4096
    """Longest completion; a longer one counts as truncated, never as wrong."""
    seed: int = 0
    """Every sample's own seed derives from it."""


class Difficulty(Section):
    """The band of pass rates that is kept.

    `band = [0.0, 1.0]` with `inclusive = "high"` drops what was never solved (0 of 8) and nothing else, and with
    `"neither"` what was always solved too.
    """

    samples: Count = 8
    """Completions a problem."""
    band: tuple[Share, Share] = (0.2, 0.8)
    """Lowest and highest pass rate, correct / (correct + wrong)."""
    inclusive: Literal["both", "low", "high", "neither"] = "both"
    """Which ends of the band belong to it."""
    unknown: Literal["drop", "keep"] = "drop"
    """What becomes of problems without one verdict."""
    adaptive: bool = False
    """Sample on, to `max_samples`, while the interval straddles an end of the band."""
    max_samples: Count = 64
    """Most completions a problem when adaptive."""

    @model_validator(mode="after")
    def _ordered(self) -> "Difficulty":
        if self.band[0] > self.band[1]:
            raise ValueError(f"band {list(self.band)}: the lower end comes first")
        if self.adaptive and self.max_samples < self.samples:
            raise ValueError(f"max_samples {self.max_samples} is below samples {self.samples}: the first are the most")
        return self


class Shortcut(Section):
    """Answers that need no thought (Kimi k1.5, section 2.1), and golds that whoever knows the source may guess.

    Without a [model] only the latter are looked for.
    """

    samples: Count = 8
    """Direct answers a problem."""
    threshold: Count = 1
    """Right ones that reject it; 1 is Kimi's. Ask for more where a guess may hit the answer."""
    max_tokens: Count = 64
    """Longest direct answer: room for the answer, none for a chain of thought."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Of the direct answers."""
    guess_rows: Count = 20
    """Fewest rows of a source on which a guess is judged."""
    guess_lift: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of what chance leaves, the share that a guess must hit for its rows to go."""
    guess_p: Annotated[float, Field(gt=0, le=1)] = 0.001
    """Probability of so many hits by chance, below which a guess counts."""


class SuspectGold(Section):
    """When a model's agreement with itself speaks against the gold."""

    min_share: Share = 0.6
    """Share of the scored samples that give the same wrong answer."""
    min_samples: Count = 4
    """Fewest scored samples that can speak. What [model] never solves and another recorded model solves in `min_share`
    of as many is suspect too."""
    review: LocalPath | None = None
    """What a person decided about the golds (`assay review`); `review.toml` in the store when not given."""


class Selection(Section):
    """The last cut."""

    size: Count | None = None
    """Problems to keep; all when not given."""
    seed: int = 0
    """Decides which, with the problem's id."""
    balance: Literal["none", "domain", "source", "language", "bucket", "domain and bucket", "source and bucket"] = (
        "domain"
    )
    """Groups that get equal room; bucket is the difficulty's, and with `and` every combination is a group."""
    diversity: Literal["none", "words", "embeddings"] = "none"
    """`words`: a group's problems are as unlike one another as can be, by what they are made of; `embeddings`: by the
    model of [contamination]; `none`: drawn by the seed."""


class Drift(Section):
    """How far a refresh may differ from the one before it; beyond, it emits the event `assay.refresh.drift`."""

    kept: Share = 0.1
    """Change of kept / read rows."""
    contaminated: Share = 0.02
    """Change of the share of rows that the contamination filter rejects."""
    pass_rates: Share = 0.1
    """Kolmogorov-Smirnov distance of the two distributions of pass rates: the largest difference between the shares of
    problems that lie below any one rate."""


NEEDS_MODEL: tuple[Filter, ...] = ("shortcut", "difficulty", "suspect_gold")
"""Filters that ask the model; the first does a part of its work without one."""


class RefreshRecipe(Section):
    """Which problems come from where, and what a problem must be to stay."""

    name: str
    """Of the curated set."""
    store: LocalPath
    """Folder of the store; made when it is not there."""
    variables: dict[str, str] = Field(default={})
    """Texts for `${name}`; `--set name=value` changes one."""
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    """In order of trust: of duplicates, the first is kept."""
    benchmarks: tuple[Benchmark, ...] = ()
    """What the pool must not contain."""
    ladder: tuple[Filter, ...] = (
        *("format", "answer", "duplicates", "contamination"),
        *("shortcut", "difficulty", "suspect_gold", "selection"),
    )
    """Filters in the order in which they run."""
    max_scored: Count | None = None
    """At most so many problems go on to the filters that need a model, drawn by a hash of their ids; the others are
    rejected as `not_scored`. All when not given."""
    format: Format = Format()
    answer: Answer = Answer()
    duplicates: Duplicates = Duplicates()
    contamination: Contamination = Contamination()
    model: Model | None = None
    judge: Model | None = None
    """The model that judges answers, for sources whose policy says so."""
    difficulty: Difficulty = Difficulty()
    shortcut: Shortcut = Shortcut()
    suspect_gold: SuspectGold = SuspectGold()
    selection: Selection = Selection()
    drift: Drift = Drift()

    @model_validator(mode="after")
    def _whole(self) -> "RefreshRecipe":
        for what, names in (
            ("sources", [s.name for s in self.sources]),
            ("benchmarks", [b.name for b in self.benchmarks]),
            ("ladder", self.ladder),
        ):
            if twice := _twice(names):
                raise ValueError(f"{what} has '{twice}' twice; each name once")
        if not self.ladder:
            raise ValueError("ladder is empty, so that nothing would be filtered: name some or leave it out")
        if "contamination" in self.ladder and not self.benchmarks:
            raise ValueError("ladder has 'contamination' and there are no [[benchmarks]]: add them or take it out")
        if self.selection.diversity == "embeddings" and self.contamination.embeddings is None:
            raise ValueError("[selection] diversity = 'embeddings' and [contamination] embeddings is not given")
        if self.model is None and self.contamination.judge:
            raise ValueError("[contamination] judge = true and there is no [model]: add it or take the judge out")
        if self.model is None and (needy := [f for f in self.ladder if f in NEEDS_MODEL[1:]]):
            raise ValueError(f"ladder has {', '.join(needy)} and there is no [model]: add it or take them out")
        return self


def read_refresh(path: str | Path, overrides: Sequence[str] = (), no_model: bool = False) -> RefreshRecipe:
    """The refresh recipe at `path`; with `no_model`, only the filters that need none."""
    recipe = load(path, RefreshRecipe, overrides)
    return without_model(recipe) if no_model else recipe


def without_model(recipe: RefreshRecipe) -> RefreshRecipe:
    """The recipe with only the filters that need no model, of `shortcut` the part that needs none."""
    ladder = tuple(f for f in recipe.ladder if f not in NEEDS_MODEL[1:])
    unjudged = recipe.contamination.model_copy(update={"judge": False})
    return recipe.model_copy(update={"ladder": ladder, "model": None, "max_scored": None, "contamination": unjudged})


def _twice(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((n for n in names if n in seen or seen.add(n)), None)  # type: ignore[func-returns-value]
