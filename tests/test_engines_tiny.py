"""The profile engines-tiny: records through the real classes of the paper's engines, from the clips to the dataset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline import stages, tiny_models
from pipeline.backends.tiny import make
from pipeline.core.errors import UserError
from pipeline.core.profile import Profile, load_profile
from pipeline.preflight import missing_pieces
from tests.builds import run_command
from tests.engines_tiny import NAME, command, counts, models_in, the_build

ENGINES = {
    "generate": "diffusers",
    "keypoints": "vitpose",
    "similarity": "resnet50",
    "recaption": "transformers",
    "attributes": "transformers",
    "decompose": "transformers",
}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return the_build(tmp_path_factory)


def profile_in(folder: Path, *overrides: str) -> Profile:
    places = {"work": folder, "out": folder / "out", **models_in(folder / "tiny-models")}
    return load_profile(NAME, [*(f"{key}={value}" for key, value in places.items()), *overrides])


def test_every_stage_keeps_records_and_every_one_that_can_rejects_some(build: Path) -> None:
    found = counts(build)
    assert set(found) == set(stages.STAGE_NAMES)
    for stage in stages.all_stages():
        own = found[stage.name]
        assert own["in"] == own["kept"] + own["rejected"]
        assert own["kept"] >= 1, stage.name
        assert own["rejected"] >= 1 if stage.reasons else own["rejected"] == 0, stage.name


def test_each_stage_was_done_by_the_engine_that_the_profile_names(build: Path) -> None:
    for stage, engine in ENGINES.items():
        for path in (build / "work" / NAME / stage).glob("*/stage.json"):
            (used,) = json.loads(path.read_text("utf-8"))["engines"].values()
            assert used["name"] == engine


def test_the_dataset_loads_and_has_at_least_four_rows(build: Path, tmp_path: Path) -> None:
    import datasets

    loaded = datasets.load_dataset(str(build / "out"), cache_dir=str(tmp_path))
    rows = [row for split in loaded.values() for row in split]
    assert len(rows) >= 4
    for row in rows:
        assert row["image"].size == row["pose"].size == (row["width"], row["height"])
        assert row["caption"]


def test_a_second_run_does_nothing(build: Path) -> None:
    files = [path for path in build.rglob("*") if path.is_file() and path.suffix != ".png"]
    before = {path: path.stat().st_mtime_ns for path in files}
    done = run_command(command(build))
    assert done.returncode == 0, done.stderr
    assert "up to date" in done.stdout
    assert before == {path: path.stat().st_mtime_ns for path in files}


def test_models_that_the_build_writes_are_not_missing_and_others_are(tmp_path: Path) -> None:
    assert missing_pieces(profile_in(tmp_path)) == []
    other = missing_pieces(profile_in(tmp_path, f"decompose.settings.model={tmp_path / 'elsewhere' / 'qwen3'}"))
    assert [piece.section for piece in other] == ["decompose"]
    without = {piece.section for piece in missing_pieces(profile_in(tmp_path, "tiny_models=null"))}
    assert without == set(ENGINES)


@pytest.fixture
def quick_writers(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Writers of one small file each, in the places of those that fit models; the folders they wrote."""
    written: list[Path] = []

    def write(folder: Path, *_: object) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}", "utf-8")
        written.append(folder)

    names = ("write_drawing_sd", "write_tiny_detector", "write_tiny_vitpose", "write_tiny_resnet")
    for name in (*names, "write_speaking_qwen2_vl", "write_splitting_qwen3"):
        monkeypatch.setattr(make, name, write)
    return written


def test_the_models_are_written_once_and_anew_for_another_seed(quick_writers: list[Path], tmp_path: Path) -> None:
    profile = profile_in(tmp_path)
    assert tiny_models.wanting(profile)
    assert tiny_models.will_be_written(profile, str(tmp_path / "tiny-models" / "sd"))
    assert tiny_models.write(profile) == len(make.MODELS) == len(quick_writers)
    assert {path.name for path in (tmp_path / "tiny-models").iterdir()} == {*make.MODELS, make.MARKER}
    assert not tiny_models.wanting(profile)
    assert not tiny_models.will_be_written(profile, str(tmp_path / "tiny-models" / "sd"))
    tiny_models.write(profile)
    assert len(quick_writers) == len(make.MODELS)
    tiny_models.write(profile_in(tmp_path, "tiny_models.seed=1"))
    assert len(quick_writers) == 2 * len(make.MODELS)


def test_a_writer_that_fails_leaves_no_folder(
    quick_writers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(make, "write_splitting_qwen3", fail)
    with pytest.raises(OSError, match="no space"):
        tiny_models.write(profile_in(tmp_path))
    assert len(quick_writers) == len(make.MODELS) - 1
    assert list(tmp_path.iterdir()) == []


def test_a_profile_with_a_reviewers_file_of_its_own_keeps_it(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    tiny_models.write_reviews(profile_in(tmp_path, f"review.file={own}"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "tiny-models" / "letter.txt"
    own.parent.mkdir()
    own.write_text("dear", "utf-8")
    with pytest.raises(UserError, match="holds other files"):
        tiny_models.write(profile_in(tmp_path))
    assert own.read_text("utf-8") == "dear"
