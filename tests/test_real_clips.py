"""The real clips, where they lie beside the project, through the whole build by the real command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds import ROOT, build_command, run_command

REAL = ROOT.parent / "shared" / "real_oops"
HOOPS, HUGGING, POOL, TABLE = "ec48412f6f", "25302b08f3", "ffc5c4e101", "2ca82c05cc"

pytestmark = pytest.mark.skipif(
    not REAL.is_dir(), reason="NOT CHECKED: no real clips beside this checkout (../shared/real_oops)"
)


def _built(folder: Path, quality_rule: bool) -> tuple[set[str], dict[str, tuple[str, str]], list[dict]]:
    """The published pairs, stage and reason of everything dropped, and the published rows."""
    import datasets

    overrides = {"oops.root": str(REAL), "frames.quality_rule": str(quality_rule).lower(), "workers": "1"}
    done = run_command(build_command(folder, overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = list(datasets.load_dataset(str(folder / "out"), split="test", streaming=True))
    dropped = datasets.load_dataset(str(folder / "out"), "rejected", split="rejected", streaming=True)
    return {row["pair_id"] for row in rows}, {row["id"]: (row["stage"], row["reason"]) for row in dropped}, rows


@pytest.fixture(scope="module")
def with_rule(tmp_path_factory: pytest.TempPathFactory):
    return _built(tmp_path_factory.mktemp("rule"), quality_rule=True)


def test_the_hoops_clip_becomes_a_pair_and_the_hugging_clip_is_too_short(with_rule) -> None:
    pairs, dropped, _ = with_rule
    assert HOOPS in pairs
    assert dropped[f"{HUGGING}_goal_frame"] == ("frames", "quality_rule")


def test_the_pool_falls_to_the_people_filter_and_the_table_has_its_reason(with_rule) -> None:
    pairs, dropped, _ = with_rule
    for kind in ("goal", "wentrong"):
        assert dropped[f"{POOL}_{kind}_frame"][0] == "keypoints"
        assert TABLE in pairs or dropped[f"{TABLE}_{kind}_frame"][1]


def test_the_captions_of_the_hoops_pair_name_the_blue_shirt_and_nothing_unseen(with_rule) -> None:
    rows = [row for row in with_rule[2] if row["pair_id"] == HOOPS]
    assert len(rows) == 2
    for row in rows:
        assert "blue" in row["caption"]
        assert "standing" in row["caption"] or "stands" in row["caption"]
        assert "blue" in (row["factors"]["appearance"] or "")


def test_without_the_quality_rule_the_hugging_clip_becomes_a_pair_too(tmp_path: Path) -> None:
    pairs, _, _ = _built(tmp_path, quality_rule=False)
    assert {HOOPS, HUGGING} <= pairs
