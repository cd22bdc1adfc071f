import pytest

from pipeline.build import Progress


class FakeBar:
    total, n = 0, 0

    def refresh(self):
        pass

    def close(self):
        pass


@pytest.fixture
def progress(monkeypatch):
    monkeypatch.setattr("tqdm.tqdm", lambda **_: FakeBar())
    made = Progress()
    made._live = True
    return made


def test_shards_that_have_not_begun_count_like_those_that_have(progress):
    with progress.stage("keypoints", 0, "records", 10):
        progress.update("keypoints/train-000", 20, 100)
        progress.update("keypoints/train-001", 10, 140)
        assert (progress._bar.n, progress._bar.total) == (30, 1200)


def test_a_late_word_and_another_stages_word_change_nothing(progress):
    with progress.stage("keypoints", 0, "records", 1):
        progress.update("keypoints/train-000", 100, 100)
        progress.update("keypoints/train-000", 64, 100)
        progress.update("generate/train-000", 5, 5)
        assert (progress._bar.n, progress._bar.total) == (100, 100)


def test_without_a_terminal_a_stage_is_one_line(capsys):
    bars = Progress()
    bars._live = False
    with bars.stage("frames", 0, "records", 2):
        bars.update("frames/test-000", 50, 50)
        bars.update("frames/test-001", 48, 48)
    assert capsys.readouterr().err.startswith("frames          98 records in ")
