import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.core.errors import UserError
from pipeline.core.pose import PeopleThresholds, StructureThresholds
from pipeline.core.profile import (
    PROFILES_DIR,
    PeopleSection,
    StructureSection,
    load_profile,
    oops_root,
    profile_names,
)


def refusal(*overrides: str, name: str = "demo") -> str:
    with pytest.raises(UserError) as caught:
        load_profile(name, list(overrides))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_loads_and_starts_with_the_command_that_runs_it(name):
    assert load_profile(name).title
    head = (PROFILES_DIR / f"{name}.yaml").read_text("utf-8").splitlines()[0]
    assert head.startswith("# ")
    assert f"--profile {name}" in head


def test_the_shipped_profiles_are_demo_and_full_with_the_papers_sizes():
    assert {"demo", "engines-tiny", "pilot", "full", "full-sdxl"} <= set(profile_names())
    full, demo = load_profile("full"), load_profile("demo")
    assert full.generate.images_per_caption == 75
    assert full.sources.splits == ("train", "val")
    assert full.similarity.max_cosine == 0.95
    assert (demo.generate.images_per_caption, demo.sources.splits, demo.frames.splits) == (8, ("train",), ("val",))


def test_values_are_set_at_any_depth_with_the_type_they_have():
    profile = load_profile(
        "demo",
        [
            "generate.images_per_caption=2",
            "keypoints.people.min_joint_score=0.25",
            "frames.quality_rule=false",
            "oops.root=../somewhere/oops",
            "sources.splits=[train, val]",
            "generate.settings={size: 64}",
            "generate.settings.bad_share=0",
            "recaption.settings.temperature=0.5",
        ],
    )
    assert profile.generate.images_per_caption == 2
    assert profile.keypoints.people.min_joint_score == 0.25
    assert profile.frames.quality_rule is False
    assert profile.oops.root == Path("../somewhere/oops")
    assert profile.sources.splits == ("train", "val")
    assert profile.generate.settings == {"size": 64, "bad_share": 0}
    assert profile.recaption.settings == {"temperature": 0.5}


def test_the_last_of_two_values_stands_and_none_unsets():
    assert load_profile("demo", ["seed=1", "seed=2"]).seed == 2
    assert load_profile("demo", ["oops.root=x", "oops.root="]).oops.root is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("similarity.max_cosin=0.9", "unknown key 'similarity.max_cosin'; did you mean 'max_cosine'?"),
        ("similarty.max_cosine=0.9", "unknown key 'similarty'; did you mean 'similarity'?"),
        ("keypoints.people.joints=3", "unknown key 'keypoints.people.joints'; did you mean 'min_joints'?"),
        ("footage.colour=red", "unknown key 'footage.colour'; known here: engine, size, train_clips, val_clips"),
        (".=1", "unknown key"),
        ("generate..x=1", "unknown key"),
        ("workers=many", "'workers': input should be a valid integer"),
        ("workers=0", "'workers': input should be greater than or equal to 1, not 0"),
        ("similarity.max_cosine=1.5", "'similarity.max_cosine'"),
        ("sources.splits=[test]", "'sources.splits.0': input should be 'train' or 'val', not 'test'"),
        ("frames.transition=mean", "'frames.transition'"),
        ("sources=null", "'sources'"),
        ("seed.x=1", "'seed' has no keys below it"),
        ("title=[", "'[' is not a YAML value"),
        ("seed", "write it as key=value"),
        ("=3", "write it as key=value"),
    ],
)
def test_a_wrong_key_or_value_is_one_clear_line(override, said):
    assert said in refusal(override)


def test_an_unknown_profile_names_those_there_are():
    assert "use one of demo, " in refusal(name="demmo")
    assert "no profile 'missing.yaml'" in refusal(name="missing.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [", "not readable YAML"),
        (b"- a\n- b\n", "must hold a mapping"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"!!python/object/apply:os.system ['true']", "not readable YAML"),
        (b"title: x\n", "is missing"),
    ],
)
def test_a_profile_file_that_is_wrong_is_one_clear_line(tmp_path, content, said):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    assert said in refusal(name=str(path))


def test_a_persons_own_profile_file_is_read(tmp_path):
    data = yaml.safe_load((PROFILES_DIR / "demo.yaml").read_text("utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**data, "seed": 77}), "utf-8")
    assert load_profile(str(path)).seed == 77


def test_a_profile_cannot_be_changed():
    profile = load_profile()
    with pytest.raises(ValidationError):
        profile.seed = 3
    with pytest.raises(ValidationError):
        profile.keypoints.people.min_joints = 3


def test_the_thresholds_of_the_filters_are_those_that_the_filters_know():
    for section, thresholds in ((PeopleSection, PeopleThresholds), (StructureSection, StructureThresholds)):
        assert set(section.model_fields) == {field.name for field in dataclasses.fields(thresholds)}


def test_a_section_is_plain_data_for_content_keys():
    profile = load_profile("demo", ["review.file=some/file.jsonl"])
    assert profile.section("keypoints.people")["min_joints"] == profile.keypoints.people.min_joints
    assert profile.section("review") == {"file": "some/file.jsonl", "reviewers": 3}
    assert profile.section("frames.splits") == ["val"]
    with pytest.raises(KeyError):
        profile.section("frames.nothing")


def test_the_oops_folder_is_the_profiles_or_the_one_that_is_filmed(tmp_path):
    assert oops_root(load_profile("demo", ["oops.root=a/b"])) == Path("a/b")
    filmed = oops_root(load_profile("demo", [f"work={tmp_path}", "footage.size=128", "seed=3"]))
    assert filmed.parent == tmp_path / "footage"
    others = {oops_root(load_profile("demo", [f"work={tmp_path}", each])) for each in ("seed=4", "footage.val_clips=3")}
    assert filmed not in others
    assert len(others) == 2
    with pytest.raises(UserError, match=r"--set oops\.root=FOLDER"):
        oops_root(load_profile("demo", ["footage=null"]))


@given(st.integers(1, 999), st.floats(-1, 1))
def test_every_number_that_is_set_is_the_number_that_is_read(number, share):
    profile = load_profile("demo", [f"generate.images_per_caption={number}", f"similarity.max_cosine={share:f}"])
    assert profile.generate.images_per_caption == number
    assert profile.similarity.max_cosine == float(f"{share:f}")


def test_a_structure_rule_that_is_off_is_no_part_of_what_a_build_depends_on():
    rules = ("min_limbs", "max_doubled_joints", "max_asymmetry", "max_outside_share")
    assert not set(rules) & set(load_profile("demo").section("keypoints.structure"))
    on = load_profile("demo", ["keypoints.structure.min_limbs=0", "keypoints.structure.max_asymmetry=6"])
    assert on.section("keypoints.structure")["min_limbs"] == 0
    assert on.section("keypoints.structure")["max_asymmetry"] == 6
    with pytest.raises(UserError, match=r"keypoints\.structure\.min_limbs"):
        load_profile("demo", ["keypoints.structure.min_limbs=5"])
