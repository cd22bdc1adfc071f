import json
import string
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core import replies
from pipeline.core.replies import (
    FACTORS,
    is_loop,
    is_refusal,
    judge_factors,
    normal_answer,
    read_answer,
    read_attributes,
    read_caption,
    read_factors,
    without_thinking,
    writable,
)
from schemas.records import Factors

FOLDER = Path(__file__).parents[1] / "cases" / "llm"
CASES = [
    case for name in ("replies", "more_replies") for case in json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
]
CAPTION = "A man in a red shirt and blue jeans slips while carrying a box on a wet kitchen floor."


def read(case):
    """(value, reason, missing) of a case's reply, by the parser of its kind."""
    if case["kind"] == "decompose":
        found = read_factors(case["reply"])
        value = found.factors.model_dump() if found.factors else None
        return value, found.reason, list(found.missing) if found.factors else []
    if case["kind"] == "attributes":
        return read_attributes(case["reply"]), None, []
    answer = read_caption(case["reply"]) if case["kind"] == "caption" else read_answer(case["question"], case["reply"])
    return answer.value, answer.reason, []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_every_reply_is_read_as_listed(case):
    value, reason, missing = read(case)
    assert value == case["value"], case["why"]
    assert reason == case.get("reason"), case["why"]
    assert missing == case.get("missing", []), case["why"]


def test_there_are_cases_of_every_kind_of_damage():
    assert len(CASES) >= 100
    assert {case.get("reason") for case in CASES if case["kind"] == "decompose"} >= {
        "refusal",
        "no_json",
        "wrong_keys",
        "cut",
        "loop",
        None,
    }


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
plain = st.lists(
    st.sampled_from(["a", "man", "red", "shirt", "falls", "on", "the", "wet", "floor", "box"]), min_size=1, max_size=3
)
phrases = plain.map(lambda words: " ".join(dict.fromkeys(words)))
factors = st.builds(Factors, **{name: st.none() | phrases for name in FACTORS})


@settings(max_examples=150, deadline=None)
@given(factors)
def test_factors_written_as_json_are_read_back_as_they_were(given_factors):
    for form in (
        given_factors.model_dump_json(),
        str(given_factors.model_dump()),
        f"```json\n{given_factors.model_dump_json(indent=2)}\n```",
    ):
        found = read_factors(f"<think>hm</think>\n{form}")
        assert found.factors == given_factors
        assert found.missing == tuple(name for name in FACTORS if getattr(given_factors, name) is None)


@settings(max_examples=150, deadline=None)
@given(texts)
@example("{" * 5000)
@example('{"a":' * 3000)
@example("[" * 100_000)
@example("{'appearance': '" + "\\" * 99)
def test_no_reply_whatever_raises_and_every_one_has_a_value_or_a_reason(text):
    for form in (text, f"{{{text}", f'{{"appearance": {text}}}', f"Action: {text}"):
        found = read_factors(form)
        assert (found.factors is None) == (found.reason is not None)
        for answer in (read_answer("action", form), read_answer("scene", form), read_caption(form)):
            assert (answer.value is None) == (answer.reason is not None)
        read_attributes(form)


@settings(max_examples=100, deadline=None)
@given(st.text(string.ascii_lowercase + " {}\":,'", max_size=80))
def test_what_is_read_was_said(text):
    found = read_factors(f'{{"appearance": "{text}')
    for name in FACTORS:
        value = getattr(found.factors, name) if found.factors else None
        assert value is None or all(word in text for word in value.replace(",", " ").split())


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["falling", "riding scooter", "jumping, falling", "parking lot", "man's yard"]),
    st.sampled_from(["action", "scene"]),
)
def test_a_label_in_its_plain_form_stays_as_it_is(label, question):
    assert normal_answer(question, label).value == label
    assert normal_answer(question, f" {label.capitalize()}. ").value == label


def test_every_label_of_the_embedded_labeller_stays_as_it_is():
    from pipeline.backends import pixel_labeller

    tables = [pixel_labeller._ACTIONS, pixel_labeller._SCENES, pixel_labeller._SCENE_HINTS, pixel_labeller._ANOMALIES]
    names = {row[0] for table in tables for row in table} | set(pixel_labeller._STANCE_ACTIONS.values())
    names |= set(pixel_labeller._STANCE_ANOMALIES.values())
    for name in names:
        for question in ("action", "anomaly", "scene"):
            assert read_answer(question, name).value == name


def test_thinking_goes_wherever_it_stands():
    assert without_thinking("a<think>b</think>c") == "a\nc"
    assert without_thinking("a</think>b") == "b"
    assert without_thinking("a<think>b") == "a"
    assert without_thinking("<think>a") == ""


def test_a_refusal_is_told_from_a_caption_by_how_it_begins():
    for text in (
        "I can't help with that.",
        "I cannot describe it",
        "Sorry, no.",
        '"I’m sorry"',
        "很抱歉，我不能",
        "There is no image.",
    ):
        assert is_refusal(text), text
    for text in (
        "A man who cannot stop falls.",
        "Unable to hold on, she falls.",
        "A sorry-looking man sits.",
        "The sign says I cannot see.",
        "Ice covers the lake.",
        "In I do we trust, a sign, is held by a man.",
    ):
        assert not is_refusal(text), text


def test_a_loop_is_told_from_a_repetition():
    assert is_loop("go on and " * 4)
    assert is_loop("na" * 6)
    assert not is_loop("a man and a man and a man stand")
    assert not is_loop("very very good")
    assert not is_loop("A man runs. A man runs.")
    assert not is_loop("")


def test_a_factor_with_a_word_from_elsewhere_is_null_and_named():
    reply = json.dumps(
        {"appearance": "a man in a red shirt and boots", "action": "slipping", "background": "on a wet floor"}
    )
    found = judge_factors(CAPTION, reply)
    assert found.factors == Factors(appearance=None, action="slipping", background="on a wet floor")
    assert (found.unfaithful, found.good, found.found) == (("appearance",), False, 2)
    assert judge_factors(CAPTION, reply.replace(" and boots", "")).good
    assert not judge_factors(CAPTION, '{"appearance": null, "action": null, "background": null}').good
    assert judge_factors(CAPTION, None).reason == "no_json"


def test_half_a_surrogate_pair_is_written_out():
    assert writable("a\ud800b") == "a\\ud800b"
    assert writable(None) is None
    assert read_factors('{"appearance": "a \\ud800 man", "action": null, "background": null}').factors is not None


def test_only_so_much_of_a_reply_is_read():
    assert read_caption("word " * 3 + "x" * (2 * replies._LONGEST)).reason == "loop"
    assert (
        read_factors(" " * 30_000 + '{"appearance": "a man", "action": null, "background": null}').reason == "no_json"
    )
