"""A finished dataset's captions are split by the profile's engine, through the command people run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pipeline import decompose_data, stages
from pipeline.backends.protocols import FactorTexts
from pipeline.core.dataset_folder import read_split, split_files
from pipeline.core.images import encode_jpeg
from pipeline.core.imported import picture_fields, write_imported
from pipeline.training.samples import load_samples
from schemas.records import Factors, FrozenReply, ImportedRejection, ImportedRow
from tests.builds import digests

pytest.importorskip("datasets")
ROOT = Path(__file__).parents[1]
COLOURS = ("red", "green", "blue", "white")
KNOWN = Factors(appearance="known before", action=None, background=None)


def caption(number: int) -> str:
    return f"A man in a {COLOURS[number]} shirt is walking along a street."


def row(number: int, **more: object) -> ImportedRow:
    picture = np.full((40, 30, 3), 20 * number, np.uint8)
    partner = (number + 1) % len(COLOURS)
    return ImportedRow(
        **{
            **picture_fields(encode_jpeg(picture), f"{number}.jpg"),
            "caption": caption(number),
            "image_id": f"image {number}",
            "hard_image_id": f"image {partner}",
            "hard_caption": caption(partner),
            **more,
        }
    )


@pytest.fixture
def data(tmp_path) -> Path:
    """Four training rows, each the hard negative of the one before, two test rows, and a row that was of no use."""
    folder = tmp_path / "pab"
    broken = ImportedRejection(
        split="train", file="a.json", line=3, row=3, image_id="x", reason="image_missing", detail=""
    )
    write_imported(
        folder,
        {"train": [row(number) for number in range(4)], "test": [row(number) for number in range(2)]},
        "Made up.",
        rejected=[broken],
    )
    return folder


class Engine:
    """Splits a caption by its words, as `answer` says, and notes what it was asked."""

    name, revision = "fake", "7"

    def __init__(self, answer: Callable[[str], FrozenReply] | None = None) -> None:
        self.asked: list[list[str]] = []
        self._answer = answer or replied

    def ask_factors(self, captions: Sequence[str], prompt: str) -> list[tuple[FrozenReply, ...]]:
        assert "appearance" in prompt
        self.asked.append(list(captions))
        return [(self._answer(each),) for each in captions]

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        raise AssertionError("what asks is asked for replies")

    @property
    def every(self) -> list[str]:
        return [each for batch in self.asked for each in batch]


def reply(text: str | None, error: str | None = None) -> FrozenReply:
    return FrozenReply(question="factors", attempt=0, seed=None, temperature=None, max_tokens=None, text=text,
                       finish_reason=None, prompt_tokens=None, completion_tokens=None, error=error)  # fmt: skip


def replied(text: str) -> FrozenReply:
    colour = text.split()[4]
    return reply(f'{{"appearance": "a {colour} shirt", "action": "walking", "background": "a street"}}')


def run(data: Path, engine: Engine, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "engine_of", lambda section, _profile, _build: engine)
        work = f"work={data.parent / 'work'}"
        return decompose_data.decompose_main(["--data", str(data), "--set", work, *words])


def rows(folder: Path, split: str = "train") -> list[dict]:
    return list(read_split(split_files(folder)[split]))


def test_rows_get_the_factors_of_both_captions_and_everything_else_stays(data, capsys):
    before = digests(data)
    assert run(data, Engine()) == 0
    out = data.with_name("pab-decomposed")
    was, now = rows(data), rows(out)
    assert [each["image_id"] for each in now] == [each["image_id"] for each in was]
    for number, each in enumerate(now):
        partner = COLOURS[(number + 1) % 4]
        assert each["factors"] == {
            "appearance": f"a {COLOURS[number]} shirt",
            "action": "walking",
            "background": "a street",
        }
        assert each["hard_factors"]["appearance"] == f"a {partner} shirt"
        assert each["decomposer"] == {"name": "fake", "revision": "7"}
        changed = ("factors", "hard_factors", "decomposer")
        assert {key: value for key, value in each.items() if key not in changed} == {
            key: value for key, value in was[number].items() if key not in changed
        }
    assert rows(out, "test") == rows(data, "test")
    assert [each["reason"] for each in read_split(sorted((out / "rejected").glob("*.parquet")))] == ["image_missing"]
    assert digests(data) == before
    assert "asked about 4 captions" in capsys.readouterr().out
    sample = load_samples(str(out), "train").samples[0]
    assert sample.factors == ("a red shirt", "walking", "a street")
    assert sample.hard is not None
    assert sample.hard.factors[0] == "a green shirt"


def test_a_caption_is_asked_about_once_however_often_it_stands_there_and_never_again(data, capsys):
    first = Engine()
    assert run(data, first) == 0
    assert sorted(first.every) == sorted(map(caption, range(4)))
    second = Engine()
    assert run(data, second) == 0
    assert "nothing to do" in capsys.readouterr().out
    made = digests(data.with_name("pab-decomposed"))
    # Into another folder: the replies are known, and the same replies give the same bytes.
    assert run(data, second, "--out", str(data.parent / "elsewhere" / "pab-decomposed")) == 0
    assert second.asked == []
    again = digests(data.parent / "elsewhere" / "pab-decomposed")
    assert {name: digest for name, digest in again.items() if name.startswith("data/")} == {
        name: digest for name, digest in made.items() if name.startswith("data/")
    }


def test_an_error_costs_its_captions_and_the_next_run_asks_for_those_alone(data, capsys):
    broken = Engine(lambda text: reply(None, "out of memory") if "blue" in text else replied(text))
    assert run(data, broken) == 1
    assert "1 captions failed, the first with: out of memory" in capsys.readouterr().err
    now = rows(data.with_name("pab-decomposed"))
    assert [each["factors"] is None for each in now] == [False, False, True, False]
    assert [each["hard_factors"] is None for each in now] == [False, True, False, False]
    assert now[2]["decomposer"] is None
    mended = Engine()
    assert run(data, mended) == 0
    assert mended.every == [caption(2)]
    assert all(each["factors"] and each["hard_factors"] for each in rows(data.with_name("pab-decomposed")))


def test_what_was_replied_before_a_crash_is_not_asked_for_again(data, monkeypatch):
    monkeypatch.setattr(decompose_data, "AT_ONCE", 1)
    count = 0

    def third_breaks(text: str) -> FrozenReply:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return replied(text)

    assert run(data, Engine(third_breaks)) == 130
    assert not data.with_name("pab-decomposed").exists()
    engine = Engine()
    assert run(data, engine) == 0
    assert engine.every == [caption(2), caption(3)]


def test_what_the_engine_added_is_null_and_what_nobody_can_read_is_told_by_its_reason(data, capsys):
    def answer(text: str) -> FrozenReply:
        if "green" in text:
            return reply('{"appearance": "a green hat", "action": "walking", "background": "a street"}')
        return reply("I am sorry, I cannot help with that.") if "blue" in text else replied(text)

    assert run(data, Engine(answer)) == 0
    now = rows(data.with_name("pab-decomposed"))
    assert now[1]["factors"] == {"appearance": None, "action": "walking", "background": "a street"}
    assert now[2]["factors"] is None
    said = capsys.readouterr().out
    assert "| in part | 1 | 1 |" in said
    assert "| refusal | 1 | 1 |" in said
    assert "| split | 2 | 2 |" in said
    assert "| in part | 1 | 1 |" in (data.with_name("pab-decomposed") / "README.md").read_text("utf-8")


def test_factors_that_are_there_stay_unless_they_are_wanted_again(tmp_path):
    folder = tmp_path / "pab"
    write_imported(folder, {"train": [row(0, factors=KNOWN), row(1), row(2, hard_caption=None)]}, "Made up.")
    engine = Engine()
    assert run(folder, engine) == 0
    now = rows(tmp_path / "pab-decomposed")
    assert now[0]["factors"]["appearance"] == "known before"
    assert now[0]["decomposer"] is None
    assert now[1]["factors"]["appearance"] == "a green shirt"
    assert now[2]["hard_factors"] is None
    assert caption(0) not in engine.every
    assert run(folder, engine, "--again") == 0
    assert engine.every[-1] == caption(0)
    assert rows(tmp_path / "pab-decomposed")[0]["factors"]["appearance"] == "a red shirt"


def test_other_splits_are_decomposed_where_they_are_asked_for(data):
    assert run(data, Engine(), "--splits", "train,test") == 0
    assert all(each["factors"] for each in rows(data.with_name("pab-decomposed"), "test"))


def test_a_dry_run_says_how_many_captions_and_writes_nothing(data, capsys):
    before = digests(data.parent)
    engine = Engine()
    assert run(data, engine, "--dry-run") == 0
    assert "would be asked about 4 captions" in capsys.readouterr().out
    assert engine.asked == []
    assert digests(data.parent) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--splits", "train,valid"], "--splits train,valid: "),
        (["--splits", ","], "--splits ,: "),
        (["--out", "{data}/inside"], "lie in each other"),
        (["--out", "{data}/.."], "holds something else"),
        (["--data", "{data}/data"], "no dataset of this project"),
        (["--set", "decompose.backend=nobody"], "nobody"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(data, capsys, words, said):
    (data.parent / "mine.txt").write_text("mine")
    assert run(data, Engine(), *(word.format(data=data) for word in words)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_file_that_holds_no_replies_is_told(data, capsys):
    assert run(data, Engine()) == 0
    (path,) = (data.parent / "work").rglob("*.sqlite")
    for each in path.parent.iterdir():
        each.write_bytes(b"something else, " * 100)
    capsys.readouterr()
    assert run(data, Engine(), "--again") == 2
    assert "no file of replies" in capsys.readouterr().err


def test_the_real_command_splits_with_the_embedded_engine_and_without_data_is_the_stage(data):
    command = [sys.executable, "-m", "pipeline.decompose"]
    done = subprocess.run(
        [*command, "--data", str(data), "--set", f"work={data.parent / 'work'}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (first, *_) = rows(data.with_name("pab-decomposed"))
    assert "red shirt" in first["factors"]["appearance"]
    assert "walking" in first["factors"]["action"]
    assert "street" in first["factors"]["background"]
    told = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--shard" in told
    assert "--data FOLDER" in told
