"""What a language model's reply says, read without the model: pure functions from raw text to values.

A reply is taken as it came: thinking, fences, talk around the answer, single quotes, a wrong case, a refusal, a loop.
Damaged JSON is put right by `json_repair`, on one object's own text at a time, and what it makes of that is believed
only where it is an object with the keys asked for and texts without JSON's own marks.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.text import content_words_kept, words_of
from schemas.records import Factors, FrozenReply

FACTORS = ("appearance", "action", "background")

MAX_ANSWER_WORDS = 8
"""A longer answer to "a single word or phrase" is no label; it is null, and the raw answer stays."""

_LONGEST = 20_000  # characters of a reply that are read: 400 times a caption
_TRIES = 8  # places at which an object may begin
_DEEPEST = 4

NO_JSON, WRONG_KEYS, CUT, REFUSAL, LOOP = "no_json", "wrong_keys", "cut", "refusal", "loop"
EMPTY, TOO_LONG, NOT_ENGLISH = "empty", "too_long", "not_english"

_KEYS = {
    "appearance": "appearance",
    "appearence": "appearance",
    "apperance": "appearance",
    "look": "appearance",
    "attire": "appearance",
    "action": "action",
    "actions": "action",
    "activity": "action",
    "background": "background",
    "back_ground": "background",
    "environment": "background",
    "surroundings": "background",
}
_LABEL_KEYS = {
    "action": "action",
    "actions": "action",
    "normal": "action",
    "behavior": "action",
    "behaviour": "action",
    "anomaly": "anomaly",
    "anomalies": "anomaly",
    "failure": "anomaly",
    "scene": "scene",
    "background": "scene",
    "location": "scene",
    "setting": "scene",
}
_CAPTION_KEYS = {"caption": "caption", "description": "caption", "text": "caption"}

_NOTHING = frozenset(
    {
        *("", "none", "null", "nil", "n/a", "na", "nan", "nothing", "unknown", "unclear", "unspecified", "empty"),
        *(
            "not mentioned",
            "not specified",
            "not applicable",
            "not visible",
            "not described",
            "not given",
            "not stated",
        ),
        *("none mentioned", "none specified", "no information", "not available", "cannot tell", "-", "...", "…"),
        *("无", "没有", "未提及", "未知"),
    }
)
_NO_LABEL = _NOTHING | {"yes", "no", "true", "false", "normal", "no anomaly", "no failure", "no action", "other"}

_THOUGHT = re.compile(r"<(think|thinking|thought)\b[^>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_THOUGHT_END = re.compile(r"</(?:think|thinking|thought)\s*>", re.IGNORECASE)
_THOUGHT_START = re.compile(r"<(?:think|thinking|thought)\b[^>]*>?", re.IGNORECASE)
_SPECIAL = re.compile(r"<\|[^|<>]{1,30}\|>|</?s>|<end_of_turn>|\[/?INST\]")
_FENCE = re.compile(r"```[\w-]*")
_SORRY = re.compile(
    r"(?:(?:i'm |i am )(?:very |so |really )?(?:sorry|afraid|not able|unable)\b|(?:sorry|apologies|my apologies)\b|"
    r"i apologi[sz]e|as an? (?:ai|language model|artificial)\b|"
    r"unfortunately,? (?:i|we|the image (?:is|was) not|there is no)\b|"
    r"(?:i|we) (?:can't|cannot|can not|could not|couldn't|won't|will not|don't|do not|didn't|did not)\b|"
    r"(?:unable|(?:it is|it's) (?:not possible|impossible)) to (?:help|assist|describe|identify|provide|answer|see|"
    r"view|tell|determine|process|recogni[sz]e|analy[sz]e|discern|generate|comply)\b|"
    r"(?:there is|there's|i see) no (?:image|picture|photo)\b|no image (?:was|is|has been) )",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:cannot|can['’]t|can not|could not|not possible to|impossible to|unable to|difficult to|hard to) "
    r"(?:be )?(?:tell|determine[d]?|identif(?:y|ied)|say|see|discern(?:ed)?|summari[sz]ed?|recogni[sz]ed?)\b"
    r"|\b(?:is|are) (?:unclear|not (?:visible|clear|shown|specified|mentioned))\b",
    re.IGNORECASE,
)
_SORRY_CHINESE = re.compile(
    r"^\W*(?:很|非常)?(?:抱歉|对不起|不好意思|抱歉地)|(?:我|本人)(?:无法|不能|没有办法|看不到)|作为(?:一个|一名)?(?:ai|人工智能)",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:(?:sure|certainly|of course|okay|ok|absolutely|great)\s*[!,.:]+\s*)?"
    r"(?:(?:here(?:['’]s| is| are)|this is|below is)\b[^:\n]{0,100}:\s*)",
    re.IGNORECASE,
)
_ASSENT = re.compile(r"^(?:sure|certainly|of course|okay|ok|absolutely)\s*[!.:]+\s+", re.IGNORECASE)
_ROLE = re.compile(
    r"^(?:<\|?)?(?:assistant|answer|response|reply|output|(?:image |the |re-?)?caption|(?:image )?description|result)"
    r"(?:\|?>)?\s*[:：]\s*",
    re.IGNORECASE,
)
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "`": "`", "«": "»", "「": "」"}
_CLOSING = " \t\r\n.,;:!?。，；：！？"

_LEAD = re.compile(
    r"^(?:based on [^,]{1,80}, )?(?:the |this |its |their |his |her )?(?:main |overall |primary |likely )?"
    r"(?:answer|actions?|anomal(?:y|ies)|failures?|behaviou?rs?|scenes?|backgrounds?|settings?|locations?|places?|"
    r"categor(?:y|ies)|activit(?:y|ies)|phrase|word|image|picture)\b"
    r"(?:(?: and)? (?:actions?|backgrounds?|categor(?:y|ies)|settings?|behaviou?rs?))*"
    r"(?: (?:of|in|for|here|shown|depicted|behind)\b[^:,.]{0,60}?)?\s*"
    r"(?:(?:is|are|was|were|shows|depicts|seems to be|appears to be|would be|"
    r"can be (?:best )?(?:summari[sz]ed|described|categori[sz]ed|classified|labell?ed)(?: as)?)"
    r"(?= |:)\s*[:：]?|[:：])\s*",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"^(?:(?:the|a|an|one|two|three|some|several) )?(?:[\w-]+ )?"
    r"(?:persons?|man|woman|boy|girl|people|characters?|figures?|individuals?|men|women|child|children|kid|someone|"
    r"somebody|he|she|they|it)(?: (?:in|of) the (?:image|picture|photo|scene))? "
    r"(?:(?:is|are|was|were)(?: (?:shown|seen|depicted|being))?|appears? to be|seems? to be)"
    r"(?: (?:in the act of|busy))? ",
    re.IGNORECASE,
)
_FINITE = re.compile(
    r"^(?:the|a|an) (?:person|man|woman|boy|girl|child|kid) (?=[a-z]{2,}(?:s|ed)\b)",
    re.IGNORECASE,
)
_PLACED = re.compile(r"^(?:(?:in|at|on|inside|near|outside)\s+(?=(?:an?|the)\s))?(?:(?:an?|the)\s+)?", re.IGNORECASE)
_ARTICLE = re.compile(r"^(?:an?|the)\s+", re.IGNORECASE)
_CLAUSE = re.compile(r"\s*(?:[;,.]\s|\s(?:while|because|as|which|who|when|after|before|with|and)\s|\s[-–—]\s|\()")
_LIST_MARK = re.compile(r"^(?:[-*•]|\d{1,2}[.)])\s+")


class FactorsRead(NamedTuple):
    """What a reply to `decompose` holds: the factors, and which are null; or why there are none."""

    factors: Factors | None
    missing: tuple[str, ...]
    reason: str | None


class FactorsJudged(NamedTuple):
    """A reply held against its caption. factors: unfaithful ones are null. good: nothing is left to ask again."""

    factors: Factors | None
    unfaithful: tuple[str, ...]
    reason: str | None

    @property
    def found(self) -> int:
        """Factors that are not null."""
        return 0 if self.factors is None else sum(getattr(self.factors, name) is not None for name in FACTORS)

    @property
    def good(self) -> bool:
        return self.reason is None and not self.unfaithful and self.found > 0


class Answer(NamedTuple):
    """A text read out of a reply, or why there is none."""

    value: str | None
    reason: str | None


def digest_of(*parts: object) -> str:
    """sha256, hex, of plain data: what an engine was asked with."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def writable(text: str | None) -> str | None:
    """The text with what no file can hold (half a surrogate pair) escaped."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def was_cut(reply: FrozenReply) -> bool:
    """Whether the reply ended for want of room: then it is never a value."""
    return reply.finish_reason == "length"


def without_thinking(text: str) -> str:
    """The reply without its thoughts, wherever they stand; of a thought that never ends nothing is kept, and of one
    that never began only what follows its end.
    """
    text = _THOUGHT.sub("\n", text[:_LONGEST])
    ends = list(_THOUGHT_END.finditer(text))
    if ends:
        text = text[ends[-1].end() :]
    start = _THOUGHT_START.search(text)
    if start is not None:
        text = text[: start.start()]
    return _SPECIAL.sub(" ", text).strip()


def is_refusal(text: str) -> bool:
    """Whether a text begins by declining to answer, in English or Chinese."""
    text = text.strip().lstrip("\"'“‘*").replace("’", "'")
    return bool(_SORRY.match(text) or _SORRY_CHINESE.search(text[:60]))


def is_loop(text: str) -> bool:
    """Whether a text goes round in circles: up to twelve words four times in a row, a sentence three times, or a few
    letters without a blank six times.
    """
    if re.search(r"([^\W\d_]{1,12}?)\1{5,}", text):
        return True
    words = words_of(text)
    for length in range(1, 13):
        run = 0
        for at in range(length, len(words)):
            run = run + 1 if words[at] == words[at - length] else 0
            if run >= 3 * length:
                return True
    sentences = [" ".join(words_of(each)) for each in re.split(r"[.!?。\n]+", text)]
    long = [each for each in sentences if len(each.split()) >= 4]
    return any(long.count(each) >= 3 for each in long)


def in_english(text: str) -> bool:
    """Whether at least two thirds of a text's letters are Latin."""
    letters = [letter for letter in text if letter.isalpha()]
    return 3 * sum(letter < "ɐ" or "Ḁ" <= letter <= "ỿ" for letter in letters) >= 2 * len(letters)


def read_factors(text: str) -> FactorsRead:
    """The factors that a reply holds: an object with them, or a line each.

    A key that is not there, or whose value is no text, is null. Of several objects the first with all three keys
    counts, else the one with most of them.
    """
    said = without_thinking(text)
    found, reason = _mapping(said, _KEYS, least_lines=2)
    if found is None:
        return FactorsRead(None, FACTORS, reason)
    texts = {name: _plain(found.get(name)) for name in FACTORS}
    if any(each is not None and is_loop(each) for each in texts.values()):
        return FactorsRead(None, FACTORS, LOOP)
    declined = [name for name, each in texts.items() if each is not None and is_refusal(each)]
    if declined and all(texts[name] is None or name in declined for name in FACTORS):
        return FactorsRead(None, FACTORS, REFUSAL)
    factors = Factors(**{name: None if name in declined else each for name, each in texts.items()})
    return FactorsRead(factors, tuple(name for name in FACTORS if getattr(factors, name) is None), None)


def judge_factors(caption: str, text: str | None) -> FactorsJudged:
    """A reply's factors as far as they say nothing that the caption does not."""
    read = read_factors(text or "")
    if read.factors is None:
        return FactorsJudged(None, (), read.reason)
    faithful, unfaithful = faithful_part(caption, read.factors)
    return FactorsJudged(faithful, unfaithful, None)


def faithful_part(caption: str, factors: Factors) -> tuple[Factors, tuple[str, ...]]:
    """The factors without those that have a content word from elsewhere, and the names of those."""
    unfaithful = []
    for name in FACTORS:
        alone = Factors(**{**dict.fromkeys(FACTORS), name: getattr(factors, name)})
        if content_words_kept(caption, alone).added:
            unfaithful.append(name)
    kept = {name: None if name in unfaithful else getattr(factors, name) for name in FACTORS}
    return Factors(**kept), tuple(unfaithful)


def read_attributes(text: str) -> dict[str, str]:
    """The labels in a reply that answers several questions at once, as they stand: `action` or `anomaly`, `scene`.

    Read from an object or from lines. Where `anomaly` only says yes or no, it tells what the action is; empty where the
    reply is no such thing.
    """
    found, _ = _mapping(without_thinking(text), _LABEL_KEYS, least_lines=1)
    if found is None:
        return {}
    labels: dict[str, str] = {}
    behavior, anomaly = _plain(found.get("action")), found.get("anomaly")
    judged = anomaly if isinstance(anomaly, bool) else _yes_or_no(anomaly)
    if judged is None and (named := _plain(anomaly)) is not None and not _says_nothing(named):
        labels["anomaly"] = named
    elif behavior is not None and not _says_nothing(behavior):
        labels["anomaly" if judged else "action"] = behavior
    scene = _plain(found.get("scene"))
    if scene is not None and not _says_nothing(scene):
        labels["scene"] = scene
    return labels


def read_answer(question: str, text: str) -> Answer:
    """The label in the reply to one question (action, anomaly or scene): lower case, without the sentence around it.

    An object or lines with several labels give theirs; action and anomaly stand in for each other.
    """
    said = without_thinking(text)
    labels = read_attributes(text) if _structured(said) else {}
    if labels:
        other = {"action": "anomaly", "anomaly": "action"}.get(question)
        chosen = labels.get(question) or (labels.get(other) if other else None)
        return normal_answer(question, chosen) if chosen else Answer(None, EMPTY)
    if "{" in said:
        found, _ = _mapping(said, {"answer": "answer", "phrase": "answer", "category": "answer"}, least_lines=9)
        value = _plain((found or {}).get("answer"))
        return normal_answer(question, value) if value else Answer(None, WRONG_KEYS)
    return normal_answer(question, said)


def normal_answer(question: str, text: str) -> Answer:
    """A label in its plain form: "The person is falling." -> falling, "**Parking Lot**" -> parking lot."""
    text = _unfenced(text).replace("**", "").replace("__", "")
    text = next((line.strip() for line in _unrolled(text).splitlines() if words_of(line) or line.strip()), "")
    text = _LIST_MARK.sub("", text).strip()
    if is_refusal(text) or _UNSURE.search(text):
        return Answer(None, REFUSAL)
    if is_loop(text):
        return Answer(None, LOOP)
    quoted = re.findall(r"[\"“]([^\"“”]{2,60})[\"”]", text)
    if len(quoted) == 1 and len(words_of(quoted[0])) < len(words_of(text)):
        text = quoted[0]
    text = _bare(text)
    for _ in range(3):
        before = text
        text = _bare(_LEAD.sub("", text))
        text = _SUBJECT.sub("", text)
        text = _FINITE.sub("", text)
        if text == before:
            break
    text = (_PLACED if question == "scene" else _ARTICLE).sub("", text)
    text = _bare(" ".join(text.lower().replace("_", " ").split()))
    if len(words_of(text)) > MAX_ANSWER_WORDS:
        text = _bare(_CLAUSE.split(text, maxsplit=1)[0])
    if _says_nothing(text) or not words_of(text):
        return Answer(None, EMPTY)
    if not in_english(text):
        return Answer(None, NOT_ENGLISH)
    if len(words_of(text)) > MAX_ANSWER_WORDS:
        return Answer(None, TOO_LONG)
    return Answer(text, None)


def read_caption(text: str) -> Answer:
    """The caption in a reply: one line, without role, quotes or the talk before it.

    Reasons: empty, refusal, loop, not_english. However long, it stands.
    """
    said = _unfenced(without_thinking(text))
    if said.lstrip().startswith("{"):
        found, _ = _mapping(said, _CAPTION_KEYS, least_lines=9)
        value = _plain((found or {}).get("caption"))
        if value is not None:
            said = value
    said = " ".join(_unrolled(said).split())
    if not words_of(said) or _says_nothing(said):
        return Answer(None, EMPTY)
    if is_refusal(said):
        return Answer(None, REFUSAL)
    if is_loop(said):
        return Answer(None, LOOP)
    if not in_english(said):
        return Answer(None, NOT_ENGLISH)
    return Answer(said, None)


# Objects in text.


def _mapping(text: str, keys: Mapping[str, str], least_lines: int) -> tuple[dict[str, Any] | None, str | None]:
    """The values by known key of the best object of a text, else of its lines; or why there is none."""
    best: dict[str, Any] | None = None
    reason: str | None = None
    for found, cut in _objects(text):
        if cut:
            reason = CUT
            continue
        known = _known(found, keys)
        if known is None:
            reason = reason or WRONG_KEYS
        elif best is None or len(known) > len(best):
            best = known
        if best is not None and len(best) == len(set(keys.values())):
            break
    if best is not None:
        return best, None
    lines = _lines(text, keys)
    if len(lines) >= least_lines and reason is None:
        return lines, None
    if is_refusal(text):
        return None, REFUSAL
    if reason is None and is_loop(text):
        return None, LOOP
    return None, reason or NO_JSON


def _objects(text: str) -> Iterator[tuple[dict[Any, Any], bool]]:
    """The objects of a text in order, and whether one breaks off within a value."""
    decoder = json.JSONDecoder()
    at = 0
    for _ in range(_TRIES):
        start = text.find("{", at)
        if start < 0:
            return
        try:
            value, at = decoder.raw_decode(text, start)
            yield value, False
            continue
        except (ValueError, RecursionError):
            pass
        end = _closing(text, start)
        chunk = text[start:end] if end is not None else text[start:].split("```", 1)[0]
        value = _repaired(chunk)
        if value is not None:
            yield value, end is None and _breaks_off(chunk)
            at = end if end is not None else len(text)
        else:
            at = start + 1


def _closing(text: str, start: int) -> int | None:
    """Just after the brace that closes the one at `start`; None where there is none. Quotes are not looked at: in
    damaged JSON nobody knows which they are.
    """
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return None


def _repaired(chunk: str) -> dict[Any, Any] | None:
    """One damaged object put right, or None where what came of it cannot be believed."""
    import json_repair

    if not re.search(r"[:：]", chunk) or chunk.count("{") > _DEEPEST * 4:
        return None
    try:
        value = json_repair.loads(chunk.replace("，\n", ",\n").replace("：", ":"), skip_json_loads=True)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value and not _has_marks(value) else None


def _has_marks(value: Any) -> bool:
    """Whether a repaired text has JSON's own marks in it: then the repair took the wrong quotes for ends."""
    if isinstance(value, dict):
        return any(_has_marks(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return any(_has_marks(each) for each in value)
    return isinstance(value, str) and bool(re.search(r"[{}\[\]]|[\"'“”]\s*:|,\s*\"\w+\"", value))


def _breaks_off(chunk: str) -> bool:
    """Whether an object that is never closed ends within a value, so that nobody knows what more it would have said."""
    return not re.search(r"(?:[\"'”\]]|\b(?:null|none|true|false))\s*,?\s*$", chunk, re.IGNORECASE)


def _known(found: Mapping[Any, Any], keys: Mapping[str, str], depth: int = 0) -> dict[str, Any] | None:
    """The values by known key, of the object itself or of one inside it; the exact name goes before one like it."""
    exact = {key: found[key] for key in found if isinstance(key, str) and key in keys.values()}
    known = {keys[name]: value for key, value in found.items() if (name := _key(key)) in keys} | exact
    if known:
        return known
    if depth < _DEEPEST:
        for value in found.values():
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, dict) and (inside := _known(each, keys, depth + 1)) is not None:
                    return inside
    return None


def _key(key: object) -> str:
    return re.sub(r"[^a-z]+", "_", str(key).lower()).strip("_")


def _lines(text: str, keys: Mapping[str, str]) -> dict[str, str]:
    """The values of lines like `Action: slipping`, by known key; the first line of a key counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"^[\W\d]*([A-Za-z][A-Za-z _-]{1,20}?)[*_`\"']*\s*[:：]\s*[*_]*(.+)$", line)
        name = _key(match[1]) if match else ""
        if match and name in keys:
            found.setdefault(keys[name], match[2].strip().strip("*_`").rstrip(",").strip())
    return found


def _structured(text: str) -> bool:
    """Whether a reply names its labels: an object, or or lines with known keys."""
    return "{" in text or bool(_lines(text, _LABEL_KEYS))


def _plain(value: Any, depth: int = 0) -> str | None:
    """A value as text: lists and objects are joined; None for what says nothing, for numbers and truth values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        parts = [_plain(each, depth + 1) for each in value] if depth < _DEEPEST else []
        return ", ".join(each for each in parts if each is not None) or None
    if not isinstance(value, str):
        return None
    cleaned = (writable(value) or "").strip()
    return cleaned if not _says_nothing(cleaned, _NOTHING) and re.search(r"\w", cleaned) else None


def _says_nothing(text: str, nothing: frozenset[str] = _NO_LABEL) -> bool:
    return text.strip(_CLOSING + "\"'()[]*").lower() in nothing or text.strip().lower() in nothing


def _yes_or_no(value: Any) -> bool | None:
    if isinstance(value, str):
        word = value.strip(_CLOSING + "\"'*").lower()
        return {"yes": True, "true": True, "no": False, "false": False, "none": False, "normal": False}.get(word)
    return False if value is None else None


def _unfenced(text: str) -> str:
    return _FENCE.sub("\n", text).strip() if "```" in text else text.strip()


def _unrolled(text: str) -> str:
    """The text without a role before it, talk that leads to it, or quotes around the whole of it."""
    for _ in range(4):
        before = text
        text = text.strip()
        for lead in (_ROLE, _OPENING, _ASSENT):
            text = lead.sub("", text, count=1)
        text = _unquoted(text.strip().removeprefix("**:").strip())
        if text == before:
            break
    return text


def _unquoted(text: str) -> str:
    while len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return text


def _bare(text: str) -> str:
    return _unquoted(text.strip(_CLOSING).strip("*`").strip(_CLOSING))


def last_replies(replies: Sequence[FrozenReply]) -> dict[str, FrozenReply]:
    """The reply that stands for each question: the last one asked."""
    return {reply.question: reply for reply in replies}
