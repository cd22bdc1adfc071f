import hashlib
from typing import Any

from pipeline.backends.protocols import FactorTexts
from pipeline.core.prompts import load_prompt
from pipeline.decompose import STAGE, faithful_factors, final_caption_stage
from schemas.records import Attributes, Factors, PromptUsed, Recaption, Review
from tests.stage_helpers import ENGINE, FakeEngine, context, dropped, kept, put, run

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
