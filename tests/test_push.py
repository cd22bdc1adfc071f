"""A finished dataset goes to a hub: shown first, sent on request, and without what may not be passed on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bench.importing import picture
from pipeline import push
from pipeline.core.dataset_folder import split_files
from pipeline.core.imported import picture_fields, write_imported
from pipeline.push import make_parcel, push_main
from schemas.records import Engine, ImportedRow
from tests.synthetic_build import publish_build, write_build

datasets = pytest.importorskip("datasets")
ROOT = Path(__file__).parents[1]
LICENCE = "--real-frames-licence-confirmed"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    root = tmp_path_factory.mktemp("built")
    publish_build(*write_build(root))
    return root / "out" / "pab"


@pytest.fixture
def mixed(tmp_path):
    """A dataset whose test split holds frames of real videos."""

    def rows(split: str, engine: str):
        for number in range(3):
            yield ImportedRow(
                **picture_fields(picture(number), "a.jpg"),
                caption="c",
                image_id=f"{split}{number}",
                generator=Engine(name=engine, revision="1"),
            )

    write_imported(tmp_path / "mixed", {"train": rows("train", "diffusers"), "test": rows("test", "oops")}, "Made up.")
    return tmp_path / "mixed"


class FakeHub:
    """Keeps what is sent; `private` is what the dataset there is."""

    def __init__(self, private: bool | None = None) -> None:
        self.private, self.files, self.calls = private, {}, []

    def create_repo(self, repo_id: str, **how: Any) -> str:
        self.calls.append(("create", repo_id, how))
        self.private = how["private"] if self.private is None else self.private
        return f"https://hub.example/datasets/{repo_id}"

    def repo_info(self, repo_id: str, repo_type: str) -> SimpleNamespace:
        assert repo_type == "dataset"
        return SimpleNamespace(private=self.private)

    def upload_folder(self, folder_path: Path, **how: Any) -> None:
        self.calls.append(("upload", how["repo_id"], how))
        self.files = {path.relative_to(folder_path).as_posix(): path.read_bytes()
                      for path in Path(folder_path).rglob("*") if path.is_file()}  # fmt: skip


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_token")


def sent(hub: FakeHub, data: Path, *words: str) -> int:
    return push_main(["--push", "me/pab", "--data", str(data), "--yes", *words], hub)


def test_without_yes_files_sizes_and_problems_are_shown_and_nothing_is_sent(built, token, capsys):
    for words in ([], ["--yes", "--dry-run"]):
        hub = FakeHub()
        assert push_main(["--push", "me/pab", "--data", str(built), *words], hub) == 0
        assert hub.calls == []
        said = capsys.readouterr().out
        assert re.search(r"data/train-00000-of-00003\.parquet  \d+\.\d MB", said)
        assert "the card passes a hub's rules" in said
        assert "private dataset me/pab" in said
        assert "Nothing is sent" in said


def test_what_is_sent_is_the_dataset_and_nothing_else_of_the_folder_private_by_default(built, tmp_path, token):
    data = Path(shutil.copytree(built, tmp_path / "pab"))
    for stray in ("secrets.env", "data/notes.txt", "rejected/x.csv"):
        (data / stray).parent.mkdir(exist_ok=True)
        (data / stray).write_text("mine", "utf-8")
    hub = FakeHub()
    assert sent(hub, data) == 0
    files = {path.relative_to(built).as_posix(): path.read_bytes() for path in built.rglob("*") if path.is_file()}
    assert hub.files == files
    create, upload = hub.calls
    assert create[2] == {"repo_type": "dataset", "private": True, "exist_ok": True}
    assert upload[2]["repo_type"] == "dataset"
    assert "data/*.parquet" in upload[2]["delete_patterns"]
    assert [path.name for path in tmp_path.iterdir()] == ["pab"]


def test_a_dataset_that_is_public_there_is_not_written_to_unless_it_should_be_public(built, token, capsys):
    hub = FakeHub(private=False)
    assert sent(hub, built) == 2
    assert "me/pab is there and public" in capsys.readouterr().err
    assert hub.files == {}
    assert sent(hub, built, "--public") == 0
    assert hub.files


def test_frames_of_real_videos_stay_and_the_card_says_so_unless_their_licence_is_confirmed(
    mixed, tmp_path, token, capsys
):
    hub = FakeHub()
    assert sent(hub, mixed) == 0
    assert "stays here: test: 3 of its images are frames of real videos" in capsys.readouterr().out
    assert set(hub.files) == {"README.md", "data/train-00000-of-00001.parquet"}
    card = hub.files["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert head["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*-of-00001.parquet"}]
    assert "> Not here: test." in card
    there = tmp_path / "there"
    for name, data in hub.files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
    found = datasets.load_dataset(str(there), cache_dir=str(tmp_path / "cache"))
    assert {name: split.num_rows for name, split in found.items()} == {"train": 3}
    assert sent(hub, mixed, LICENCE) == 0
    assert "data/test-00000-of-00001.parquet" in hub.files
    assert hub.files["README.md"] == (mixed / "README.md").read_bytes()


def test_a_dataset_of_nothing_but_real_frames_is_not_sent_at_all(mixed, token, capsys):
    for path in split_files(mixed)["train"]:
        path.unlink()
    hub = FakeHub()
    assert sent(hub, mixed) == 2
    assert LICENCE in capsys.readouterr().err
    assert hub.calls == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("license: apache-2.0", "license: mine-alone", "license is 'mine-alone'"),
        ("license: apache-2.0", "license: other", "license_name must be a short name"),
        ("- 'en'|- en", "- English", "language is"),
        ("- text-retrieval", "- finding-people", "task_categories is"),
        ("- n<1K", "- small", "size_categories is"),
        ("pretty_name: .*", "pretty_name: [a]", "pretty_name is no text"),
        ("license: ", "licence: ", "keys that a hub does not know: licence"),
        (r"data/train-\*", "data/training-*", "no file is data/training-"),
        ("num_examples: 18", "num_examples: 17", "the card says 17 rows, the files have 18"),
        ("tags:", f"tags:\n- {'long' * 25}", "tags is no list of short texts"),
        ("tags:", "1: 2\ntags:", "huggingface_hub does not take the card's head"),
        ("tags:", "tags: {", "the card's head is no YAML"),
    ],
)
def test_what_a_hub_would_object_to_in_the_card_is_a_problem_and_stops_the_push(
    built, tmp_path, token, capsys, old, new, problem
):
    data = Path(shutil.copytree(built, tmp_path / "pab"))
    card = (data / "README.md").read_text("utf-8")
    changed = re.sub(old, new, card, count=1)
    assert changed != card
    problems = list(push.card_problems(changed, make_parcel(built, False).files, {}))
    assert [each for each in problems if problem in each], problems
    if "no YAML" in problem:
        return  # then nobody can tell whose dataset it is either
    (data / "README.md").write_text(changed, "utf-8")
    hub = FakeHub()
    assert sent(hub, data) == 2
    assert hub.calls == []
    assert "nothing is sent" in capsys.readouterr().err


def test_a_file_or_folder_beyond_the_limits_of_a_hub_is_a_problem(built):
    files = make_parcel(built, False).files
    card = (built / "README.md").read_text("utf-8")
    (problem,) = push.card_problems(card, files, {"data/x": 60 * 10**9})
    assert problem.startswith("data/x has 60,000,000,000 bytes")
    many = files | {f"images/{number}.txt": built for number in range(10_001)}
    assert list(push.card_problems(card, many, {})) == ["images has 10,001 files, a hub takes 10,000"]


def test_a_data_file_that_no_config_names_is_a_problem(built):
    files = make_parcel(built, False).files
    card = (built / "README.md").read_text("utf-8")
    known = next(path for name, path in files.items() if name.startswith("data/"))
    (problem,) = push.card_problems(card, files | {"data/spare-00000-of-00001.parquet": known}, {})
    assert problem == "no config names data/spare-00000-of-00001.parquet"


def test_without_a_token_or_with_a_wrong_name_it_is_one_line_and_exit_code_2(built, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert sent(FakeHub(), built) == 2
    assert "no token" in capsys.readouterr().err
    assert push_main(["--push", "a/b/c", "--data", str(built)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert push_main(["--push", "me/pab", "--data", str(built / "nowhere")]) == 2
    assert "no dataset of this project is there" in capsys.readouterr().err


def test_offline_is_said_in_a_line_and_the_token_is_never_shown(built, token, capsys):
    assert push_main(["--push", "me/pab", "--data", str(built), "--yes"]) == 2
    said = capsys.readouterr()
    assert "HF_HUB_OFFLINE" in said.err
    assert "hf_not_a_token" not in said.out + said.err


def test_the_real_command_takes_push_and_without_it_is_the_stage(built):
    def told(*words: str) -> str:
        command = [sys.executable, "-m", "pipeline.publish", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "Nothing is sent" in told("--push=me/pab", "--data", str(built))
    usage = told("--help")
    assert "--with-upstream" in usage
    assert "--push REPO" in usage
