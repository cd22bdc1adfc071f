from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from pipeline.backends import registry
from pipeline.core.card import (
    COLUMNS,
    ORIGINS,
    TAG,
    CardFacts,
    ConfigFiles,
    EngineUsed,
    HardCount,
    KindCount,
    Measured,
    PromptText,
    SplitFiles,
    StageCount,
    StageFigure,
    card,
    front_matter,
    keep_rate,
    markdown_table,
    read_measured,
    size_category,
)
from pipeline.core.census import Audit, Copies, PairCount, VideoOverlap, label_balance
from schemas.records import PublishedRow

FEATURES = [{"name": "caption", "dtype": "string"}]
FACTS = CardFacts(
    title="A small build",
    folder="./out/pab",
    simulated_footage=True,
    simulated_images=True,
    configs=[
        ConfigFiles(
            "default",
            [
                SplitFiles("train", "data/train-*-of-00002.parquet", 1200, 9000, 5000),
                SplitFiles("test", "data/test-*-of-00001.parquet", 150, 900, 500),
            ],
            FEATURES,
        ),
        ConfigFiles("rejected", [SplitFiles("rejected", "rejected/rejected-*-of-00001.parquet", 40, 90, 50)], FEATURES),
    ],
    stages=[
        StageCount("frames", "test", 200, 170, {"quality_rule": 20}, {"TimeoutError": 10}),
        StageCount("keypoints", "train", 1900, 1250, {"too_small": 600, "cut_off": 50}),
    ],
    kinds=[KindCount("goal", 800, 640, 600), KindCount("wentrong", 600, 330, 300), KindCount("full", 500, 310, 300)],
    hard=[HardCount("train", "goal", 500, 70, 30), HardCount("test", "goal", 75, 0, 0)],
    engines=[
        EngineUsed("text to image", "simulator", "simulator 3", "{}", True),
        EngineUsed("captioner", "pixels", "pixels 1", "{}", True),
    ],
    prompts=[PromptText("caption", "ab" * 32, "published", "Describe ```the``` image.")],
    thresholds={"similarity.max_cosine": 0.95},
    train_videos=80,
    test_videos=90,
    shared_videos=0,
    reviewed_rows=0,
    corrected_rows=0,
    content_digest="0123abcd" * 8,
)


def front(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


def test_every_column_of_the_published_row_is_explained_and_none_that_is_not_there():
    assert list(COLUMNS) == list(PublishedRow.model_fields)
    text = card(FACTS)
    assert all(f"| `{name}` |" in text for name in COLUMNS)


def test_every_engine_of_the_registry_has_an_origin_and_a_licence():
    assert {(entry.job, entry.name) for entry in registry.ENTRIES} == set(ORIGINS)


def test_the_head_names_exactly_the_files_of_each_split_so_that_nothing_else_is_loaded():
    head = front(card(FACTS))
    assert TAG in head["tags"]
    assert head["configs"] == [
        {
            "config_name": "default",
            "default": True,
            "data_files": [
                {"split": "train", "path": "data/train-*-of-00002.parquet"},
                {"split": "test", "path": "data/test-*-of-00001.parquet"},
            ],
        },
        {
            "config_name": "rejected",
            "data_files": [{"split": "rejected", "path": "rejected/rejected-*-of-00001.parquet"}],
        },
    ]
    default = head["dataset_info"][0]
    assert default["features"] == FEATURES
    assert default["splits"][0] == {"name": "train", "num_bytes": 9000, "num_examples": 1200}
    assert (default["download_size"], default["dataset_size"]) == (5500, 9900)
    assert head["size_categories"] == ["1K<n<10K"]


def test_the_table_says_in_kept_rate_reasons_and_failures_of_each_stage():
    text = card(FACTS)
    assert "| frames | test | 200 | 170 | 85.0 % | quality_rule 20 | TimeoutError 10 |" in text
    assert "| keypoints | train | 1,900 | 1,250 | 65.8 % | cut_off 50, too_small 600 | – |" in text


def test_the_keep_rates_stand_beside_those_of_the_paper():
    text = card(FACTS)
    assert "| goal | 800 | 640 | 600 | 75.0 % | 75 % |" in text
    assert "| wentrong | 600 | 330 | 300 | 50.0 % | 56 % |" in text
    assert "| full | 500 | 310 | 300 | 60.0 % | 70 % |" in text


def test_hard_negatives_are_counted_by_where_they_are():
    assert "| train | goal | 500 | 70 | 30 |" in card(FACTS)


@pytest.mark.parametrize(
    ("footage", "images", "said", "unsaid"),
    [
        (True, True, "**The people in it are simulated.**", "OOPS!'s terms apply"),
        (False, True, "**The people in the training split are simulated**", "The people in it are simulated"),
        (False, False, "frames of OOPS! videos, and OOPS!'s terms apply", "are simulated"),
        (True, False, "**The people in the test split are simulated**", "The people in it are simulated"),
    ],
)
def test_the_card_says_who_is_simulated_and_who_is_real(footage, images, said, unsaid):
    text = card(dataclasses.replace(FACTS, simulated_footage=footage, simulated_images=images))
    assert said in text
    assert unsaid not in text


def test_a_split_that_is_not_there_is_not_spoken_of():
    default = ConfigFiles("default", FACTS.configs[0].splits[1:], FEATURES)
    text = card(
        dataclasses.replace(FACTS, configs=[default], simulated_footage=False, kinds=[KindCount("goal", 0, 0, 0)])
    )
    assert "The people in the training split" not in text
    assert 'split="train"' not in text
    assert "simulated" not in front(text)["tags"]
    assert "No image was generated." in text


def test_the_example_loads_every_split_by_its_name():
    text = card(FACTS)
    assert 'test = load_dataset("./out/pab", split="test", streaming=True)' in text
    assert 'rejected = load_dataset("./out/pab", "rejected", split="rejected")' in text


def test_the_licence_is_ours_only_where_all_of_it_is_made_by_the_project():
    diffusion = EngineUsed("text to image", "diffusers", "some/model", "{}", False)
    assert front_matter(FACTS)["license"] == "apache-2.0"
    for facts in (
        dataclasses.replace(FACTS, simulated_footage=False),
        dataclasses.replace(FACTS, engines=[diffusion], simulated_images=False),
    ):
        head = front_matter(facts)
        assert (head["license"], head["license_name"]) == ("other", "terms-of-the-sources")
        assert "There is no single licence" in card(facts)


def test_embedded_engines_are_labelled_and_others_are_not():
    outside = EngineUsed("captioner", "vllm", "Qwen2-VL", "{}", False)
    text = card(dataclasses.replace(FACTS, engines=[*FACTS.engines[:1], outside]))
    assert "| text to image | simulator (embedded) | `simulator 3` | `{}` |" in text
    assert "| captioner | vllm | `Qwen2-VL` | `{}` |" in text


def test_an_engine_the_card_does_not_know_is_said_to_be_unknown():
    text = card(dataclasses.replace(FACTS, engines=[EngineUsed("captioner", "new one", "1", "{}", False)]))
    assert "| captioner | not known to this card | see its publisher |" in text


def test_a_prompt_stands_with_its_hash_in_a_fence_its_text_cannot_close():
    text = card(FACTS)
    assert f"`caption` (as published), sha256 `{'ab' * 32}`\n\n````text\nDescribe ```the``` image.\n````" in text


def test_videos_in_both_splits_are_counted_and_explained():
    assert "videos in both: 0." in card(FACTS)
    leaking = card(dataclasses.replace(FACTS, shared_videos=7))
    assert "videos in both: 7." in leaking
    assert "has seen part of its test" in leaking


def test_the_card_says_what_the_data_must_not_be_used_for():
    text = card(FACTS)
    assert "not to be used for: surveillance of individuals; identifying, tracking or profiling people" in text


def test_warnings_stand_near_the_top():
    text = card(dataclasses.replace(FACTS, warnings=["no test image came through"]))
    assert text.index("> Note: no test image came through.") < text.index("## How it was built")


def test_a_dollar_sign_or_a_bar_in_a_value_breaks_nothing():
    text = card(dataclasses.replace(FACTS, title="Costs $5 | more", thresholds={"a": "x | y"}))
    assert "# Costs $5 | more" in text
    assert "| `a` | x \\| y |" in text
    assert markdown_table(["a"], [["two\nlines"]]).splitlines()[-1] == "| two lines |"


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (1_013_605, "1M<n<10M"),
        (10**7, "10M<n<100M"),
    ],
)
def test_the_size_category_is_that_of_the_hub(rows, name):
    assert size_category(rows) == name


def test_a_rate_of_nothing_is_a_dash():
    assert keep_rate(0, 0) == "–"
    assert keep_rate(1, 3) == "33.3 %"


def test_a_stage_adds_up_only_when_every_id_came_out():
    assert FACTS.stages[0].adds_up
    assert not dataclasses.replace(FACTS.stages[0], kept=169).adds_up


FIGURES = [
    StageFigure("colours", "top", 0.905, 1638, 0.9, "", True),
    StageFigure("colours", "  top where one is named", 0.93, 1600, None, "", None),
    StageFigure("labels", "scene", 0.51, 1638, 0.85, "3 without", False),
    StageFigure("pair filter", "static clips dropped", None, 0, 1.0, "", None),
]
AUDIT = Audit(
    embedder="engine 1",
    near_duplicate_cosine=0.95,
    pairs=(PairCount("test", "different videos", 9, 1, 2, 0.9712),),
    closest=(),
    nearest=None,
    copies=Copies(0, 0, 0),
    captions=(),
    common_captions=(),
    videos=VideoOverlap(80, 90, 0, 0, 0, ()),
    labels=(label_balance("train", "scene", {"on | the road": 3, "park": 1}),),
    lengths=(),
    kinds=(),
)


def section(text: str, heading: str) -> str:
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_what_was_not_measured_is_said_so_plainly_with_the_command_that_does_it():
    text = card(FACTS)
    assert "Not measured on this build; `python -m pipeline.verify --truth` does it." in section(
        text, "How good each stage was"
    )
    assert "Not audited; `python -m pipeline.audit` does it." in section(text, "Audit")


def test_of_real_footage_no_command_is_named_that_could_not_run():
    text = card(dataclasses.replace(FACTS, simulated_footage=False), Measured(figures=FIGURES))
    assert section(text, "How good each stage was").strip() == (
        "Not measured: of real footage nobody knows what is true."
    )


def test_the_figures_stand_with_their_targets_and_those_that_miss_are_bold():
    text = section(card(FACTS, Measured(figures=FIGURES)), "How good each stage was")
    assert "1 of 2 targets are met" in text
    assert "| colours | top | 90.5 % | 90 % | 1,638 |  |" in text
    assert "|  | … top where one is named | 93.0 % |  | 1,600 |  |" in text
    assert "| labels | scene | **51.0 %** | 85 % | 1,638 | 3 without |" in text
    assert "| pair filter | static clips dropped | – | 100 % | 0 |  |" in text


def test_the_audit_stands_with_its_findings_first_and_a_label_breaks_no_table():
    text = section(card(FACTS, Measured(audit=AUDIT)), "Audit")
    assert text.index("* warning: 1 near-duplicates (2 images) of two test images") < text.index("### Near-duplicate")
    assert "| test | different videos | 9 | 1 | 2 | 0.971 |" in text
    assert "on \\| the road 3, park 1 |" in text


def test_the_order_of_the_sections_does_not_depend_on_what_was_measured():
    headings = [
        [line for line in card(FACTS, known).splitlines() if line.startswith("## ")]
        for known in (None, Measured(FIGURES, AUDIT))
    ]
    assert headings[0] == headings[1]
    assert headings[0].index("## Audit") < headings[0].index("## Limits")


def test_what_was_measured_on_another_build_or_is_damaged_counts_as_not_measured(tmp_path):
    assert read_measured(tmp_path, "key") == Measured()
    figures, audit = tmp_path / "truth_report.json", tmp_path / "audit.json"
    figures.write_text(json.dumps({"key": "key", "figures": [dataclasses.asdict(each) for each in FIGURES]}), "utf-8")
    audit.write_text(json.dumps({"key": "key", "basis": "b", "audit": dataclasses.asdict(AUDIT)}), "utf-8")
    assert read_measured(tmp_path, "key") == Measured(FIGURES, AUDIT)
    assert read_measured(tmp_path, "another key") == Measured()
    for text in ("{", "[]", '{"figures": []}', '{"key": "key", "figures": [{"name": 1}]}'):
        figures.write_text(text, "utf-8")
        assert read_measured(tmp_path, "key") == Measured(None, AUDIT)
