"""Declarations: every one loads from a file by the code that loads it from the Hub; options, windows, packed tests."""

import base64
import json
import pickle
import zlib
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from assay.eval.benchmarks import Exam, contamination, declarations, declared, load
from assay.eval.recipe import EvaluateRecipe
from assay.pipelines import rows
from assay.pipelines.code_tests import read_tests
from assay.pipelines.errors import RecipeError, SourceError
from assay.pipelines.settings import load as load_recipe

ROWS = {
    "gsm8k": {"question": "2 + 2?", "answer": "It is 2 more.\n#### 4"},
    "math500": {"problem": "2 + 2?", "answer": "4"},
    "aime24": {"problem": "2 + 2?", "answer": "004"},
    "aime25": {"problem": "2 + 2?", "answer": "4"},
    "amc23": {"question": "2 + 2?", "answer": 4.0},
    "minerva": {"question": "2 + 2?", "answer": "4"},
    "olympiadbench": {"question": "2 + 2?", "final_answer": ["4", "5"]},
    "gpqa_diamond": {"Question": "2 + 2?", "Correct Answer": "4", "Incorrect Answer 1": "3", "Incorrect Answer 2": "5",
                     "Incorrect Answer 3": "22"},
    "livecodebench": {"question_content": "Add.", "question_id": "a1", "contest_date": "2025-02-03T00:00:00",
                      "starter_code": "", "public_test_cases": '[{"input": "1 1", "output": "2", "testtype": "stdin"}]',
                      "private_test_cases": '[{"input": "2 2", "output": "4", "testtype": "stdin"}]'},
}  # fmt: skip
GOLDS = {"aime24": "004", "olympiadbench": "4, 5"}


def written(folder: Path, *items: dict) -> str:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


def exam(**entry: object) -> Exam:
    return Exam.model_validate_json(json.dumps(declared(entry)), strict=True)


def test_the_issues_benchmarks_are_declared_and_valid() -> None:
    assert sorted(declarations()) == sorted([*ROWS, "humaneval_plus", "mbpp_plus"])
    for name in declarations():
        found = exam(use=name)
        assert found.hub
        assert found.samples
        assert found.budgets
        assert list(found.budgets) == sorted(set(found.budgets))
        assert (len(found.budgets) * 512 <= found.budgets[-1] / 2) == (name != "gsm8k")  # within 1.5 times, surely
    assert (exam(use="aime24").samples, exam(use="math500").samples, exam(use="humaneval_plus").samples) == (64, 4, 10)


@pytest.mark.parametrize("name", ROWS)
def test_a_copy_in_a_file_and_a_data_set_as_on_the_hub_give_the_same_items(name: str, tmp_path: Path) -> None:
    found = load(exam(use=name, path=written(tmp_path, ROWS[name])))
    row = found.frame.row(0, named=True)
    if name not in ("gpqa_diamond", "livecodebench"):
        assert (row["problem"], row["answer"]) == ("2 + 2?", GOLDS.get(name, "4"))
    assert (row["source"], found.frame.height) == (name, 1)
    told = declarations()[name]
    split, config = told.get("split", "test"), told.get("config", "default")
    (tmp_path / "README.md").write_text(
        f"---\nconfigs:\n- config_name: {config}\n  data_files:\n  - split: {split}\n    path: items.jsonl\n---\n"
    )
    again = load(exam(use=name, path=str(tmp_path)))  # `datasets.load_dataset` with the config and split of the Hub
    assert (again.frame.equals(found.frame), again.hash) == (True, found.hash)


def test_options_are_shuffled_by_the_item_and_asked_for_by_letter(tmp_path: Path) -> None:
    items = [{**ROWS["gpqa_diamond"], "Question": f"{i} + 2?", "Correct Answer": f"right {i}"} for i in range(40)]
    frame = load(exam(use="gpqa_diamond", path=written(tmp_path, *items))).frame
    for i, (problem, letter) in enumerate(frame.select("problem", "answer").iter_rows()):
        assert f"\n{letter}) right {i}" in problem
        assert problem.startswith(f"{i} + 2?\n\nA) ")
    assert frame["answer"].n_unique() == 4
    again = load(exam(use="gpqa_diamond", path=written(tmp_path, *items[::-1]))).frame
    assert dict(zip(again["id"], again["answer"])) == dict(zip(frame["id"], frame["answer"]))
    listed = {"question": "Which?", "options": ["one", "two"], "answer": 1}
    own = exam(name="own", path=written(tmp_path, listed), problem="question", options="options", answer="answer",
               answer_is="index", template="Choose. {problem}")  # fmt: skip
    assert load(own).frame.select("problem", "answer").row(0) == ("Choose. Which?\n\nA) one\nB) two", "B")


def test_a_window_of_dates(tmp_path: Path) -> None:
    days = ["2024-12-31", "2025-01-01T00:00:00", "2025-02-28", "2025-03-01"]
    items = [{**ROWS["livecodebench"], "question_id": day, "contest_date": day} for day in days]
    entry = {"use": "livecodebench", "path": written(tmp_path, *items), "since": "2025-01-01", "until": "2025-03-01"}
    assert exam(**entry).since == date(2025, 1, 1)
    assert load(exam(**entry)).frame.height == 2
    with pytest.raises(SourceError, match="widen the window"):
        load(exam(**{**entry, "since": "2030-01-01", "until": "2031-01-01"}))
    with pytest.raises(ValueError, match="need date"):
        exam(name="x", path=entry["path"], problem="question_content", since="2025-01-01")


class Evil:
    def __reduce__(self) -> tuple:
        return print, ("ran",)


def packed(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_packed_tests_are_read_and_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    private = json.dumps([{"input": "2 2", "output": "4", "testtype": "stdin"}])
    item = {**ROWS["livecodebench"], "private_test_cases": packed(private)}
    tests = load(exam(use="livecodebench", path=written(tmp_path, item))).frame["tests"].item()
    assert read_tests(tests).examples == (("1 1", "2"), ("2 2", "4"))
    with pytest.raises(pickle.UnpicklingError):
        load(exam(use="livecodebench", path=written(tmp_path, {**item, "private_test_cases": packed(Evil())})))
    assert capsys.readouterr().out == ""


def test_calls_of_a_function(tmp_path: Path) -> None:
    calls = json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}])
    item = {**ROWS["livecodebench"], "starter_code": "class Solution:", "metadata": '{"func_name": "add"}'}
    item |= {"public_test_cases": calls, "private_test_cases": "[]"}
    row = load(exam(use="livecodebench", path=written(tmp_path, item))).frame.row(0, named=True)
    assert row["problem"].endswith("class Solution:")
    assert json.loads(row["tests"]) == {"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [6]}
    assert row["answer"] == row["tests"]


def test_evalplus_tasks_are_programs_to_be_tested(tmp_path: Path) -> None:
    task = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "base_input": [[1]],
            "canonical_solution": "    return x\n", "plus_input": [[2]], "atol": 0, "contract": ""}  # fmt: skip
    found = load(exam(use="humaneval_plus", path=written(tmp_path, task)))
    assert found.frame["id"].item() == "humaneval_plus HumanEval/0"
    assert "compare('humaneval', 'f'" in found.frame["answer"].item()
    published = {**{name: task[name] for name in ("task_id", "prompt", "entry_point")}, "test": "def check(c): ..."}
    other = load(exam(use="humaneval_plus", path=written(tmp_path, published)))  # as on the Hub
    assert "check(f)" in other.frame["answer"].item()
    assert other.hash != found.hash  # other tests are another version


@pytest.mark.parametrize(("given", "commit"), [({}, "d32357cf319e50e9c8d8dab5ea876c72b0fd321b"),
                                               ({"revision": "main"}, "a" * 40), ({"hub": "own/copy"}, "a" * 40),
                                               ({"revision": "b" * 40}, "b" * 40)])  # fmt: skip
def test_a_commit_of_the_hub_is_resolved_read_and_recorded(
        given: dict, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub itself is played: it has one commit."""
    asked: list[tuple] = []
    task = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c): ..."}

    def load_dataset(name: str, config: object, split: str, revision: str, cache_dir: None) -> list[dict]:
        asked.append((name, split, revision))
        return [task]

    info = lambda self, repo, **more: SimpleNamespace(sha="a" * 40)  # noqa: E731
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    found = load(exam(use="humaneval_plus", **given))
    assert asked == [(given.get("hub", "evalplus/humanevalplus"), "test", commit)]
    assert found.revision == commit
    assert f" at {commit}, hash " in found.version()
    assert found.exam.pinned() == (commit != "a" * 40)


def test_a_hub_that_says_nothing_leaves_the_revision_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(self: object, repo: str, **more: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", offline)
    monkeypatch.setattr("datasets.load_dataset", lambda name, config, **more: [ROWS["minerva"]])
    found = load(exam(use="minerva"))
    assert (found.revision, found.frame.height) == (None, 1)
    assert "math-ai/minervamath at an unknown commit" in found.version()


def test_training_problems_are_looked_for_in_every_benchmark(tmp_path: Path) -> None:
    text = "A train with {} red waggons leaves the northern harbour; how many wheels has it got?"
    texts = [text.format(i) for i in (3, 8, 21)]
    clean = load(exam(use="math500", path=written(tmp_path, ROWS["math500"])))
    items = load(exam(use="aime24", path=written(tmp_path, *({"problem": t, "answer": "1"} for t in texts))))
    other = "Paint the fence of the old mill in four colours of your own choice."
    trained = pl.Series([texts[1].upper(), other, texts[1]])
    found = contamination([items, clean], trained)
    assert found.select("benchmark", "items", "contaminated").rows() == [("aime24", 3, 1), ("math500", 1, 0)]
    assert found["example"].to_list() == [texts[1].upper(), None]
    variants = pl.Series([texts[0].replace("3", "5")])
    for stages, count in ((None, 1), (["exact", "ngram"], 0), (["number_variant"], 1)):
        assert contamination([items], variants, stages)["contaminated"].item() == count


RECIPE = """
name = "e"
store = "s"
[[models]]
name = "m"
path = "reasoner"
"""


def recipe(folder: Path, text: str) -> EvaluateRecipe:
    (folder / "e.toml").write_text(RECIPE + text)
    return load_recipe(folder / "e.toml", EvaluateRecipe)


def test_a_recipe_names_declarations_and_sets_what_it_wants(tmp_path: Path) -> None:
    own = '[[benchmarks]]\nuse = "aime24"\nsamples = 8\n[[benchmarks]]\nuse = "math500"\npath = "x.jsonl"'
    first, second = recipe(tmp_path, own).benchmarks
    assert (first.name, first.hub, first.samples, first.budgets) == ("aime24", "HuggingFaceH4/aime_2024", 8, None)
    assert (second.hub, second.path, second.samples) == (None, tmp_path / "x.jsonl", 4)
    swept = recipe(tmp_path, '[budgets]\nsamples = 2\nks = [1]\n[[benchmarks]]\nuse = "math500"')
    assert swept.benchmarks[0].budgets == (0, 512, 1024, 2048, 4096, 8192)
    with pytest.raises(RecipeError, match=r"no benchmark 'mth500'; did you mean 'math500'\?"):
        recipe(tmp_path, '[[benchmarks]]\nuse = "mth500"')
    with pytest.raises(RecipeError, match="two benchmarks are called math500"):
        recipe(tmp_path, '[[benchmarks]]\nuse = "math500"\n' * 2)
    with pytest.raises(RecipeError, match="needs tests, program, cases or evalplus"):
        recipe(tmp_path, '[[benchmarks]]\nname = "c"\npath = "x"\nproblem = "p"\nkind = "code"')
    with pytest.raises(RecipeError, match="distillation needs teacher, before and after; found teacher"):
        recipe(tmp_path, '[[models]]\nname = "t"\npath = "x"\nrole = "teacher"\n[[benchmarks]]\nuse = "math500"')


def test_the_whole_files_load(shared: Path) -> None:
    names = {"gsm8k": 1319, "math500": 500, "aime24": 30, "amc23": 40}
    for name, count in names.items():
        assert load(exam(use=name, path=str(shared / "data/benchmarks" / f"{name}.jsonl"))).frame.height == count
    minerva = {"problem": "problem", "answer": "solution", "answer_pattern": r"\\boxed\{(.*)\}"}
    path = str(shared / "data/benchmarks/minerva_math.jsonl")
    assert load(exam(use="minerva", path=path, **minerva)).frame.height == 272
    assert rows.place_of(exam(use="minerva", path=path)) == path
