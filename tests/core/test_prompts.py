from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.prompts import PROMPTS_DIR, PromptError, load_prompt

PUBLISHED = {
    "caption": "Provide a simple description of the image content within 50 words, including the appearance, attire, "
    "and actions of the main figures in the picture. Do not imagine any contents that are not in the image. Do not "
    "describe the atmosphere of the image.",
    "anomaly": "Below is the image caption of the image. In the image, someone fails to do something. Based on the "
    "caption and image, summarize the failure of the characters in the image using a single word or phrase, such as "
    "falling, losing balance, slipping, falling to the ground, falling into water, losing control, having accident, "
    "flipping, jumping, hitting head, etc. Image caption: C.",
    "action": "Below is the image caption of the image. Based on the caption and image, summarize the behavior and "
    "action categories of the characters in the image using a single word or phrase, such as motorcycling, driving "
    "car, somersaulting, riding scooter, catching fish, staring at someone, dyeing eyebrows, trimming beard, peeling "
    "potatoes, square dancing, etc. Image caption: C.",
    "scene": "Below is the image caption of the image. Based on the caption and image, summarize the scene or "
    "background of the characters in the image using a single word or phrase, such as playground, parking lot, ski "
    "slope, highway, lawn, outdoor church, cottage, indoor flea market, fabric store, hotel, etc. Image caption: C.",
}
HEAD = "---\nid: {id}\nsource: ours\nused_by: [decompose]\nplaceholders: {placeholders}\nreply: text\n---\n"


def write_prompt(folder, text, placeholders="[caption]", prompt_id="mine", head=HEAD):
    path = folder / "mine.md"
    path.write_text(head.format(id=prompt_id, placeholders=placeholders) + text, encoding="utf-8")
    return path


@pytest.mark.parametrize("prompt_id", sorted(PUBLISHED))
def test_published_prompts_are_verbatim(prompt_id):
    prompt = load_prompt(prompt_id)
    values = {"source_caption": "C"} if prompt.placeholders else {}
    assert prompt.source == "published"
    assert prompt.render(**values) == PUBLISHED[prompt_id]


@pytest.mark.parametrize("path", sorted(PROMPTS_DIR.glob("*.md")), ids=lambda path: path.stem)
def test_every_prompt_in_the_folder_loads_with_the_digest_of_its_bytes(path):
    assert load_prompt(path.stem).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_decompose_prompt_asks_for_the_three_factors_as_json_and_keeps_its_braces():
    prompt = load_prompt("decompose")
    assert (prompt.source, prompt.reply, prompt.placeholders) == ("ours", "json", ("caption",))
    rendered = prompt.render(caption="A man slips.")
    assert '{"appearance": ..., "action": ..., "background": ...}' in rendered
    assert rendered.endswith("Caption: A man slips.")


@given(st.text(alphabet="ab{}\\$% \n1caption", max_size=40))
def test_a_value_comes_through_as_it_is_whatever_braces_are_in_it(value):
    prompt = load_prompt("decompose")
    before, after = prompt.text.split("{caption}")
    assert prompt.render(caption=value) == before + value + after


def test_a_value_that_looks_like_another_placeholder_is_left_alone(tmp_path):
    write_prompt(tmp_path, "{first} and {second}", "[first, second]")
    assert load_prompt("mine", tmp_path).render(first="{second}", second="2") == "{second} and 2"


def test_a_missing_value_is_an_error_that_names_it():
    with pytest.raises(PromptError, match=r"no value for \{source_caption\}"):
        load_prompt("scene").render()


def test_a_surplus_value_is_an_error_that_names_it():
    with pytest.raises(PromptError, match=r"no placeholder \{caption\}"):
        load_prompt("caption").render(caption="A man.")


@pytest.mark.parametrize("prompt_id", ["nosuch", "../pyproject", "", "Caption"])
def test_an_unknown_id_is_an_error_that_lists_the_prompts(prompt_id):
    with pytest.raises(PromptError, match="action, anomaly, caption, decompose, scene"):
        load_prompt(prompt_id)


def test_one_changed_byte_changes_the_digest(tmp_path):
    write_prompt(tmp_path, "Split: {caption}")
    before = load_prompt("mine", tmp_path).sha256
    write_prompt(tmp_path, "Split:  {caption}")
    assert load_prompt("mine", tmp_path).sha256 != before


@pytest.mark.parametrize(
    ("text", "placeholders", "prompt_id", "head", "says"),
    [
        ("{caption}", "[]", "mine", HEAD, "its text has"),
        ("no placeholder", "[caption]", "mine", HEAD, "its text has"),
        ("{caption}", "[caption]", "other", HEAD, "its head says id 'other'"),
        ("{caption}", "caption", "mine", HEAD, "placeholders must be a list"),
        ("{caption}", "[caption]", "mine", "", "must start with a head"),
        ("{caption}", "[caption]", "mine", HEAD.replace("reply: text\n", ""), "exactly the keys"),
        ("{caption}", "[caption]", "mine", HEAD.replace("reply: text", "reply: audio"), "reply is 'audio'"),
        ("{caption}", "[caption]", "mine", HEAD.replace("source: ours", "source: [ours"), "not YAML"),
        ("  \n", "[]", "mine", HEAD, "no text after the head"),
    ],
)
def test_a_prompt_file_that_contradicts_itself_is_an_error(tmp_path, text, placeholders, prompt_id, head, says):
    write_prompt(tmp_path, text, placeholders, prompt_id, head)
    with pytest.raises(PromptError, match=says):
        load_prompt("mine", tmp_path)


def test_a_file_that_is_not_utf8_is_an_error(tmp_path):
    write_prompt(tmp_path, "{caption}").write_bytes(b"---\nid: mine\n---\n\xff")
    with pytest.raises(PromptError, match="not UTF-8"):
        load_prompt("mine", tmp_path)
