import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import stages
from pipeline.core.stage import shard_name

ROOT = Path(__file__).parents[1]
MINI = ROOT / "tests" / "cases" / "oops_mini"


def command(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, cwd="/", env=environment, timeout=120)


def mini(tmp_path: Path, *overrides: str) -> list[str]:
    values = [f"oops.root={MINI}", f"work={tmp_path}/work", f"out={tmp_path}/out", *overrides]
    return [word for value in values for word in ("--set", value)]


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in stages.STAGE_NAMES), ".build", ".footage"])
def test_help_comes_in_under_a_second(module):
    # The time the processor gave it: the clock on the wall also shows what else the machine was doing.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = command(f"pipeline{module}", "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_the_list_of_stages_says_what_each_reads_and_writes():
    shown = command("pipeline").stdout
    for stage in stages.all_stages():
        assert f" {stage.name} " in shown
        assert f"writes  {', '.join(stage.writes.model_fields)}" in shown
        for columns in stage.reads.values():
            assert ", ".join(columns) in shown


def test_a_word_that_is_no_stage_is_one_clear_line():
    assert "decompose, publish" in refused(command("pipeline", "decompos"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pipeline.frames", "--set", "frames.qualty_rule=false"], "did you mean 'quality_rule'?"),
        (["pipeline.build", "--set", "keypoints.peeple={}"], "unknown key 'keypoints.peeple'"),
        (["pipeline.footage", "--profile", "demoo"], "no profile 'demoo'"),
        (["pipeline.frames", "--set", "workers"], "key=value"),
        (["pipeline.frames", "--build", "a/b", "--set", f"oops.root={MINI}"], "use a plain name"),
        (["pipeline.frames", "--set", "oops.root=/nowhere/at/all"], "/nowhere/at/all"),
        (["pipeline.generate", "--shard", "99", "--set", f"oops.root={MINI}"], "generate has train-000 .. train-007"),
        (["pipeline.frames", "--shard", "0", "--set", f"oops.root={MINI}"], "frames has test-000"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_wrong_key_profile_build_folder_or_shard_is_one_clear_line(words, said):
    assert said in refused(command(*words))


def test_a_missing_input_names_the_whole_command_that_makes_it(tmp_path):
    options = mini(tmp_path, "similarity.max_cosine=0.9")
    line = refused(command("pipeline.similarity", "--build", "trial", *options))
    assert "similarity test-000 needs frames test-000" in line
    assert f"python -m pipeline.frames --shard test-000 --build trial {' '.join(options)} first" in line
    assert "--with-upstream" in line


def test_a_stage_that_needs_the_footage_says_how_to_film_it(tmp_path):
    line = refused(command("pipeline.frames", "--set", f"work={tmp_path}", "--set", "footage.train_clips=1"))
    assert f"python -m pipeline.footage --set work={tmp_path} --set footage.train_clips=1 first" in line


def test_a_stage_builds_its_shard_tells_the_counts_and_is_then_up_to_date(tmp_path):
    options = [*mini(tmp_path, "frames.splits=[train, val]", "frames.clips_per_shard=3"), "--build", "trial"]
    first = command("pipeline.frames", "--shard", "test-2", *options)
    assert first.returncode == 0, first.stderr
    assert "in 6 = kept 4 + rejected 2 + failed 0" in first.stdout
    assert len([line for line in first.stdout.splitlines() if line.startswith("  ")]) == 3
    again = command("pipeline.frames", "--shard", "test-2", *options)
    assert "frames test-002: up to date" in again.stdout
    assert again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]
    assert [path.name for path in sorted((tmp_path / "work" / "trial" / "frames").glob("[!.]*"))] == ["test-002"]


def test_failed_records_show_in_the_counts_and_the_exit_code(tmp_path):
    done = command("pipeline.frames", *mini(tmp_path, "frames.splits=[train, val]"))
    assert done.returncode == 1, done.stderr
    assert "failed 2" in done.stdout
    assert "missing_video 2" in done.stdout
    manifest = json.loads((tmp_path / "work" / "demo" / "frames" / shard_name("test", 0) / "stage.json").read_text())
    assert manifest["counts"]["failed"] == 2
