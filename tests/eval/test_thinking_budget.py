"""A small engine that is a function of (prompt, seed), over a real tokenizer: sweeps are checked token by token."""

import random
from dataclasses import dataclass, field, replace
from functools import cache
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from assay.eval.thinking_budget import QWEN3_STOP, Cost, cost, summarise, sweep
from assay.pipelines.engines import Completion, Request, Sampling
from assay.pipelines.errors import EngineError
from assay.pipelines.generate import sample_seed

TEMPLATE = ("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}<s><think>"
            "{% if not enable_thinking %}</think>{% endif %}")
LETTERS = sorted(set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,<>/\n?+=-"))


def make_tokenizer(tags=("<think>", "</think>")):
    """Characters, and `tags` as tokens of their own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    base = Tokenizer(models.WordLevel({c: i for i, c in enumerate([*LETTERS, "[U]"])}, unk_token="[U]"))
    base.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    base.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, eos_token="</s>", bos_token="<s>",
                                        additional_special_tokens=list(tags))
    tokenizer.chat_template = TEMPLATE
    return tokenizer


shared = cache(make_tokenizer)


@dataclass
class Function:
    """An engine whose next token depends on what stands before and on the seed: scripted by `speak(text, random)`."""

    tokenizer: object
    speak: object
    max_model_len: int = 4096
    requests: list = field(default_factory=list)
    sampled_tokens: int = 0
    fingerprint: str = "function"

    def generate(self, requests, on_done=None):
        self.requests += requests
        done = [self.complete(r) for r in requests]
        for completion in done if on_done else []:
            on_done(completion)
        return done

    def complete(self, request):
        out, end = [], self.tokenizer.eos_token_id
        text = self.tokenizer.decode(request.prompt_ids)
        while len(out) < request.sampling.max_tokens and end not in out:
            piece = self.speak(text, random.Random(f"{request.seed}/{text}"))
            out += self.tokenizer.encode(piece, add_special_tokens=False)
            text += piece
        self.sampled_tokens += len(out)
        reason = "stop" if end in out else "length"
        return Completion(request.key, out, [0.0] * len(out), self.tokenizer.decode(out), reason, 0.0)


class Budgeted(Function):
    """Forces the stop text behind so many tokens of thinking, as vLLM does: also where the last one ended it."""

    def complete(self, request):
        budget, limit = request.sampling.thinking_budget, request.sampling.max_tokens
        if budget is None:
            return super().complete(request)
        first = super().complete(replace(request, sampling=replace(request.sampling, max_tokens=budget)))
        out, end = first.token_ids, self.tokenizer.encode("</think>", add_special_tokens=False)
        if first.finish_reason == "stop" or end[0] in out[:-1]:
            self.sampled_tokens -= len(out)
            return super().complete(request)
        stop = self.tokenizer.encode(QWEN3_STOP, add_special_tokens=False)
        rest = replace(request.sampling, max_tokens=limit - budget - len(stop))
        after = super().complete(replace(request, prompt_ids=[*request.prompt_ids, *out, *stop], sampling=rest))
        self.sampled_tokens += len(stop)
        ids = [*out, *stop, *after.token_ids]
        return Completion(request.key, ids, [0.0] * len(ids), self.tokenizer.decode(ids), after.finish_reason, 0.0)


class Exact:
    def __init__(self):
        self.pairs = []

    def grade_many(self, pairs, policies=None):
        self.pairs += pairs
        return [SimpleNamespace(status="correct" if gold == text.strip() else "wrong", extracted=text.strip())
                for gold, text in pairs]


def wander(text, rng):
    """Thinks a random while, answers a random while."""
    if text.count("<think>") > text.count("</think>"):
        return "</think>" if rng.random() < 0.06 else rng.choice("abc")
    return "</s>" if rng.random() < 0.3 else rng.choice("12 ")


def script(thinking, answer):
    """Thinks `thinking`, then answers `answer`; forced, it answers the number of tokens it had thought."""
    def speak(text, rng):
        said = text[text.rindex("<think>") + len("<think>"):]
        if "</think>" in said:
            thought, reply = said.split("</think>", 1)
            wanted = answer if thought in ("", thinking) else str(len(thought) - len(QWEN3_STOP.split("<")[0]))
            reply = reply.lstrip("\n")
            return wanted[len(reply)] if len(reply) < len(wanted) else "</s>"
        return thinking[len(said)] if len(said) < len(thinking) else "</think>"
    return speak


ONE = pl.DataFrame({"id": ["p"], "problem": ["1+1?"], "answer": ["42"]})
THREE = pl.DataFrame({"id": ["p", "q", "r"], "problem": ["1+1?", "2+2?", "3+3?"], "answer": ["1", "2", "12"]})


def run(speak, budgets, problems=ONE, n=1, tokenizer=None, **more):
    engine, grader = Function(tokenizer or make_tokenizer(), speak), Exact()
    options = {"verifier": grader, "answer_tokens": 8, **more}
    return sweep(engine, problems, budgets, n, **options), engine, grader


@pytest.mark.parametrize("thinking", ["abc", "abcab", "abcabcabcabc"])
def test_the_engines_own_budget_gives_the_rows_of_the_reuse(thinking):
    """Thinking that ends before, in the very last token of, and beyond a budget."""
    budgets, rows = [0, 2, 4, 6, 9], []
    for procedure in ("reuse", "vllm"):
        engine = Budgeted(make_tokenizer(), script(thinking, "42"))
        found = sweep(engine, ONE, budgets, 2, verifier=Exact(), answer_tokens=8, procedure=procedure)
        assert found["new_tokens"].sum() == engine.sampled_tokens
        rows.append(found.drop("new_tokens", "anew_tokens"))
    assert_frame_equal(*rows)
    ended = len(thinking) + 1
    assert rows[0]["forced"].to_list() == [b != 0 and b < ended for b in budgets for _ in range(2)]


def by_budget(found):
    return {row["budget"]: row for row in found.iter_rows(named=True)}


def stop_ids(engine, text=QWEN3_STOP):
    return engine.tokenizer.encode(text, add_special_tokens=False)


def test_natural_and_forced_by_hand():
    found, engine, _ = run(script("aaaaa", "42"), [3, 5, 6, 20])
    rows = by_budget(found)
    # five thoughts and the end tag are six tokens: at 5 the tag has not come
    assert [rows[b]["outcome"] for b in (3, 5, 6, 20)] == ["forced", "forced", "natural", "natural"]
    assert [rows[b]["answer"] for b in (3, 5, 6, 20)] == ["3", "5", "42", "42"]
    assert [rows[b]["status"] for b in (3, 5, 6, 20)] == ["wrong", "wrong", "correct", "correct"]
    assert [rows[b]["thinking_tokens"] for b in (3, 5, 6, 20)] == [3, 5, 6, 6]
    assert [rows[b]["answer_tokens"] for b in (3, 5, 6, 20)] == [2, 2, 3, 3]  # the end of turn is a token
    stop = len(stop_ids(engine))
    assert [rows[b]["tokens"] for b in (3, 5, 6, 20)] == [3 + stop + 2, 5 + stop + 2, 9, 9]
    assert [rows[b]["new_tokens"] for b in (3, 5, 6, 20)] == [2, 2, 0, 9]
    assert [rows[b]["anew_tokens"] for b in (3, 5, 6, 20)] == [5, 7, 9, 9]


def test_stop_is_appended_as_ids_to_the_prefix():
    _, engine, _ = run(script("abcabc", "42"), [4, 20], stop_text="+</think>")
    long, forced = engine.requests
    thought = engine.tokenizer.encode("abca", add_special_tokens=False)
    assert forced.prompt_ids == long.prompt_ids + thought + stop_ids(engine, "+</think>")
    assert (long.sampling.max_tokens, forced.sampling.max_tokens) == (28, 8)


@pytest.mark.parametrize("extensions", [0, 2])
def test_reuse_is_generating_anew(extensions):
    budgets, tokenizer = [0, 4, 9, 16, 33, 60], make_tokenizer()
    options = {"problems": THREE, "n": 6, "tokenizer": tokenizer, "extensions": extensions}
    together, shared, _ = run(wander, budgets, **options)
    assert together.height == 3 * 6 * 6
    assert set(together["outcome"]) >= {"natural", "forced", "truncated"}
    spent = 0
    for budget in budgets:
        alone, engine, _ = run(wander, [budget], **options)
        part = together.filter(pl.col("budget") == budget)
        assert_frame_equal(part.drop("new_tokens"), alone.drop("new_tokens"))
        spent += engine.sampled_tokens
    assert together["new_tokens"].sum() == shared.sampled_tokens
    assert shared.sampled_tokens < 0.8 * spent
    if not extensions:  # an extension throws the answer away that it replaces
        direct = together.filter(pl.col("budget") == 0)
        assert direct["new_tokens"].to_list() == direct["anew_tokens"].to_list()


def test_anew_tokens_are_what_qwen3_would_sample():
    """The two calls of Qwen3's procedure: `budget` tokens, then the answer if the turn has not ended."""
    tokenizer = make_tokenizer()
    together, _, _ = run(wander, [12, 40], problems=THREE, n=6, tokenizer=tokenizer)
    for budget, problem, sample, text, tokens in together.select(
            "budget", "problem_id", "sample", "answer", "anew_tokens").iter_rows():
        engine = Function(tokenizer, wander)
        question = THREE.filter(pl.col("id") == problem)["problem"].item()
        prompt = tokenizer.encode(f"<s>{question}</s><s><think>", add_special_tokens=False)
        ids = ask(engine, prompt, budget, sample_seed(0, problem, "think", sample))
        tag = tokenizer.convert_tokens_to_ids("</think>")
        if tokenizer.eos_token_id in ids and tag in ids:
            answer = ids[ids.index(tag) + 1:][:8]
        elif tag not in ids:
            seed = sample_seed(0, problem, f"budget={budget}", sample)
            answer = ask(engine, prompt + ids + stop_ids(engine), 8, seed)
        else:
            begin = ids.index(tag) + 1
            answer = ids[begin:] + ask(engine, prompt + ids, 8 - (len(ids) - begin),
                                       sample_seed(0, problem, "think", sample))
        assert text == tokenizer.decode(answer, skip_special_tokens=True)
        assert tokens == (len(ids) + len(answer) if tag not in ids else max(
            len(ids), ids.index(tag) + 1 + len(answer)))  # fmt: skip


def test_an_answer_that_runs_on_was_sampled_up_to_the_budget_whichever_way():
    """Three tokens of thinking, then thirty of answer: the first call of Qwen3's procedure takes the budget's."""
    found, engine, _ = run(script("aa", "1" * 30), [2, 10, 20])
    assert by_budget(found)[10]["anew_tokens"] == 3 + 8
    assert by_budget(found)[20]["anew_tokens"] == 20
    assert by_budget(found)[20]["new_tokens"] == 28
    assert cost(found) == Cost(engine.sampled_tokens, 20, 2 + 2 + 11 + 20, 2, 3)


def ask(engine, prompt, limit, seed):
    return engine.generate([Request("", prompt, Sampling(max_tokens=limit), seed)])[0].token_ids if limit > 0 else []


def test_answer_limit_and_blank_answers():
    long, _, grader = run(script("aa", "1234567890"), [10])
    assert long.select("outcome", "status", "extracted", "answer_tokens").row(0) == ("truncated", "truncated", None, 8)
    assert grader.pairs == []
    exact, _, _ = run(script("aa", "1234567"), [10])
    assert exact["outcome"].item() == "natural"  # seven digits and the end of turn: just inside
    blank, _, grader = run(script("aa", "  "), [10])
    assert blank.select("outcome", "status").row(0) == ("empty", "wrong")
    assert grader.pairs == [("42", "  ")]


def test_a_turn_that_ends_inside_thinking_has_no_answer():
    found, _, grader = run(lambda text, rng: "4" if text.endswith("<think>") else "</s>", [1, 10])
    assert by_budget(found)[10]["outcome"] == "empty"
    assert ("42", "") in grader.pairs
    assert by_budget(found)[1]["forced"] is True  # the turn had not ended within one token


def test_budget_0_is_the_direct_mode():
    found, engine, _ = run(script("aaa", "42"), [0])
    assert engine.tokenizer.decode(engine.requests[0].prompt_ids).endswith("<think></think>")
    assert found.select("outcome", "forced", "thinking_tokens", "new_tokens").row(0) == ("natural", False, 0, 3)


def test_extension_replaces_the_end_of_thinking():
    def waits(text, rng):
        said = text[text.rindex("<think>") + 7:]
        if "</think>" in said:
            return "</s>" if said[-1] in "0123456789" else str(said.count("Wait"))
        return "</think>" if said.endswith("aa") else "a"

    found, engine, _ = run(waits, [4, 30], extensions=2)
    rows = by_budget(found)
    assert rows[30]["answer"] == "2"
    # aa Wait aa Wait aa </think> 2 </s>: 2 + 4 + 2 + 4 + 2 + 1 tokens of thinking, 8 of them appended
    assert rows[30]["thinking_tokens"] == 15
    assert rows[30]["anew_tokens"] == 15 + 2 - 8
    assert rows[30]["new_tokens"] == engine.sampled_tokens - rows[4]["new_tokens"] == 3 * (2 + 1 + 2)
    assert rows[4]["outcome"] == "forced"
    prefix = engine.tokenizer.decode(engine.requests[-1].prompt_ids)
    assert prefix.endswith("<think>aaWa" + QWEN3_STOP)


def test_extension_stops_at_the_budget():
    found, _, _ = run(script("aaa", "42"), [5], extensions=3)
    assert found["outcome"].item() == "forced"
    assert found["thinking_tokens"].item() == 5


def test_the_end_tag_may_be_several_tokens():
    spelled, whole = make_tokenizer(tags=("<think>",)), make_tokenizer()
    assert len(spelled.encode("</think>", add_special_tokens=False)) == 8
    speak = script("abc", "42")
    found, _, _ = run(speak, [3, 10, 11, 30], tokenizer=spelled)
    rows = by_budget(found)
    assert [rows[b]["outcome"] for b in (3, 10, 11, 30)] == ["forced", "forced", "natural", "natural"]
    assert rows[11]["thinking_tokens"] == 3 + 8
    assert rows[11]["answer"] == by_budget(run(speak, [11], tokenizer=whole)[0])[11]["answer"] == "42"


def test_seeds_depend_on_problem_budget_and_sample_alone():
    _, engine, _ = run(wander, [0, 5, 50], problems=THREE, n=4)
    assert len({r.seed for r in engine.requests}) == len(engine.requests)
    assert len({r.key for r in engine.requests}) == len(engine.requests)
    assert all(0 <= r.seed < 2**63 for r in engine.requests)
    tokenizer = make_tokenizer()
    forth, _, _ = run(wander, [0, 5, 50], problems=THREE, n=4, tokenizer=tokenizer)
    back, _, _ = run(wander, [50, 0, 5], problems=THREE.reverse(), n=4, tokenizer=tokenizer)
    assert_frame_equal(forth, back)
    other, _, _ = run(wander, [0, 5, 50], problems=THREE, n=4, tokenizer=tokenizer, seed=1)
    assert other["answer"].to_list() != forth["answer"].to_list()


def test_what_does_not_fit_is_refused_before_generating():
    engine = Function(make_tokenizer(), wander, max_model_len=60)
    with pytest.raises(EngineError, match="max_model_len 60"):
        sweep(engine, ONE, [50], 1, verifier=Exact(), answer_tokens=8)
    assert engine.requests == []
    for budgets, n, limit in ([], 1, 8), ([-1], 1, 8), ([4], 0, 8), ([4], 1, 0):
        with pytest.raises(ValueError):
            sweep(engine, ONE, budgets, n, verifier=Exact(), answer_tokens=limit)
    with pytest.raises(ValueError, match="2 problems, 1 ids"):
        sweep(engine, pl.concat([ONE, ONE]), [4], 1, verifier=Exact(), answer_tokens=8)


def test_summary_by_hand():
    rows = [("p", 8, "natural", "correct", 5, 0, 5), ("p", 8, "forced", "wrong", 10, 2, 10),
            ("q", 8, "forced", "correct", 10, 2, 10), ("q", 8, "truncated", "truncated", 16, 8, 16),
            ("p", 0, "truncated", "truncated", 8, 8, 8), ("p", 0, "truncated", "truncated", 8, 8, 8)]
    frame = pl.DataFrame(rows, orient="row", schema=["problem_id", "budget", "outcome", "status", "tokens",
                                                     "new_tokens", "anew_tokens"])
    found = summarise(frame.with_columns(thinking_tokens=pl.col("tokens") - 1), [1, 2])
    assert found["budget"].to_list() == [0, 0, 8, 8]
    assert found["items"].to_list() == [0, 0, 2, 1]
    assert found["estimate"].to_list() == [None, None, 0.75, 1.0]
    assert found["unscored_as_wrong"].to_list() == [0.0, 0.0, 0.5, 1.0]
    row = found.row(2, named=True)
    assert [row[name] for name in ("natural", "forced", "truncated", "empty")] == [0.25, 0.5, 0.25, 0.0]
    assert (row["tokens"], row["new_tokens"], row["anew_tokens"]) == (41 / 4, 12, 41)
    with pytest.raises(ValueError, match="k = 3"):
        summarise(frame, [3])


def test_an_answer_without_any_thinking_has_the_budget_itself():
    """A model that never thinks answers within the budget as it would without one."""
    def plain(text, rng):
        said = text[text.rindex("<think>") + 7:]
        return "</s>" if len(said) == 12 else "4"

    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("<s><think>{%", "<s>{%").replace("</think>{%", "{%")
    engine = Function(tokenizer, lambda text, rng: plain(text.replace("</s><s>", "</s><s><think>"), rng))
    found = sweep(engine, ONE, [12, 13, 40], 1, verifier=Exact(), answer_tokens=8)
    rows = by_budget(found)
    assert [rows[b]["outcome"] for b in (12, 13, 40)] == ["truncated", "natural", "natural"]
    assert rows[40]["answer"] == "4" * 12


def test_cost_in_words():
    found, engine, _ = run(script("aaaaaaaaaaaaaaaaaaaa", "42"), [5, 10, 15, 20])
    # forced four times: 20 thoughts, 8 beyond, and 2 + 3 + 3 + 3 answered; alone the longest takes 20 + 3
    assert cost(found) == Cost(engine.sampled_tokens, 23, sum(found["anew_tokens"]), 4, 20)
    said = "{} tokens sampled, {} times the longest budget alone (20); each budget anew: 90, 4.50 times"
    assert str(Cost(30, 20, 90, 4, 18)) == said.format(30, "1.50")
    assert str(Cost(31, 20, 90, 4, 18)) == said.format(31, "1.55") + "; answer_tokens = 2 would keep it within 1.5"
    assert str(Cost(31, 20, 90, 10, 18)) == said.format(31, "1.55") + "; fewer budgets would keep it within 1.5"


@st.composite
def talkers(draw):
    """A model that ends a thinking, and an answer, with a chance of its own after every token."""
    think, answer = (draw(st.sampled_from([0.0, 0.02, 0.1, 0.5])) for _ in range(2))

    def speak(text, rng):
        if text.count("<think>") > text.count("</think>"):
            return "</think>" if rng.random() < think else "a"
        return "</s>" if rng.random() < answer else "1"
    return speak


@settings(max_examples=60, deadline=None)
@given(talkers(), st.sets(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 12))
def test_a_sweep_costs_at_most_its_own_answers_more_than_the_longest_budget_alone(speak, budgets, limit):
    found, engine, _ = run(speak, budgets, n=3, tokenizer=shared(), answer_tokens=limit)
    price = cost(found)
    assert price.sampled == engine.sampled_tokens <= price.longest + price.answers * limit
    assert price.answers <= 3 * len(budgets)
    if price.sampled > 1.5 * price.longest:
        shorter = price.thinking // (2 * price.answers)
        assert ("fewer budgets" in str(price)) == (shorter == 0)
        if shorter:
            cheap = cost(run(speak, budgets, n=3, tokenizer=shared(), answer_tokens=shorter)[0])
            assert cheap.sampled <= 1.5 * cheap.longest


@settings(max_examples=30, deadline=None)
@given(talkers(), st.integers(1, 8), st.integers(1, 5))
def test_of_any_model_budgets_of_twice_the_answers_so_far_keep_within_the_limit(speak, m, limit):
    price = cost(run(speak, [2 * j * limit for j in range(1, m + 1)], n=3, tokenizer=shared(), answer_tokens=limit)[0])
    assert price.sampled <= 1.5 * price.longest


def test_the_dearest_sweep_by_hand():
    """Nothing ever ends: an answer for budget 0, one at each of five more, and the long generation runs on by one."""
    price = cost(run(lambda text, rng: "1", [0, 10, 20, 30, 40, 50, 60], tokenizer=shared())[0])
    assert price == (60 + 8 + 6 * 8 + 8, 60 + 8, 8 + 10 + 20 + 30 + 40 + 50 + 60 + 6 * 8, 7, 60)
    assert str(price).endswith("; answer_tokens = 4 would keep it within 1.5")


def test_an_engine_that_miscounts_is_found_out():
    class Liar(Function):
        def generate(self, requests, on_done=None):
            done = super().generate(requests, on_done)
            self.sampled_tokens += 1
            return done

    class Endless(Function):
        def complete(self, request):
            done = super().complete(request)
            self.sampled_tokens += 1
            return Completion(done.key, [*done.token_ids, 1], [0.0], done.text, "length", 0.0)

    for kind, words in ((Liar, "engine counts"), (Endless, "ignores max_tokens")):
        with pytest.raises(EngineError, match=words):
            sweep(kind(make_tokenizer(), lambda text, rng: "a"), ONE, [50], 1, verifier=Exact(), answer_tokens=8)


def test_a_store_gives_back_what_was_sampled_and_changes_nothing(tmp_path):
    from assay.pipelines.store import Store

    tokenizer, store = make_tokenizer(), Store.open(tmp_path / "s", create=True)
    options = {"problems": THREE, "n": 3, "tokenizer": tokenizer, "extensions": 1}
    plain, _, _ = run(wander, [0, 6, 30], **options)
    first, engine, _ = run(wander, [0, 6, 30], store=store, **options)
    again, idle, _ = run(wander, [0, 6, 30], store=store, **options)
    assert_frame_equal(plain, first)
    assert_frame_equal(plain, again)
    assert (engine.sampled_tokens > 0, idle.sampled_tokens) == (True, 0)
    more, engine, _ = run(wander, [0, 6, 12, 30], store=store, **options)  # the long generations serve a new budget
    assert 0 < engine.sampled_tokens == more.filter(pl.col("budget") == 12)["new_tokens"].sum()
    assert set(store.scan("generations").collect()["mode"]) == {"direct", "think", "wait=1", "budget=6", "budget=12",
                                                                "budget=30"}  # fmt: skip
