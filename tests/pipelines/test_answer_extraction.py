import pytest

from assay.pipelines.answer_extraction import extract, find_choice, find_choices, strip_thinking


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("<think>a</think>b", "b"),
        ("opened by the template</think>b", "b"),
        ("<think>never closed \\boxed{1}", ""),
        ("before<think>never closed", "before"),
        ("<think>a</think>b<think>c</think>d</think>", "bd"),
        ("nothing to strip", "nothing to strip"),
        ("<think>a</reasoning>b</think>c", "c"),  # another model's closer closes nothing
    ],
)
def test_thinking_is_stripped(completion, text):
    assert strip_thinking(completion) == text


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        ("<thinking>", "</thinking>"),
        ("<Think>", "</Think>"),
        ("<seed:think>", "</seed:think>"),
        ("<reasoning>", "</reasoning>"),
        ("[THINK]", "[/THINK]"),
        ("◁think▷", "◁/think▷"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ],
)
def test_thinking_of_every_model_is_stripped(opener, closer):
    assert strip_thinking(f"{opener}a{closer}b") == "b"
    assert strip_thinking(f"opened by the template{closer}b") == "b"
    assert strip_thinking(f"before{opener}never closed") == "before"
    assert extract(f"{opener}\\boxed{{4}}{closer} I could not say.").reason == "answer_only_in_thinking"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("The answer cannot be 42", None),
        ("The answer should not be 42.", None),
        ("The answer is not 42", None),
        ("42 is not the answer.", None),
        ("It can't be 42.", None),
        ("答案不是42。", None),
        ("The answer is 43. The answer is not 42.", "43"),
        ("The answer is not 42. The answer is 43.", "43"),
        ("The answer is 43, not 42.", "43"),
        ("Since x is not 3, the answer must be 42.", "42"),
        ("Answer: not defined", "not defined"),
    ],
)
def test_what_the_answer_is_said_not_to_be_is_none(completion, answer):
    assert extract(completion).text == answer


def test_the_last_statement_of_a_line_counts():
    assert extract("The answer is A. Wait, the answer is B", letter=True).text == "B"
    assert extract("The answer is A.\nOr: the answer is (A) or (B)", letter=True).text == "AB"
    assert extract("Option B is not correct.", letter=True).text is None
    assert extract("所以正确选项为B.", letter=True).text == "B"


def test_a_text_that_starts_in_thinking_and_never_leaves_it_is_all_thinking():
    assert strip_thinking("so \\boxed{5}", starts_in_thinking=True) == ""
    assert strip_thinking("so</think> \\boxed{5}", starts_in_thinking=True) == " \\boxed{5}"


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("\\boxed{3}, then \\boxed{7}", "7"),
        ("\\boxed{3}, \\boxed{5} and $\\boxed{7}$", "3, 5, 7"),
        ("\\boxed{5} \\boxed{5}", "5"),
        ("\\boxed{\\frac{1}{\\sqrt{2}}}", "\\frac{1}{\\sqrt{2}}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\fbox{5} \\text{ done}", "5"),
        ("put it in \\boxed{} so \\boxed{6}. I left \\boxed{}", "6"),
        ("<answer>12</answer>", "12"),
        ("work\n#### 1,200", "1,200"),
        ("The answer is 3.5. I hope it helps.", "3.5"),
        ("Final Answer: The final answer is $x$. Bye.", "$x$"),
        ("first\n\n$x = 4$", "$x = 4$"),
        ("答案是 4 元。", "4 元"),
        ("解：x=9", "x=9"),
        ("pi/2", "pi/2"),
    ],
)
def test_the_final_answer(completion, answer):
    assert extract(completion).text == answer


def test_boxes_apart_are_joined_only_for_a_list_of_so_many_and_without_a_retraction():
    apart = "(a) gives \\boxed{3} and after more work (b) gives \\boxed{5}"
    assert extract(apart).text == "5"
    assert extract(apart, list_length=2).text == "3, 5"
    assert extract(apart, list_length=3).text == "5"
    assert extract("\\boxed{3} no wait, it must be \\boxed{5}", list_length=2).text == "5"


def test_reasons_without_an_answer():
    assert extract("I was not able to find out, sorry, it is too hard for me.").reason == "no_answer"
    assert (
        extract("<think>\\boxed{4}</think> I was not able to determine it at all.").reason == "answer_only_in_thinking"
    )
    assert extract("").reason == "no_answer"


def test_only_a_closed_box_is_complete():
    assert extract("\\boxed{42}").boxed
    assert not extract("\\boxed{42").boxed
    assert not extract("The answer is 42").boxed


def test_a_letter_gold_prefers_the_statement_that_names_a_letter():
    text = "Since \\boxed{x > 2} holds,\n\n**Answer: D**"
    assert extract(text).text == "x > 2"
    assert extract(text, letter=True).text == "D"


@pytest.mark.parametrize(
    ("text", "letter"),
    [("(B)", "B"), ("E: a score", "E"), ("\\textbf{(A)}", "A"), ("选项 (C) 3", "C"), ("Apple", None), ("12", None),
     ("x", None), ("(A) or (B)", None), ("(A) 12 or (B) 13", None), ("(B) Vitamins A and C", "B")],
)  # fmt: skip
def test_find_choice(text, letter):
    assert find_choice(text) == letter


@pytest.mark.parametrize(
    ("text", "letters"),
    [("A、B、D", "ABD"), ("C, A", "AC"), ("(A) or (C)", "AC"), ("\\text{A and C}", "AC"), ("ABD", "ABD"), ("A", None),
     ("ABA", None), ("A+B", None), ("a, b", None), ("A, 2", None)],
)  # fmt: skip
def test_find_choices(text, letters):
    assert find_choices(text) == letters
