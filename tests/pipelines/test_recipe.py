import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from assay.pipelines import recipe as recipes
from assay.pipelines.errors import RecipeError
from assay.pipelines.recipe import (
    LocalPath,
    ModelName,
    RefreshRecipe,
    Section,
    load,
    recipe_hash,
    resolved_json,
)

SMALL = """
name = "small"
store = "out/store"
ladder = ["format", "difficulty"]

[variables]
data = "files"

[[sources]]
name = "svamp"
path = "${data}/svamp.jsonl"
problem = "{Body} {Question}"
answer = "Answer"

[[sources]]
name = "gsm8k"
path = "${data}/gsm8k.jsonl"
problem = "question"
answer = "answer"

[model]
path = "Qwen/Qwen3-0.6B"
temperature = 1

[difficulty]
samples = 16
band = [0, 0.5]
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "recipes" / "small.toml"
    path.parent.mkdir()
    path.write_text(SMALL)
    return path


def refuse(path, *words, overrides=(), model=RefreshRecipe):
    with pytest.raises(RecipeError) as caught:
        load(path, model, overrides)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


def edited(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return path


def test_values_defaults_variables_and_paths(small):
    recipe = load(small, RefreshRecipe)
    assert (recipe.difficulty.samples, recipe.difficulty.band, recipe.difficulty.inclusive) == (
        16,
        (0.0, 0.5),
        "both",
    )
    assert recipe.sources[0].path == small.parent / "files" / "svamp.jsonl"
    assert recipe.store == small.parent / "out" / "store"
    assert (recipe.model.path, recipe.model.temperature) == ("Qwen/Qwen3-0.6B", 1.0)
    assert recipe.answer.max_chars == 100
    assert recipe.format.model_dump() == dict.fromkeys(recipe.format.model_dump(), "drop") | {"open": "keep"}


def test_the_default_ladder_and_band():
    fields = RefreshRecipe.model_fields
    ladder = "format answer duplicates contamination shortcut difficulty suspect_gold selection"
    assert fields["ladder"].default == tuple(ladder.split())
    assert fields["difficulty"].default.band == (0.2, 0.8)


def test_every_field_is_documented():
    for name in recipes.__all__:
        model = getattr(recipes, name)
        if isinstance(model, type) and issubclass(model, Section) and model not in (Section, RefreshRecipe):
            assert [f for f, info in model.model_fields.items() if not info.description] == []


def test_a_recipe_cannot_be_changed(small):
    with pytest.raises(ValidationError):
        load(small, RefreshRecipe).difficulty.samples = 3


def test_an_unknown_key_names_the_file_the_section_the_nearest_and_all(small):
    edited(small, "band =", "bnad =")
    refuse(
        small, f"{small}: [difficulty] has no key 'bnad'; did you mean 'band'? Keys: samples, band, inclusive"
    )


def test_an_unknown_section_and_an_unknown_key_of_a_list_entry(small):
    edited(small, "[difficulty]", "[dificulty]")
    refuse(small, "the recipe has no key 'dificulty'; did you mean 'difficulty'?")
    edited(small, "[dificulty]", "[difficulty]")
    edited(small, 'answer = "Answer"', 'anwser = "Answer"')
    refuse(small, "[[sources]] 'svamp' has no key 'anwser'; did you mean 'answer'?")
    edited(small, 'anwser = "Answer"', 'answer = "Answer"\npolicy = { unit = "required" }')
    refuse(small, "[sources.policy] has no key 'unit'; did you mean 'units'? Keys: verifier, ordered_lists")


def test_all_faults_are_reported_at_once(small):
    edited(small, "samples = 16", "samples = 0\nx = 1")
    assert len(refuse(small, "samples is 0", "no key 'x'").splitlines()) == 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("samples = 16", 'samples = "16"', ['[difficulty] samples is "16"', "valid integer"]),
        ("samples = 16", "samples = true", ["[difficulty] samples is true"]),
        ("band = [0, 0.5]", "band = [0.5, 0.1]", ["[difficulty]", "lower end comes first"]),
        ("band = [0, 0.5]", "band = [0, 1.5]", ["[difficulty] band[1] is 1.5", "less than or equal to 1"]),
        ("band = [0, 0.5]", "band = [0]", ["[difficulty] band is [0]: has too few entries"]),
        (
            "band = [0, 0.5]",
            'inclusive = "bth"',
            ["inclusive is \"bth\"; did you mean 'both'? One of: both, low"],
        ),
        ('"difficulty"]', '"dificulty"]', ["ladder[1] is \"dificulty\"; did you mean 'difficulty'?"]),
        ('"difficulty"]', '"format"]', ["ladder has 'format' twice"]),
        ('ladder = ["format", "difficulty"]', "ladder = []", ["ladder is empty"]),
        ("band = [0, 0.5]", "[contamination]\nstages = []", ["[contamination]: stages is empty"]),
        ("band = [0, 0.5]", "[duplicates]\nthreshold = 0", ["[duplicates] threshold is 0", "greater than 0"]),
        ("samples = 16", "samples = 16\nadaptive = true\nmax_samples = 8", ["max_samples 8 is below samples 16"]),
        ('"difficulty"]', '"contamination"]', ["there are no [[benchmarks]]"]),
        ('name = "gsm8k"', 'name = "svamp"', ["sources has 'svamp' twice"]),
        ('name = "gsm8k"', "", ["[[sources]] 1 lacks 'name'"]),
        ('name = "gsm8k"', 'name = "gsm8k"\nhub = "openai/gsm8k"', ["'gsm8k'", "either path or hub"]),
        (
            'name = "gsm8k"',
            'name = "gsm8k"\nanswer_pattern = "("',
            ["answer_pattern", "not a regular expression"],
        ),
        ('name = "gsm8k"', 'name = "gsm8k"\nanswer_is = "index"', ["needs options"]),
        ("temperature = 1", 'mode = "budget=x"', ["[model] mode", "budget=N"]),
        ("temperature = 1", 'engine = "openai"', ["[model]", "urls"]),
        ('[model]\npath = "Qwen/Qwen3-0.6B"\ntemperature = 1', "", ["difficulty and there is no [model]"]),
        (
            "${data}/gsm8k",
            "${dta}/gsm8k",
            ["[[sources]] 'gsm8k' path", "no variable 'dta'; did you mean 'data'?"],
        ),
        ('data = "files"', "data = 5", ["[variables] data is 5", "valid string"]),
        ('[variables]\ndata = "files"', "variables = 3", ["the recipe variables is 3"]),
        ("[[sources]]", "[[surces]]", ["lacks 'sources'", "no key 'surces'; did you mean 'sources'?"]),
    ],
)
def test_wrong_values_are_named_with_what_would_be_right(small, old, new, words):
    refuse(edited(small, old, new), str(small), *words)


def test_bad_toml_shows_its_line(small):
    refuse(edited(small, "samples = 16", "samples = = 16"), str(small), "line 26", "samples = = 16")
    small.write_text("a = [1,\n")
    refuse(small, "not valid TOML")
    small.write_bytes(b'name = "\xff"')
    refuse(small, "UTF-8")


def test_a_byte_order_mark_and_windows_lines_are_read(small):
    small.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load(small, RefreshRecipe).name == "small"


def test_a_missing_recipe_names_its_neighbours(small):
    refuse(small.with_name("smal.toml"), "no such recipe", "near it: small.toml")
    refuse(small.parent / "no" / "small.toml", f"there is no folder {small.parent / 'no'}")
    refuse(small.parent, "cannot be read")


def test_overrides_are_toml_or_text(small):
    said = ["difficulty.samples=4", "difficulty.band=[0.1, 0.9]", "model.instruction=Think: x=?",
            "difficulty.adaptive=true", "sources.gsm8k.answer=gold", "sources.0.license=MIT",
            "selection.size=5", "difficulty.samples=8"]  # fmt: skip
    recipe = load(small, RefreshRecipe, said)
    assert (recipe.difficulty.samples, recipe.difficulty.band, recipe.difficulty.adaptive) == (
        8,
        (0.1, 0.9),
        True,
    )
    assert recipe.model.instruction == "Think: x=?"
    assert (recipe.sources[1].answer, recipe.sources[0].license, recipe.selection.size) == ("gold", "MIT", 5)


def test_paths_that_were_typed_start_at_the_current_folder(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load(small, RefreshRecipe, ["data=typed", "store=here", "model.path=./m"])
    assert recipe.sources[0].path == tmp_path / "typed" / "svamp.jsonl"
    assert (recipe.store, recipe.model.path) == (tmp_path / "here", str(tmp_path / "m"))
    assert load(small, RefreshRecipe, ["data=/data/x"]).sources[1].path == Path("/data/x/gsm8k.jsonl")
    assert (
        load(small, RefreshRecipe, ["variables.data=2024"]).sources[1].path == tmp_path / "2024/gsm8k.jsonl"
    )


def test_a_model_that_is_a_folder_beside_the_recipe_is_found(small):
    (small.parent / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    assert load(small, RefreshRecipe).model.path == str(small.parent / "Qwen" / "Qwen3-0.6B")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("difficulty", ["--set difficulty: expected section.key=value"]),
        ("difficulty.bnad=1", ["did you mean 'band'?"]),
        ("dta=x", ["no key 'dta'"]),
        ("sources.gsmk8.answer=x", ["no entry 'gsmk8'; did you mean 'gsm8k'?"]),
        ("sources.7.answer=x", ["no entry '7'"]),
        ("name.x=1", ["has no keys"]),
        ("difficulty.samples=many", ['samples is "many"']),
        ("difficulty.samples=1\nx=2", ["samples is"]),  # no second key by way of a line break
    ],
)
def test_faulty_overrides(small, said, words):
    refuse(small, *words, overrides=[said])


def test_the_hash_is_that_of_the_resolved_json_and_sees_every_default(small):
    recipe = load(small, RefreshRecipe)
    assert recipe_hash(recipe) == hashlib.sha256(resolved_json(recipe).encode()).hexdigest()
    assert json.loads(resolved_json(recipe))["duplicates"]["threshold"] == 0.8
    assert recipe_hash(load(small, RefreshRecipe, ["difficulty.samples=16"])) == recipe_hash(recipe)
    assert recipe_hash(load(small, RefreshRecipe, ["difficulty.samples=17"])) != recipe_hash(recipe)


class Adam(Section):
    kind: Literal["adam"]
    betas: tuple[float, float] = (0.9, 0.95)


class Muon(Section):
    kind: Literal["muon"]
    momentum: float = 0.9


class Train(Section):
    optimizer: Annotated[Adam | Muon, Field(discriminator="kind")]
    base: ModelName | None = None
    out: LocalPath | None = None


def test_other_rooms_models_with_unions(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text('[optimizer]\nkind = "adam"\nbetas = [0.8, 0.9]\n')
    assert load(path, Train).optimizer == Adam(kind="adam", betas=(0.8, 0.9))
    path.write_text('[optimizer]\nkind = "adam"\nbeta = [0.8, 0.9]\n')
    refuse(path, "[optimizer] has no key 'beta'; did you mean 'betas'?", model=Train)
    path.write_text('[optimizer]\nkind = "adma"\n')
    refuse(path, "[optimizer]", "adam", model=Train)
