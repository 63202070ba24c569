import csv
import gzip
import json
import random
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.pipelines.errors import SourceError
from assay.pipelines.recipe import Benchmark, RefreshRecipe, Source, load
from assay.pipelines.sources import MAX_CHARS, UNPARSABLE, content_hash, read
from assay.pipelines.store import SCHEMAS, Store

SHARED = Path(__file__).parents[2].parent / "shared"
POOL = Path(__file__).parents[2] / "flows" / "recipes" / "math_pool.toml"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the acceptance data is not here")


def written(path, rows):
    """`path` with one line a row; text and bytes are written as they are."""
    lines = [r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def source(path, **declared):
    return Source(**{"name": "s", "path": path, "problem": "q", "answer": "a"} | declared)


def one(tmp_path, row, **declared):
    """The problem that `row` becomes, or the reason why it is none."""
    rows = [row, dict.fromkeys(row) | {"q": "control", "a": "0", "o": ["u", "v"]}]
    declared = {"problem": "q", "answer": "a"} | declared
    problems, unparsable = read(source(written(tmp_path / "one.jsonl", rows), **declared))
    return unparsable["reason"][0] if unparsable.height else problems.row(0, named=True)


def test_a_row_becomes_a_problem_of_the_stores_schema(tmp_path):
    row = {"q": "1+1?", "a": "2", "level": 3, "by": {"name": "Ada"}, "note": None}
    path = written(tmp_path / "s.jsonl", [row])
    declared = {"license": "MIT", "domain": "level {level}", "language": "en", "key": "by.name"}
    problems, unparsable = read(source(path, **declared))
    assert (problems.schema, unparsable.schema) == (SCHEMAS["problems"], UNPARSABLE)
    found = problems.row(0, named=True)
    assert {k: found[k] for k in ("problem", "answer", "options", "kind", "source", "source_key", "domain")} == {
        "problem": "1+1?", "answer": "2", "options": None, "kind": "math", "source": "s", "source_key": "Ada",
        "domain": "level 3",
    }  # fmt: skip
    assert json.loads(found["extra"]) == {"level": 3, "by": {"name": "Ada"}, "note": None}
    assert (found["license"], found["tests"]) == ("MIT", None)
    Store.open(tmp_path / "store", create=True).append("problems", problems)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("7", "7"), (7, "7"), (7.0, "7"), (-0.5, "-0.5"), (1e-9, "1e-09"), (0.00001, "0.00001"), (0.0, "0"),
        (1e16, "10000000000000000"), (1e300, "1e+300"), (True, "True"), (" x ", "x"), ("", None), (None, None),
        ("   ", None), (2**70, str(2**70)),
    ],
)  # fmt: skip
def test_scalar_golds_become_text(tmp_path, gold, text):
    assert one(tmp_path, {"q": "x", "a": gold})["answer"] == text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"q": "x", "a": {"b": 1}}, "answer: holds a map, not text"),
        ({"q": "x", "a": ["1", "2"]}, "answer: holds a list, not text"),
        ({"q": "x", "a": float("nan")}, "answer: nan is no finite number"),
        ({"q": "x", "a": float("inf")}, "answer: inf is no finite number"),
        ({"q": "x", "a": "\ud800"}, "answer: holds a lone surrogate"),
        ({"q": "x\udfff", "a": "1"}, "problem: holds a lone surrogate"),
        ({"q": "x" * (MAX_CHARS + 1), "a": "1"}, f"problem: {MAX_CHARS + 1} characters"),
        ({"q": "x", "a": "1" * (MAX_CHARS + 1)}, f"answer: {MAX_CHARS + 1} characters"),
        ({"a": "1"}, "problem: the row has no field 'q'"),
        ({"q": None, "a": "1"}, "problem: empty"),
        ({"q": " \n\u200b", "a": "1"}, "problem: empty"),
        ({"q": 5, "a": "1"}, "problem: field 'q' holds a number, not text"),
        ({"q": ["x"], "a": "1"}, "problem: field 'q' holds a list, not text"),
    ],
)
def test_a_wrong_row_is_unparsable_with_its_field(tmp_path, row, reason):
    row.setdefault("q", None) if "no field" not in reason else None
    assert one(tmp_path, row).startswith(reason)


def test_golds_in_lists_patterns_and_several_fields(tmp_path):
    several = {"answer_is": "list"}
    assert one(tmp_path, {"q": "x", "a": ["1", 2.0]}, **several)["answer"] == "1, 2"
    assert one(tmp_path, {"q": "x", "a": ["8"]}, **several)["answer"] == "8"
    assert one(tmp_path, {"q": "x", "a": "8"}, **several)["answer"] == "8"
    assert one(tmp_path, {"q": "x", "a": []}, **several)["answer"] is None
    assert one(tmp_path, {"q": "x", "a": ["1", None]}, **several).startswith("answer item 1: holds null")
    assert one(tmp_path, {"q": "x", "a": [["1"]]}, **several).startswith("answer item 0: holds a list")
    first = {"answer": ("letter", "a")}
    assert one(tmp_path, {"q": "x", "a": "3", "letter": "D"}, **first)["answer"] == "D"
    assert one(tmp_path, {"q": "x", "a": "3", "letter": ""}, **first)["answer"] == "3"
    assert one(tmp_path, {"q": "x", "a": 0, "letter": None}, **first)["answer"] == "0"


def test_a_pattern_takes_the_last_match_and_the_solution_stays_in_extra(tmp_path):
    solution = "#### 3 is wrong\nso\n#### 1,234"
    rows = [{"q": "x", "a": solution}, {"q": "y", "a": "no mark"}]
    problems, unparsable = read(source(written(tmp_path / "s.jsonl", rows), answer_pattern=r"####\s*(.*)"))
    assert problems["answer"].to_list() == ["1,234"]
    assert json.loads(problems["extra"][0]) == {"a": solution}
    assert unparsable["reason"][0].startswith("answer: nothing in it matches")
    assert one(tmp_path, {"q": "x", "a": "is 1"}, answer_pattern=r"\d+")["answer"] == "1"  # without a group


def test_problems_from_several_fields(tmp_path):
    row = {"q": "How many?", "body": "Two cats.", "context": None, "a": "2"}
    assert one(tmp_path, row, problem="{body} {q}")["problem"] == "Two cats. How many?"
    assert one(tmp_path, row, problem=("context", "body", "q"))["problem"] == "Two cats. How many?"
    nested = {"q": "x", "prompt": [{"role": "user", "content": "1+1?"}], "reward": {"gold": 2}, "a": None}
    found = one(tmp_path, nested, problem="prompt.0.content", answer="reward.gold")
    assert found.startswith("problem: the row has no field 'prompt.0.content'")  # the control row has none
    path = written(tmp_path / "n.jsonl", [nested])
    problems, _ = read(source(path, problem="prompt.0.content", answer="reward.gold"))
    assert problems.select("problem", "answer").row(0) == ("1+1?", "2")


@pytest.mark.parametrize(
    ("options", "gold", "declared", "expected"),
    [
        (["A)12 m", "B)13 m"], "B", {}, (["12 m", "13 m"], "B")),
        (["(A) x", "(B) y"], "A", {}, (["x", "y"], "A")),
        (["A bird", "B) y"], "A", {}, (["A bird", "B) y"], "A")),  # not all have a label: none is one
        ([4, 5.0, None], "A", {}, "options C: holds null"),
        (["x", "y", "z"], 2, {"answer_is": "index"}, (["x", "y", "z"], "C")),
        (["x", "y"], "1", {"answer_is": "index"}, (["x", "y"], "B")),
        (["x", "y"], 2, {"answer_is": "index"}, "answer: '2' is no place among 2 options"),
        (["x", "y"], -1, {"answer_is": "index"}, "answer: '-1' is no place"),
        (["x", "y"], True, {"answer_is": "index"}, "answer: 'True' is no place"),
        (["x", "y"], "9" * 5000, {"answer_is": "index"}, "answer: '9999"),
        ({"A": None}, "3", {}, (None, "3")),
        (["x", "y"], "B", {"answer_is": "index"}, "answer: 'B' is no place"),
        (None, 0, {"answer_is": "index"}, "answer: '0' is no place among 0 options"),
        ({"A": "x", "B": "y"}, "B", {}, (["x", "y"], "B")),
        ({"B": "y", "A": "x"}, "B", {}, (["x", "y"], "B")),
        ({"A": "x", "C": "z", "B": None}, "C", {}, (["x", "z"], "B")),  # a gap closes, and the gold moves with it
        ({"A": None, "B": "x"}, "B", {}, (["x"], "A")),
        ({"A": None, "B": "x"}, "A", {}, "answer: 'A' is none of the options B"),  # not x, which is A after it
        ({"A": None, "B": "x"}, "x", {}, (["x"], "x")),
        ({"A": "x", "B": None, "C": "y", "D": "z"}, "C, D", {}, (["x", "y", "z"], "BC")),
        ({"1": "x", "3": "y"}, "13", {}, (["x", "y"], "13")),  # a value, not the options 1 and 3
        ({"a": "x", "c": "y"}, "A", {}, (["x", "y"], "A")),
        ({"A": "x", "B": "y", "C": "z", "D": "u"}, "ACD", {}, (["x", "y", "z", "u"], "ACD")),
        ({"text": ["x", "y"], "label": ["1", "2"]}, "2", {}, (["x", "y"], "B")),
        ({"1": "x", "2": "y"}, "1", {}, (["x", "y"], "A")),
        ([], "3", {}, (None, "3")),
        ("A) x B) y", "A", {}, "options: text, not a list or map"),
        ([["x"], "y"], "A", {}, "options A: holds a list"),
        (["x"] * 27, "A", {}, "options: a list, not a list or map of at most 26"),
    ],
)
def test_options(tmp_path, options, gold, declared, expected):
    found = one(tmp_path, {"q": "x", "a": gold, "o": options}, options="o", **declared)
    if isinstance(found, str):
        assert isinstance(expected, str)
        assert found.startswith(expected)
    else:
        assert (found["options"], found["answer"]) == expected


def test_where_keeps_only_matching_rows(tmp_path):
    rows = [{"q": str(i), "a": "1", "type": t} for i, t in enumerate("xyx")]
    problems, unparsable = read(source(written(tmp_path / "s.jsonl", rows), where={"type": "x"}))
    assert (problems["problem"].to_list(), unparsable.height) == (["0", "2"], 0)


def test_code_sources_have_tests(tmp_path):
    found = one(tmp_path, {"q": "x", "a": None, "t": {"inputs": ["1"]}}, kind="code", tests="t")
    assert (found["kind"], json.loads(found["tests"])) == ("code", {"inputs": ["1"]})
    assert one(tmp_path, {"q": "x", "a": None, "t": "assert 1\n" * MAX_CHARS}, kind="code", tests="t")["tests"]


def test_ids_survive_reordering_and_see_a_corrected_gold(tmp_path):
    rows = [{"q": "a", "a": "1"}, {"q": "b", "a": "2"}, {"q": "a", "a": "1"}]
    ids = read(source(written(tmp_path / "s.jsonl", rows)))[0]["id"].to_list()
    assert len(set(ids)) == 3  # a copy in the file is a row of its own
    again = read(source(written(tmp_path / "s.jsonl", [{"q": "new", "a": "0"}, *reversed(rows)])))[0]["id"].to_list()
    assert set(ids) < set(again)
    mended = read(source(written(tmp_path / "s.jsonl", [{"q": "a", "a": "3"}])))[0]["id"].to_list()
    assert not set(mended) & set(ids)
    other = read(source(tmp_path / "s.jsonl", name="t"))[0]["id"].to_list()
    assert not set(other) & set(mended)


def test_the_text_hash_is_of_the_folded_text(tmp_path):
    rows = [{"q": q, "a": "1"} for q in ("Find  X\n now", "ｆｉｎｄ x now", "find y now")]
    hashes = read(source(written(tmp_path / "s.jsonl", rows)))[0]["text_hash"].to_list()
    assert hashes[0] == hashes[1] != hashes[2]


def test_malformed_lines_are_rows_of_unparsable_and_the_numbers_stay_right(tmp_path):
    rows = [
        b"\xef\xbb\xbf" + json.dumps({"q": "first", "a": "1"}).encode(),
        '{"q": "cut',
        "",
        "[1, 2]",
        '"text"',
        b'{"q": "\xff", "a": "1"}',
        "[" * 100_000,
        '{"q": "n", "a": ' + "9" * 5000 + "}",
        '{"q": "line\u2028separator", "a": "2"}\r',
        {"q": "last", "a": "3"},
    ]
    problems, unparsable = read(source(written(tmp_path / "s.jsonl", rows)))
    assert problems["answer"].to_list() == ["1", "2", "3"]
    assert unparsable["line"].to_list() == [2, 4, 5, 6, 7, 8]
    assert all(reason.startswith("line: ") for reason in unparsable["reason"])
    assert unparsable["file"].unique().to_list() == [str(tmp_path / "s.jsonl")]
    assert unparsable["text"][0] == '{"q": "cut'
    assert unparsable["id"].n_unique() == 6


def rows_of(path, **declared):
    problems, unparsable = read(source(path, **declared))
    return problems.select("problem", "answer").rows(), unparsable["reason"].to_list()


def test_every_format_gives_the_same_rows(tmp_path):
    rows = [{"q": "one, two", "a": "1"}, {"q": 'new\nline "x"', "a": "2"}]
    lines = written(tmp_path / "s.jsonl", rows).read_bytes()
    (tmp_path / "s.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "zipped_under_a_plain_name.jsonl").write_bytes(gzip.compress(lines))
    (tmp_path / "s.json").write_text(json.dumps(rows))
    (tmp_path / "inside.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "lines.json").write_bytes(lines)
    (tmp_path / "s.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    pl.DataFrame(rows).write_parquet(tmp_path / "s.parquet")
    for name, delimiter in (("s.csv", ","), ("s.tsv", "\t")):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, ["q", "a"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    (tmp_path / "s.csv.gz").write_bytes(gzip.compress((tmp_path / "s.csv").read_bytes()))
    expected = [("one, two", "1"), ('new\nline "x"', "2")]
    for path in tmp_path.iterdir():
        assert rows_of(path) == (expected, []), path.name


def test_a_folder_is_read_by_datasets(tmp_path):
    pl.DataFrame({"q": ["x"], "a": [7.0]}).write_parquet(tmp_path / "train.parquet")
    pl.DataFrame({"q": ["y"], "a": [8.0]}).write_parquet(tmp_path / "test.parquet")
    assert rows_of(tmp_path) == ([("x", "7")], [])
    assert rows_of(tmp_path, split="test") == ([("y", "8")], [])
    with pytest.raises(SourceError, match=r"cannot be loaded.*split dev"):
        read(source(tmp_path, split="dev"))


def test_a_folder_that_grew_and_another_of_the_same_name_are_read_anew(tmp_path):
    """The loader's own cache tells folders apart by their last name alone, and never by what is in them."""
    card = "---\nconfigs:\n- config_name: default\n  data_files: rows.jsonl\n---\n"
    for place, count in (("a/pool", 3), ("a/pool", 5), ("b/pool", 7)):
        folder = tmp_path / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(card)
        pl.DataFrame({"q": [f"{i} + 2?" for i in range(count)], "a": ["4"] * count}).write_ndjson(folder / "rows.jsonl")
        assert len(rows_of(folder)[0]) == count


def test_parquet_and_csv_rows_with_faults(tmp_path):
    frame = pl.DataFrame({"q": ["x", None, "z"], "a": [["1"], ["2"], []], "o": [{"A": "u", "B": None}] * 3})
    frame.write_parquet(tmp_path / "s.parquet")
    declared = {"answer_is": "list", "options": "o"}
    assert rows_of(tmp_path / "s.parquet", **declared) == ([("x", "1"), ("z", None)], ["problem: empty"])
    (tmp_path / "s.csv").write_bytes(b"q,a\nx,1\ny\nz,2,3\n\xff,4\n,5\nlast,6\n")
    rows, reasons = rows_of(tmp_path / "s.csv")
    assert rows == [("x", "1"), ("last", "6")]
    assert [r.split(",")[0] for r in reasons] == [
        "line: 1 cells", "line: 3 cells",
        "problem: holds a lone surrogate or bytes that are not UTF-8", "problem: empty",
    ]  # fmt: skip


def refuse(path, *words, **declared):
    with pytest.raises(SourceError) as caught:
        read(source(path, **declared))
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_a_missing_file_names_its_neighbours(tmp_path):
    written(tmp_path / "svamp.jsonl", [{"q": "x", "a": "1"}])
    refuse(tmp_path / "swamp.jsonl", "no such file; near it: svamp.jsonl")
    refuse(tmp_path / "svamp.json", "near it: svamp.jsonl")
    refuse(tmp_path / "no" / "svamp.jsonl", f"there is no folder {tmp_path / 'no'}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("s.jsonl", b"", ["not one problem", "it has no rows"]),
        ("s.csv", b"", ["it has no rows"]),
        ("s.csv", b"q,a\n", ["it has no rows"]),
        ("s.json", b"[]", ["it has no rows"]),
        ("s.json", b"[{]", ["neither JSON nor lines of JSON"]),
        ("s.json", b"3", ["a JSON int"]),
        ("s.jsonl", b"x\n\n{\n", ["2 unparsable rows, the first at line 1"]),
        ("s.jsonl", b'{"q": ""}\n{"q": null, "a": 1}\n', ["2 x problem: empty"]),
        ("s.jsonl", b'{"question": "x", "a": "1"}\n', ["no row has the field 'q'", "Fields: a, question"]),
        ("s.jsonl", b'{"q": "x", "A": "1"}\n', ["no row has the field 'a'", "did you mean 'A'?"]),
        ("s.parquet", b"PAR1 and no more", ["damaged after row 0"]),
        ("s.jsonl.gz", gzip.compress(b'{"q": "x", "a": "1"}\n' * 9999)[:-20], ["damaged after row", "Fetch"]),
    ],
)
def test_a_source_that_gives_nothing_says_why(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    refuse(tmp_path / name, *words)


def test_every_declared_field_must_be_somewhere(tmp_path):
    path = written(tmp_path / "s.jsonl", [{"q": "x", "a": "1", "license": "MIT"}])
    for declared in ({"options": "licence"}, {"key": "licence"}, {"domain": "{licence}"}, {"where": {"licence": "x"}},
                     {"problem": "{q} {licence}"}, {"answer": ("a", "licence")}):  # fmt: skip
        refuse(path, "'licence'", "did you mean 'license'?", **declared)


def fuzzed(rng):
    """A row that is sound with probability one half, and whether it is."""
    sound = {
        "q": f"What is {rng.randrange(10**9)} + 1?",
        "a": str(rng.randrange(99)),
        "x": {"y": [None, {"z": None}]},
    }
    spoil = [
        lambda: (rng.randbytes(rng.randrange(1, 60)).replace(b"\n", b"") or b"x", False),
        lambda: (json.dumps(sound)[: rng.randrange(1, 40)], False),
        lambda: (
            sound | {"q": rng.choice([None, "", " ", 5, [], {}, ["x"], True, "\ud800", "x" * 200_000])},
            False,
        ),
        lambda: (sound | {"a": rng.choice([[], {"b": 1}, [1], [[None]], float("nan"), "\udc00 1"])}, None),
        lambda: (sound | {"a": rng.choice([7.0, 7, True, None, "", "\0", "1" * 500])}, True),
        lambda: ({k: v for k, v in sound.items() if k != "q"}, False),
        lambda: (rng.choice(["null", "[]", "3", '"x"', "{}", "NaN", "[" * 5000, '{"q":' * 5000]), False),
        lambda: (
            sound | {"x": rng.choice(["\ud800", float("inf"), None, [[[[None]]]], {"": {}}, 10**30])},
            True,
        ),
        lambda: ({rng.choice(["\ud83d", "", "q ", "Q"]): 1} | sound, True),
    ]
    return rng.choice(spoil)() if rng.random() < 0.5 else (sound, True)


def test_ten_thousand_fuzzed_rows(tmp_path):
    rng = random.Random(1)
    rows = [fuzzed(rng) for _ in range(10_000)]
    rows = [(row, bool(row["a"] == []) if sound is None else sound) for row, sound in rows]  # [] is no gold at all
    path = written(tmp_path / "s.jsonl", [row for row, _ in rows])
    started = time.process_time()
    problems, unparsable = read(source(path))
    assert time.process_time() - started < 20
    bad = {
        line
        for line, (row, sound) in enumerate(rows, 1)
        if not sound and not (isinstance(row, bytes) and not row.strip())
    }
    assert set(unparsable["line"]) == bad
    assert problems.height == sum(sound for _, sound in rows)
    assert problems["id"].n_unique() == problems.height
    assert unparsable["reason"].str.contains(r"^(line|problem|answer)\b").all()
    store = Store.open(tmp_path / "store", create=True)
    store.append("problems", problems)
    assert store.scan("problems").collect().equals(problems)
    assert all(isinstance(json.loads(extra), dict) for extra in problems["extra"])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.fixed_dictionaries({"q": VALUES, "a": VALUES, "o": VALUES, "k": VALUES}), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_json_row_is_a_problem_or_unparsable(tmp_path_factory, rows):
    rows = [*rows, {"q": "control", "a": "1", "o": ["x", "y"], "k": "key"}]
    path = written(tmp_path_factory.mktemp("any") / "s.jsonl", rows)
    declared = {"options": "o", "key": "k", "answer_is": "list", "domain": "{a}", "license": "{o}{k}"}
    problems, unparsable = read(source(path, **declared | {"license": None, "domain": None}))
    assert problems.height + unparsable.height == len(rows)
    assert problems["problem"].null_count() == 0


def test_the_hash_of_a_benchmark_sees_its_content_alone(tmp_path):
    def hashed(rows, name="b"):
        return content_hash(read(Benchmark(name=name, path=written(tmp_path / "b.jsonl", rows), problem="q"))[0])

    rows = [{"q": "x", "id": 1}, {"q": "y", "id": 2}]
    assert hashed(rows) == hashed([r | {"id": 5} for r in rows], "other")
    assert hashed(rows) != hashed(rows[:1])
    assert hashed(rows) != hashed(rows[::-1])


@needs_shared
def test_the_pool_of_thirteen_sources_is_read_whole_and_fast():
    recipe = load(POOL, RefreshRecipe, [f"data={SHARED / 'data'}"])
    started = time.process_time()
    frames = {s.name: read(s) for s in recipe.sources}
    assert time.process_time() - started < 5
    assert len(frames) == 13
    for name, (problems, unparsable) in frames.items():
        with (SHARED / "data" / "sources" / f"{name}.jsonl").open() as file:
            assert (problems.height, unparsable.height) == (sum(1 for _ in file), 0), name
        assert problems["answer"].null_count() == 0, name
    pool = pl.concat(problems for problems, _ in frames.values())
    assert pool["id"].n_unique() == pool.height == 4951
    golds = {name: problems["answer"] for name, (problems, _) in frames.items()}
    assert golds["gsm8k_train"].str.contains(r"^-?[\d,.]+$").all()
    assert not golds["asdiv"].str.contains(r"\(").any()
    assert golds["svamp"].str.contains(r"^-?\d+(\.\d+)?$").all()
    for name in ("aqua", "mmlu_stem", "gaokao_math_qa"):
        assert golds[name].str.contains("^[A-E ]+$").all()
        assert frames[name][0]["options"].list.len().is_between(4, 5).all()
        assert not frames[name][0]["options"].list.get(0).str.contains(r"^\(?A[).]").any()


@needs_shared
def test_the_five_benchmarks_are_read_whole_with_golds():
    recipe = load(POOL, RefreshRecipe, [f"data={SHARED / 'data'}"])
    sizes = {"math500": 500, "aime24": 30, "amc23": 40, "minerva_math": 272, "gsm8k": 1319}
    for benchmark in recipe.benchmarks:
        problems, unparsable = read(benchmark)
        assert (problems.height, unparsable.height) == (sizes[benchmark.name], 0)
        assert problems["answer"].null_count() == 0
        assert problems["problem"].n_unique() > 0.7 * problems.height
