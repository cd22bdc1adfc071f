import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.errors import UserError
from pipeline.formats.ucf_crime import (
    LINE_REASONS,
    BrokenLine,
    Span,
    UcfVideo,
    frame_count,
    frame_time,
    key_frames,
    locate,
    normal_spans,
    parse_line,
    read_annotations,
    videos_in,
)


def video(name: str = "Abuse001_x264.mp4", class_name: str = "Abuse") -> UcfVideo:
    return UcfVideo(1, name, class_name, (Span("a1", "anomaly", 5, 9),))


def spans_of(line: str) -> list[tuple[int, int]]:
    made = parse_line(line, 1)
    assert isinstance(made, UcfVideo)
    return [(span.first, span.last) for span in made.anomalies]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Abuse028_x264.mp4  Abuse  165  240  -1  -1  ", ("Abuse028_x264.mp4", "Abuse", [(165, 240)], None)),
        ("A_x264.mp4 Arson\t150 420  680 1267 1800", ("A_x264.mp4", "Arson", [(150, 420), (680, 1267)], 1800)),
        ("two words.mp4  Abuse  1  1  -1  -1", ("two words.mp4", "Abuse", [(1, 1)], None)),
        ("late first.mp4 Abuse 90 99 10 20", ("late first.mp4", "Abuse", [(10, 20), (90, 99)], None)),
        ("second.mp4 Abuse -1 -1 10 20", ("second.mp4", "Abuse", [(10, 20)], None)),
        ("N_x264.mp4  Normal  -1  -1  -1  -1  \ufeff".strip("\ufeff"), ("N_x264.mp4", "Normal", [], None)),
    ],
)
def test_a_line_is_read_by_its_white_space(line, expected):
    made = parse_line(line, 7)
    assert isinstance(made, UcfVideo)
    spans = [(span.first, span.last) for span in made.anomalies]
    assert (made.name, made.class_name, spans, made.frames) == expected
    assert [span.id for span in made.anomalies] == [f"a{place + 1}" for place in range(len(spans))]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a.mp4 Abuse 1 2 -1", "torn_line"),
        ("a.mp4 Abuse one 2 -1 -1", "torn_line"),
        ("Abuse 1 2 -1 -1", "torn_line"),
        ("../a.mp4 Abuse 1 2 -1 -1", "bad_name"),
        ("/etc/a.mp4 Abuse 1 2 -1 -1", "bad_name"),
        ("a.mp4 ../Abuse 1 2 -1 -1", "bad_name"),
        ("a.mp4 Abuse 0 2 -1 -1", "bad_span"),
        ("a.mp4 Abuse 9 2 -1 -1", "bad_span"),
        ("a.mp4 Abuse 9 -1 -1 -1", "bad_span"),
        ("a.mp4 Abuse 1 99999999999999999999 -1 -1", "bad_span"),
        ("a.mp4 Normal 1 2 -1 -1", "normal_with_span"),
        ("a.mp4 Abuse -1 -1 -1 -1", "anomaly_without_span"),
    ],
)
def test_a_line_that_is_of_no_use_says_why(line, reason):
    made = parse_line(line, 3)
    assert isinstance(made, BrokenLine)
    assert (made.line, made.reason) == (3, reason)


@given(st.text(max_size=60))
def test_any_line_is_a_video_or_broken_for_a_known_reason(line):
    made = parse_line(line, 1)
    assert isinstance(made, UcfVideo) or made.reason in LINE_REASONS


def test_every_line_of_a_file_is_told_and_the_second_of_a_video_is_broken(tmp_path):
    path = tmp_path / "annotations.txt"
    path.write_bytes("\ufeffa.mp4  Abuse 1 2 -1 -1\r\n\r\nb\na.mp4 Abuse 3 4 -1 -1".encode())
    found = read_annotations(path)
    assert [(each.line, getattr(each, "reason", None)) for each in found] == [
        (1, None),
        (3, "torn_line"),
        (4, "duplicate_video"),
    ]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not UTF-8"):
        read_annotations(path)


SPANS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30)), max_size=2)


@given(SPANS, st.integers(1, 70))
def test_normal_spans_are_the_frames_that_no_anomaly_has(spans, frames):
    anomalies = [Span("a", "anomaly", first, first + more) for first, more in spans]
    rest = normal_spans(anomalies, frames)
    covered = [frame for span in rest for frame in range(span.first, span.last + 1)]
    taken = {frame for span in anomalies for frame in range(span.first, span.last + 1)}
    assert covered == [frame for frame in range(1, frames + 1) if frame not in taken]
    # As few spans as there can be: two never touch.
    assert all(second.first > first.last + 1 for first, second in itertools.pairwise(rest))
    assert [span.id for span in rest] == [f"n{place + 1}" for place in range(len(rest))]


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(1, 9))
def test_key_frames_lie_in_their_span_in_order_and_each_once(first, more, count):
    found = key_frames(Span("a1", "anomaly", first, first + more), count)
    assert found == sorted(set(found))
    assert 1 <= len(found) <= count
    assert all(first <= number <= first + more for number in found)
    if more >= 2 * count:
        assert len(found) == count


def test_three_key_frames_are_those_at_the_quarters():
    assert key_frames(Span("a1", "anomaly", 101, 200), 3) == [126, 151, 176]
    assert key_frames(Span("a1", "anomaly", 7, 7), 3) == [7]


@given(st.integers(1, 200_000))
def test_a_frames_time_lies_within_it_at_thirty_a_second(number):
    assert (number - 1) / 30 < frame_time(number) < number / 30
    assert frame_count(number / 30) == number


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_a_video_is_found_where_its_class_says_or_else_by_its_name_inside_the_folder_only(tmp_path):
    root = tmp_path / "ucf"
    usual = touch(root / "Abuse" / "a.mp4")
    touch(root / "other" / "a.mp4")
    deep = touch(root / "x" / "y" / "deep name.mp4")
    normal = touch(root / "Testing_Normal_Videos_Anomaly" / "n.mp4")
    touch(root / "p" / "twice.mp4")
    touch(root / "q" / "twice.mp4")
    classed = touch(root / "part 2" / "Abuse" / "c.mp4")
    touch(root / "part 3" / "c.mp4")
    outside = touch(tmp_path / "outside.mp4")
    (root / "Abuse" / "outside.mp4").symlink_to(outside)
    known = videos_in(root)

    def at(name: str, class_name: str = "Abuse") -> Path | str:
        return locate(root, video(name, class_name), known)

    assert at("a.mp4") == usual
    assert at("deep name.mp4") == deep
    assert at("n.mp4", "Normal") == normal
    assert at("c.mp4") == classed
    assert at("twice.mp4") == "ambiguous_video"
    assert at("outside.mp4") == at("gone.mp4") == "missing_video"
