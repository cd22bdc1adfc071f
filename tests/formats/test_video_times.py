from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.formats.video import FrameReader, VideoError, decode_times
from tests.formats.test_video import TICKS, cut_without_decoding, frame_number, make_clip, shown_by_search

FRAME = TICKS // 30


@pytest.fixture(scope="module")
def reader() -> Iterator[FrameReader]:
    with FrameReader(deadline_s=30) as made:
        yield made


@pytest.fixture(scope="module")
def clip(tmp_path_factory) -> Path:
    return make_clip(tmp_path_factory.mktemp("clip") / "a clip.mp4", [number * FRAME for number in range(90)])


def test_the_frames_shown_at_times_come_in_the_order_asked(reader, clip):
    times = [2.51, 0.0, 1.0, 2.51, 29.5 / 30, 89.5 / 30]
    found = reader.read_at(clip, times)
    assert [frame_number(frame.image) for frame in found.frames] == [75, 0, 30, 75, 29, 89]
    assert [frame.index for frame in found.frames] == [75, 0, 30, 75, 29, 89]
    assert [frame.wanted_s for frame in found.frames] == times
    assert found.duration_s == pytest.approx(3.0, abs=1e-3)
    assert found.frame_count == 90
    assert reader.duration(clip) == pytest.approx(3.0, abs=1e-3)


def test_a_time_at_which_nothing_is_shown_gives_no_frame_and_costs_no_other(reader, clip):
    found = reader.read_at(clip, [-1.0, 0.5, 3.0, 1000.0])
    assert [frame is None for frame in found.frames] == [True, False, True, True]
    assert frame_number(found.frames[1].image) == 15
    assert reader.read_at(clip, []).frames == ()


def test_uneven_frames_are_found_by_their_starts_by_either_decoder(tmp_path):
    starts = [0, 40, 55, 90, 200, 203, 420, 600, 640]
    path = make_clip(tmp_path / "uneven.mp4", starts)
    times = [tick / TICKS + 1e-4 for tick in range(0, 640, 37)]
    expected = [shown_by_search([start / TICKS for start in starts], time_s) for time_s in times]
    found = decode_times(str(path), times, 10**6)
    assert [frame_number(frame.image) for frame in found.frames] == expected


def test_a_cut_whose_edit_list_hides_frames_shows_what_a_player_shows(reader, clip, tmp_path):
    cut = cut_without_decoding(clip, tmp_path / "cut.mp4", 1.1)
    found = reader.read_at(cut, [0.0, 0.5])
    assert found.decoder == "pyav"
    assert [frame.start_s <= time_s for frame, time_s in zip(found.frames, (0.0, 0.5), strict=True)] == [True, True]
    numbers = [frame_number(frame.image) for frame in found.frames]
    assert numbers[1] - numbers[0] == 15


def test_what_cannot_be_read_is_told_and_the_next_clip_is_read(reader, clip, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(clip.read_bytes()[:500])
    for call in (lambda path: reader.duration(path), lambda path: reader.read_at(path, [0.1])):
        for path in (broken, tmp_path / "gone.mp4"):
            with pytest.raises(VideoError, match="unreadable_video"):
                call(path)
    assert reader.read_at(clip, [0.1]).frames[0] is not None
    with pytest.raises(ValueError, match="finite"):
        reader.read_at(clip, [float("nan")])
