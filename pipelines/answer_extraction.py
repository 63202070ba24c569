"""Where a completion states its final answer: thinking stripped, then boxes, then final-answer phrases.

Order: the last `\\boxed{}` of the text after thinking; `<answer>` tags narrow that text first. Boxes that stand side
by side ("\\boxed{3}, \\boxed{5}") are one answer. Without a box: "the answer is ...", "####", a last line that holds
nothing but mathematics, and at last the whole text when it is a few words.
"""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import NamedTuple

__all__ = ["Extraction", "extract", "find_choice", "find_choices", "strip_thinking"]

SHORT_ANSWER_CHARS = 80
LONGEST_ANSWER_CHARS = 600

_THINKING_TAGS = {
    "<think>": "</think>", "<thinking>": "</thinking>", "<Think>": "</Think>", "<seed:think>": "</seed:think>",
    "<reasoning>": "</reasoning>", "[THINK]": "[/THINK]", "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
}  # fmt: skip
_THINKING_WORDS = ("hink", "THINK", "reasoning>", "thought|>")  # every tag has one: the cheap look for any tag
_OPEN = re.compile("|".join(map(re.escape, _THINKING_TAGS)))
_CLOSE = re.compile("|".join(map(re.escape, _THINKING_TAGS.values())))
_THOUGHT = re.compile("|".join(f"{re.escape(tag)}.*?{re.escape(end)}" for tag, end in _THINKING_TAGS.items()), re.S)
_BOX = re.compile(r"\\(?:begin\s*)?(?:boxed|fbox|framebox)\s*(?=[{\w\\-])")
_BOXED_ENVIRONMENT = re.compile(r"\\begin\{boxed\}(.*?)\\end\{boxed\}", re.S)
_ANSWER_TAG = re.compile(r"<answer>(.*?)(?:</answer>|$)", re.S)
_SIDE_BY_SIDE = re.compile(
    r"(?:[\s,;$、，；&]|\\[,;() ]|\\q?quad|\\text\s*\{\s*(?:and|or|和|或)\s*\}|\b(?:and|or)\b|和|或)*"
)
_RETRACTION = re.compile(r"\b(?:wait|recomput\w*|actually|instead|correction|mistake|redo|oops)\b|重新|不对", re.I)
_STATED = re.compile(
    r"(?:\b(?:answers?|correct (?:option|choice))\b[^\n.:=：。$]{0,60}?(?:\bis\b|\bare\b|\bwould be\b|\bbe\b|[:=：])"
    r"|(?:答案|正确的?选项)\s*(?:应该|应)?(?:是|为|[:：】])|答\s*[:：]"
    r"|(?<!不)选(?:项|择)?\s*[:：]?\s*(?=[(（]?[A-J]))"
    rf"(?:\s*(?:equal to|[:：]))?[\s*]*(?=(.{{1,{LONGEST_ANSWER_CHARS + 1}}}))",  # the next may stand on the same line
    re.I,
)
_NEGATION = re.compile(r"\b(?:not|never|cannot|wrong|incorrect)\b|n['’]t\b|不|并非|错误", re.I)
_NEGATED_VERB = re.compile(r"(?:\b(?:not|never|cannot)|n['’]t) (?:\w+ly )?(?:is|are|be)\W*$", re.I)
_DENIED = re.compile(r"(?:\w+ )?(?:not|never)\b(?! [a-z]{3,}$)", re.I)  # "not 42", but "not defined" is an answer
_HASHES = re.compile(r"^\s*####\s*(.+)$", re.M)
_SENTENCE_END = re.compile(r"\.(?=\s|$|\*)|[。！]|</|,?\s+(?:because|since|which|where|so that)\b|，?因为|,\s+not\b")
_CONNECTIVE = re.compile(r"^(?:therefore|thus|hence|so|finally|所以|因此|故|综上(?:所述)?|解得?|答)[\s,，:：]*", re.I)
_NUMBER = r"\$?-?[\d.,/]*\d"
_CONCLUSION = re.compile(
    rf"\b(?:is|are|equals|be)\s+(\$[^$]+\$|\\\([^$]+?\\\)|{_NUMBER}(?:(?:,|,? and|,? or) {_NUMBER})*)[.!]?$"
)
_CHINESE_LEAD = re.compile(r"^[\u4e00-\u9fff]{1,12}(?=[-\d$\\])")
_PROSE_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!and\b|or\b|sqrt\b|pi\b|sin\b|cos\b|tan\b|log\b)[A-Za-z]{2,}|[\u4e00-\u9fff]{3,}"
)
_MATH = re.compile(r"\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)
_CHOICE = re.compile(
    r"^\W*(?:\\text\w*\s*\{\W*)?([{L}])[\s)}*.,。．$\]）]*$"  # the letter alone, whatever wraps it
    r"|^\W*(?:\\text\w*\s*\{\W*)?([{L}])\s*[):.：、）}]\s*\S"  # "E: a polygenic risk score"
    r"|(?:option|choice|选项?|选择)\s*[(（]?\s*([{L}])\b".replace("{L}", "A-J"),
    re.I,
)
_CHOICES = re.compile(
    r"(?:(?:[\s,;.、()（）$*{}]|\\text(?:bf|it|rm|sf|tt)?(?![a-z])|\band\b|\bor\b|[和或])*[A-J]){2,}[\s,;.、。()（）$*{}]*"
)
_ANOTHER_CHOICE = re.compile(r"(?:\bor\b|\band\b|[,;、和或])\s*[(（]?[A-J]\s*[):.：）]\s*\S")


class Extraction(NamedTuple):
    """The answer as written, or None with the reason. `boxed`: it came from a complete box."""

    text: str | None
    reason: str | None = None
    boxed: bool = False


def strip_thinking(completion: str, starts_in_thinking: bool = False) -> str:
    """The text outside thinking; "" when thinking never ended.

    A `</think>` without its `<think>` means that the template had opened it: all before it is thinking.
    """
    if not any(word in completion for word in _THINKING_WORDS):
        return "" if starts_in_thinking else completion
    head = _CLOSE.search(completion)
    first = _OPEN.search(completion)
    if head and (first is None or head.start() < first.start()):
        completion = completion[head.end() :]
    elif starts_in_thinking and head is None:
        return ""
    text = _THOUGHT.sub("", completion)
    unclosed = _OPEN.search(text)
    return _CLOSE.sub("", text[: unclosed.start()] if unclosed else text)


def extract(
    completion: str, list_length: int = 0, letter: bool = False, starts_in_thinking: bool = False
) -> Extraction:
    """The final answer of a completion.

    Args:
        completion: the sampled text, thinking included.
        list_length: number of answers that the gold lists (0: one): boxes apart from each other are then joined.
        letter: the gold is a multiple-choice letter: an answer that names a letter is preferred.
        starts_in_thinking: the prompt already opened the thinking block.
    """
    text = strip_thinking(completion, starts_in_thinking)
    text = _BOXED_ENVIRONMENT.sub(r"\\boxed{\1}", text) if "{boxed}" in text else text
    tags = _ANSWER_TAG.findall(text)
    if tags and tags[-1].strip():
        text = tags[-1]
    found = _from_boxes(text, list_length)
    if letter and (found.text is None or not (find_choice(found.text) or find_choices(found.text))):
        found = _letter(text) or found
    if found.text is None:
        found = _from_phrases(text)
    if found.text is None and text != completion and "boxed" in completion:
        return Extraction(None, "answer_only_in_thinking")
    return found


def find_choice(text: str) -> str | None:
    """The one multiple-choice letter that an answer names ("(B) 3.3 MeV", "E: ...", "选 B"), upper case."""
    match = _CHOICE.search(text.strip())
    if match is None or find_choices(text) or _ANOTHER_CHOICE.search(text):
        return None
    return next(group for group in match.groups() if group).upper()


def find_choices(text: str) -> str | None:
    """The letters, sorted, of an answer that is several different ones and nothing else ("A、C", "(A) or (C)")."""
    if not _CHOICES.fullmatch(text.strip()):
        return None
    letters = sorted(re.sub(r"[^A-J]", "", text))
    return "".join(letters) if len(letters) == len(set(letters)) else None


def _boxes(text: str) -> list[tuple[int, int, str, bool]]:
    """Every box: start, end, content (nested boxes unwrapped), and whether it was closed."""
    found: list[tuple[int, int, str, bool]] = []
    position = 0
    while match := _BOX.search(text, position):
        start = match.end()
        if text[start] != "{":
            token = re.match(r"-?[\w.]+|\\[a-zA-Z]+", text[start:])
            position = start + 1
            if token and "begin" not in match.group() and re.fullmatch(r"-?\d[\d.]*", token.group().rstrip(".")):
                found.append((match.start(), start + token.end(), token.group().rstrip("."), True))
            continue
        end = _closing_brace(text, start)
        closed = end is not None
        stop = end if end is not None else len(text)
        content = text[start + 1 : stop]
        if not closed:
            content = content.split("\n")[0].strip().rstrip("$.")
        inner = _boxes(content) if "box" in content else []
        content = inner[-1][2] if inner else re.sub(r"^\\text\{[^{}]*\banswer is:?\s*\}", "", content)
        if content.strip():
            found.append((match.start(), stop + 1, content.strip(), closed))
        position = stop + 1
    return found


def _closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; escaped braces do not count."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text[start:], re.S):
        depth += (match.group() == "{") - (match.group() == "}")
        if depth == 0 and match.group() == "}":
            return start + match.start()
    return None


def _from_boxes(text: str, list_length: int) -> Extraction:
    boxes = _boxes(text) if "box" in text else []
    if not boxes:
        return Extraction(None, "no_answer")
    group = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _SIDE_BY_SIDE.fullmatch(text[box[1] : group[0][0]]):
            break
        group.insert(0, box)
    if len(group) == 1 < list_length and "," not in group[0][2]:
        group = _boxes_of_one_list(text, boxes, list_length) or group
    answers = list(dict.fromkeys(box[2] for box in group))
    return Extraction(", ".join(answers), None, boxed=all(box[3] for box in group))


def _boxes_of_one_list(text: str, boxes: list[tuple[int, int, str, bool]], length: int) -> list | None:
    """The last boxes when there are as many different ones as the gold lists, with no retraction between them."""
    last = {box[2]: box for box in boxes}
    group = sorted(last.values())
    if len(group) != length:
        return None
    between = " ".join(text[a[1] : b[0]] for a, b in pairwise(group))
    return None if _RETRACTION.search(between) else group


def _letter(text: str) -> Extraction | None:
    for statement in _statements(text):
        sentence = _sentence(statement)
        if letters := find_choices(statement) or find_choices(sentence) or find_choice(sentence):
            return Extraction(letters)
    if len(text.strip()) <= SHORT_ANSWER_CHARS and not _NEGATION.search(text) and (letter := find_choice(text)):
        return Extraction(letter)
    return None


def _statements(text: str) -> Iterator[str]:
    """What follows each "the answer is" on its line, the last first; "cannot be 42" and "is not 42" state nothing."""
    for match in reversed(list(_STATED.finditer(text))):
        if not _NEGATED_VERB.search(match.group()) and not _DENIED.match(_sentence(match[1])):
            yield match[1]


def _from_phrases(text: str) -> Extraction:
    text = text.strip()
    for statement in (*_HASHES.findall(text)[-1:], *islice(_statements(text), 1)):
        answer = _CHINESE_LEAD.sub("", _sentence(statement))
        if answer and len(answer) <= LONGEST_ANSWER_CHARS:
            return Extraction(answer)
    if line := _last_line(text):
        return Extraction(line)
    denied = _NEGATION.search(text) and re.search(r"\d|\b[A-J]\b", text)
    short = len(text) <= SHORT_ANSWER_CHARS and "\n" not in text and len(_PROSE_WORD.findall(text)) <= 4
    return Extraction(_CONNECTIVE.sub("", text)) if text and short and not denied else Extraction(None, "no_answer")


def _sentence(text: str) -> str:
    """`text` up to the end of its first sentence, without markdown."""
    return _SENTENCE_END.split(text.strip(), maxsplit=1)[0].strip().strip("*_ ").rstrip(",;，；")


def _last_line(text: str) -> str | None:
    """The last line when it is mathematics alone, or a conclusion with one formula."""
    lines = [line for line in text.splitlines() if line.strip().strip("$*\\[]() ")]
    if not lines:
        return None
    line = lines[-1].strip().strip("*").strip()
    if (match := _CONCLUSION.search(line)) and not _NEGATED_VERB.search(line[: match.start(1)]):
        return match[1]
    rest = _CONNECTIVE.sub("", line)
    if not _PROSE_WORD.search(rest) and re.search(r"\d|[a-zA-Zπ]", rest):
        return rest.rstrip(".。")
    formulas = [next(group for group in match if group) for match in _MATH.findall(rest)]
    return formulas[0] if rest != line and len(formulas) == 1 and not _NEGATION.search(rest) else None
