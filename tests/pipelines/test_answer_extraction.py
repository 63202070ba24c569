import pytest

from assay.pipelines.answer_extraction import extract, find_choice, strip_thinking


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("<think>a</think>b", "b"),
        ("opened by the template</think>b", "b"),
        ("<think>never closed \\boxed{1}", ""),
        ("before<think>never closed", "before"),
        ("<think>a</think>b<think>c</think>d</think>", "bd"),
        ("nothing to strip", "nothing to strip"),
    ],
)
def test_thinking_is_stripped(completion, text):
    assert strip_thinking(completion) == text


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
     ("x", None)],
)  # fmt: skip
def test_find_choice(text, letter):
    assert find_choice(text) == letter
