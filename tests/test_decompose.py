import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from pipeline.backends.chat_roles import plain_reply
from pipeline.backends.protocols import FactorTexts
from pipeline.core.prompts import load_prompt
from pipeline.decompose import STAGE, faithful_factors, final_caption_stage
from schemas.records import Attributes, Factors, PromptUsed, Recaption, Review
from tests.builds import ROOT
from tests.stage_helpers import ENGINE, MINI, FakeEngine, context, dropped, kept, put, run

USED = PromptUsed(id="caption", sha256="0")


def splitter(answers=None) -> FakeEngine:
    answers = answers or {}
    return FakeEngine(
        "decompose",
        lambda captions, _prompt: [answers.get(each, FactorTexts(f"who {each}", each, None)) for each in captions],
    )


def train(folder, engine, captions, kept_by_attributes=None):
    where = context(folder, "train-000", decompose=engine)
    records = [Recaption(id=name, caption=text, captioner=ENGINE, prompt=USED) for name, text in captions.items()]
    put(where, "recaption", records, Recaption)
    nothing: dict[str, Any] = {
        "action": None,
        "anomaly": None,
        "scene": "x",
        "raw": "{}",
        "asked_with": "re-caption",
        "prompts": (),
    }
    names = kept_by_attributes if kept_by_attributes is not None else captions
    put(where, "attributes", [Attributes(id=name, labeller=ENGINE, **nothing) for name in names], Attributes)
    return where


def test_a_caption_is_split_and_the_missing_factors_are_named(tmp_path):
    where = train(tmp_path, splitter(), {"a": "a man runs"})
    run(STAGE, where)
    record = kept(STAGE, where)["a"]
    assert record.factors.model_dump() == {"appearance": "who a man runs", "action": "a man runs", "background": None}
    assert record.missing == ("background",)
    assert (record.caption, record.caption_sha256) == ("a man runs", hashlib.sha256(b"a man runs").hexdigest())
    assert record.prompt.sha256 == load_prompt("decompose").sha256


def test_each_caption_is_split_once_a_batch_with_the_prompt(tmp_path):
    engine = splitter()
    run(STAGE, train(tmp_path, engine, {"a": "one", "b": "two", "c": "one"}))
    assert engine.asked == [(["one", "two"], load_prompt("decompose").text)]


def test_what_attributes_dropped_is_not_split(tmp_path):
    where = train(tmp_path, splitter(), {"a": "one", "b": "two"}, ["b"])
    run(STAGE, where)
    assert set(kept(STAGE, where)) == {"b"}


def test_a_caption_without_any_factor_is_rejected(tmp_path):
    where = train(tmp_path, splitter({"hm": FactorTexts(None, None, None)}), {"a": "hm", "b": "two"})
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": "rejected: no_factors"}


def test_a_caption_on_which_the_engine_raises_costs_its_images_only(tmp_path):
    def decompose(captions, _prompt):
        if "bad" in captions:
            raise ValueError("bad")
        return [FactorTexts(None, each, None) for each in captions]

    where = train(tmp_path, FakeEngine("decompose", decompose), {"a": "bad", "b": "two", "c": "bad"})
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": "failed: ValueError", "c": "failed: ValueError"}
    assert set(kept(STAGE, where)) == {"b"}


def test_test_shards_split_the_corrected_caption_of_what_the_reviewers_kept(tmp_path):
    where = context(tmp_path, "test-000", decompose=splitter())
    final = Review(id="a", caption="a corrected caption", reviewed=True, corrected=True, votes=3)
    put(where, "review", [final], Review)
    run(STAGE, where)
    assert kept(STAGE, where)["a"].caption == "a corrected caption"


def test_the_caption_that_stands_is_the_reviewers_in_test_and_the_captioners_in_train():
    assert final_caption_stage("test-000") == ("review", "review")
    assert final_caption_stage("train-000") == ("recaption", "attributes")


def test_a_factor_with_a_word_that_the_caption_lacks_becomes_null():
    caption = "A man in a red shirt slips on a wet floor."
    texts = FactorTexts("a man in a red shirt and boots", "slips", "on a wet floor")
    assert faithful_factors(caption, texts) == Factors(appearance=None, action="slips", background="on a wet floor")
    assert faithful_factors(caption, FactorTexts("a man", "slipping", "  ")) == Factors(
        appearance="a man", action="slipping", background=None
    )


CAPTION = "a man in a red shirt slips on a wet floor"


def reply(**fields):
    return plain_reply("factors", None, None).model_copy(update={"finish_reason": "stop", **fields})


def split(appearance, action="slips", background="on a wet floor"):
    return json.dumps({"appearance": appearance, "action": action, "background": background})


GOOD, ADDS, WORSE = (
    split("a man in a red shirt"),
    split("a man in a blue shirt"),
    split("a tall man", "slips and swears"),
)
CUT = {"text": '{"appearance": "a man', "finish_reason": "length", "max_tokens": 9}


def asking(*replies) -> FakeEngine:
    return FakeEngine(
        "ask_factors", lambda captions, _prompt: [tuple(reply(**each) for each in replies)] * len(captions)
    )


@pytest.mark.parametrize(
    ("replies", "answered", "unfaithful"),
    [
        ([{"text": GOOD}], "first try", ()),
        ([{"text": ADDS}, {"text": GOOD}], "retried", ()),
        ([CUT, {"text": GOOD}], "retried", ()),
        ([{"text": "no"}, {"text": ADDS}, {"text": WORSE}], "in part", ("appearance",)),
        ([{"text": WORSE}, {"text": ADDS}], "in part", ("appearance",)),
        ([{"text": ADDS}, {"error": "gone"}], "in part", ("appearance",)),
        ([{"text": split("a man", None)}], "first try", ()),
    ],
)
def test_the_first_good_reply_counts_else_the_most_faithful_one_with_its_other_factors_null(
    tmp_path, replies, answered, unfaithful
):
    where = train(tmp_path, asking(*replies), {"a": CAPTION})
    run(STAGE, where)
    record = kept(STAGE, where)["a"]
    assert (record.answered, record.unfaithful) == (answered, unfaithful)
    assert set(unfaithful) <= set(record.missing)
    assert record.factors.background == "on a wet floor"
    if not unfaithful and record.factors.action:
        assert record.factors.appearance == "a man in a red shirt"


@pytest.mark.parametrize(
    ("replies", "outcome"),
    [
        ([{"text": "I'm sorry, I can't."}] * 3, "rejected: refusal"),
        ([{"text": "slips and " * 50}], "rejected: loop"),
        ([{"text": "the man slips"}] * 3, "rejected: unparsable"),
        ([{"text": split(None, None, None)}], "rejected: no_factors"),
        ([{"text": split("a cow", "sings", "in space")}], "rejected: no_factors"),
        ([CUT, CUT], "failed: reply_cut"),
        ([{"text": "no"}, {"error": "gone", "finish_reason": None}], "failed: decomposer_error"),
        ([{**CUT, "text": GOOD}, {**CUT, "text": GOOD}], "failed: reply_cut"),
    ],
)
def test_replies_without_any_factor_say_why(tmp_path, replies, outcome):
    where = train(tmp_path, asking(*replies), {"a": CAPTION})
    run(STAGE, where)
    assert dropped(STAGE, where) == {"a": outcome}
    stored = where.store.measured("decompose", "train-000", ["replies"])["a"]["replies"]
    assert [each["text"] for each in stored] == [each.get("text") for each in replies]


def test_a_new_way_to_read_splits_asks_nobody_and_a_corrected_caption_is_split_alone(tmp_path):
    engine = splitter()
    where = train(tmp_path, engine, {"a": "one", "b": "two", "c": "one"})
    run(STAGE, where)
    newer = dataclasses.replace(STAGE, version=STAGE.version + 1)
    run(newer, where)
    assert len(engine.asked) == 1
    records = [Recaption(id=name, caption=text, captioner=ENGINE, prompt=USED) for name, text in
               {"a": "one", "b": "two corrected", "c": "one"}.items()]  # fmt: skip
    put(where, "recaption", records, Recaption, key="new")
    run(newer, where)
    assert [captions for captions, _ in engine.asked] == [["one", "two"], ["two corrected"]]


def test_killed_half_way_by_the_command_line_a_rerun_asks_only_what_is_missing(tmp_path):
    captions = {f"r{number:02d}": f"man number {number} runs" for number in range(11)} | {"r11": "odd one runs"}
    train(tmp_path, None, captions)
    log = tmp_path / "asked.txt"

    def decompose(dies, *more):
        command = [sys.executable, "-m", "tests.chat_stage", str(log), str(dies), "decompose", "--shard", "0",
                   "--build", "build", "--set", f"work={tmp_path}", "--set", f"oops.root={MINI}", "--set",
                   "batch_records=4", "--set", "decompose.backend=openai", "--set",
                   "decompose.settings.model=toy", *more]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)

    assert decompose(7).returncode == -signal.SIGKILL  # in the second part of three, before the seventh question
    assert len(log.read_text("utf-8").splitlines()) == 6
    log.write_text("")
    done = decompose(0)
    assert done.returncode == 0, done.stderr
    # The first part of four stands; the odd caption, refused, is asked about again with two more seeds.
    expected = [captions[name] for name in sorted(captions)[4:]] + ["odd one runs"] * 2
    assert sorted(log.read_text("utf-8").splitlines()) == sorted(expected)
    where = context(tmp_path, "train-000")
    assert dropped(STAGE, where) == {"r11": "rejected: refusal"}
    assert len(kept(STAGE, where)) == 11
    log.write_text("")
    assert "up to date" in decompose(0).stdout
    done = decompose(0, "--set", "decompose.settings.concurrency=3")
    assert "up to date" in done.stdout, done.stdout
    assert log.read_text("utf-8") == ""
