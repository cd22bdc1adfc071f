import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.formats.oops import official_time, read_oops
from pipeline.formats.video import (
    FrameReader,
    VideoError,
    _read_container,
    choose_frames,
    decode_pair,
    middle_times,
    shown_frame,
)

CASES = Path(__file__).parents[1] / "cases"
REAL = Path(__file__).parents[3] / "shared" / "real_oops"
EXPECTED = {case["id"]: case for case in json.loads((CASES / "video_expected.json").read_text("utf-8"))}
OOPS_EXPECTED = json.loads((CASES / "oops_expected.json").read_text("utf-8"))
TICKS = 600  # a second, in the clips made here


def frame_number(image: np.ndarray) -> int:
    """The number written as 8 bars, most significant left, bright for 1, in the upper part of the upright frame."""
    height, width = image.shape[:2]
    band = image[height // 10 : 4 * height // 10].mean(axis=(0, 2))
    middles = [band[int((place + 0.25) * width / 8) : int((place + 0.75) * width / 8)].mean() for place in range(8)]
    return int("".join("1" if bright > 125 else "0" for bright in middles), 2)


def is_upright(image: np.ndarray) -> bool:
    """Whether the lower left is red and the lower right blue, as drawn; not so when turned or mirrored."""
    height, width = image.shape[:2]
    low = slice(6 * height // 10, 9 * height // 10)
    left = image[low, width // 10 : 4 * width // 10].mean(axis=(0, 1))
    right = image[low, 6 * width // 10 : 9 * width // 10].mean(axis=(0, 1))
    return left[0] > max(left[1], left[2]) + 60 and right[2] > max(right[0], right[1]) + 60


def draw(number: int, width: int = 160, height: int = 96) -> np.ndarray:
    """A frame that the two readers above read: uint8 (height, width, 3)."""
    image = np.full((height, width, 3), 60, np.uint8)
    for place in range(8):
        if number >> (7 - place) & 1:
            image[: 4 * height // 10, place * width // 8 : (place + 1) * width // 8] = 240
        else:
            image[: 4 * height // 10, place * width // 8 : (place + 1) * width // 8] = 10
    image[height // 2 :, : width // 2] = (220, 20, 20)
    image[height // 2 :, width // 2 :] = (20, 20, 220)
    return image


def make_clip(path: Path, starts: Sequence[int], **options: str) -> Path:
    """A clip whose frame i starts at starts[i] / TICKS seconds and carries the number i."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": "12", "bf": "0", **options})
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, TICKS)
        for number, start in enumerate(starts):
            frame = av.VideoFrame.from_ndarray(draw(number), "rgb24")
            frame.pts, frame.time_base = start, Fraction(1, TICKS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def cut_without_decoding(source: Path, target: Path, start_s: float) -> Path:
    """What cutting with stream copy does: starts at the keyframe before; an edit list hides what comes too early."""
    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        old_stream = old.streams.video[0]
        new_stream = new.add_stream_from_template(old_stream)
        packets = [packet for packet in old.demux(old_stream) if packet.size]
        keys = [p.pts for p in packets if p.is_keyframe and p.pts * p.time_base <= start_s]
        shift = int(start_s / old_stream.time_base)
        for packet in packets:
            if packet.pts >= keys[-1]:
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, new_stream
                new.mux(packet)
    return target


def with_edit_list(path: Path, entries: Sequence[tuple[int, int]]) -> Path:
    """Gives the clip's only track this edit list: (length in ms, start in the media's ticks or -1 for nothing)."""
    data = path.read_bytes()
    place = data.index(b"elst") - 4
    (old_size,) = struct.unpack_from(">I", data, place)
    body = b"".join(struct.pack(">IiI", length, start, 1 << 16) for length, start in entries)
    box = struct.pack(">I4sII", 16 + len(body), b"elst", 0, len(entries)) + body
    changed = bytearray(data[:place] + box + data[place + old_size :])
    assert data.index(b"mdat") < data.index(b"moov")  # so that no offset of a frame moves
    for parent in (b"moov", b"trak", b"edts"):
        at = changed.index(parent) - 4
        struct.pack_into(">I", changed, at, struct.unpack_from(">I", changed, at)[0] + len(box) - old_size)
    path.write_bytes(changed)
    return path


def turn_by_header(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Writes a display matrix (a, b, c, d) into the track's header."""
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 4 + 4 + 20 + 8 + 8  # version 0: flags, times and ids, reserved, layer .. volume
    a, b, c, d = (value << 16 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def attempt(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call gives, or the VideoError it raises."""
    try:
        return call(*arguments)
    except VideoError as error:
        return error


def shown_by_search(starts: Sequence[float], time_s: float) -> int:
    index = -1
    for number, start in enumerate(starts):
        if start <= time_s + 1e-6:
            index = number
    return index


@pytest.fixture(scope="module")
def reader() -> Iterator[FrameReader]:
    with FrameReader(deadline_s=60) as frame_reader:
        yield frame_reader


@pytest.mark.parametrize(("case", "decoder"), [("V01", "decord"), ("V06", "pyav")])
def test_a_whole_clip_gives_the_frames_its_case_names_upright(reader, case, decoder):
    expected = EXPECTED[case]["expected"]
    clip = reader.read_pair(CASES / "video" / EXPECTED[case]["file"], 2.0)
    for shown, number in ((clip.before, expected["before"]), (clip.after, expected["after"])):
        assert shown.index == frame_number(shown.image) == number
        assert is_upright(shown.image)
        assert shown.start_s == pytest.approx(number / 30)
        assert shown.image.dtype == np.uint8
        if "size" in expected:
            assert [shown.image.shape[1], shown.image.shape[0]] == expected["size"]
    assert (clip.before.wanted_s, clip.after.wanted_s) == (1.0, 3.0)
    assert (clip.duration_s, clip.frame_count, clip.decoder) == (4.0, 120, decoder)


@pytest.mark.parametrize("case", ["V02", "V03", "V16"])
def test_a_broken_file_is_told_without_the_place_it_lies_in(reader, case):
    with pytest.raises(VideoError) as error:
        reader.read_pair(CASES / "video" / EXPECTED[case]["file"], 2.0)
    assert error.value.reason == "unreadable_video"
    assert error.value.detail
    assert str(CASES) not in str(error.value)


def test_a_clip_cut_off_in_its_data_ends_where_its_frames_end(reader):
    path = CASES / "video" / EXPECTED["V15"]["file"]
    with pytest.raises(VideoError) as error:
        reader.read_pair(path, 2.0)
    assert error.value.reason == "nothing_after_transition"
    assert not _read_container(str(path), 10**6).decord_may
    clip = reader.read_pair(path, 1.0)
    assert (clip.decoder, clip.frame_count, clip.duration_s) == ("pyav", 60, 2.0)
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (15, 45)


def test_a_clip_of_one_frame_has_no_two_sides(reader):
    with pytest.raises(VideoError) as error:
        reader.read_pair(CASES / "video" / EXPECTED["V17"]["file"], 0.01)
    assert error.value.reason == "nothing_after_transition"


def test_a_clip_that_never_changes_still_gives_its_two_frames(reader):
    clip = reader.read_pair(CASES / "video" / EXPECTED["V19"]["file"], 2.0)
    assert np.abs(clip.before.image.astype(int) - clip.after.image).max() <= 2


@pytest.mark.parametrize("case", [c for c in OOPS_EXPECTED if "before_frame" in c["expected"]], ids=lambda c: c["id"])
def test_each_labelled_clip_of_the_small_folder_gives_the_frames_its_case_names(reader, case):
    expected = case["expected"]
    folder = read_oops(CASES / "oops_mini", ["train", "val"])
    (video,) = [v for split in folder.splits for v in folder.videos(split) if v.name == case["record"]]
    if expected["before_frame"] is None:
        with pytest.raises(VideoError) as error:
            reader.read_pair(video.path, official_time(video.label))
        assert error.value.reason == "nothing_before_transition"
        return
    clip = reader.read_pair(video.path, official_time(video.label))
    assert [clip.before.wanted_s, clip.after.wanted_s] == [expected["before_mid_s"], expected["after_mid_s"]]
    assert [frame_number(frame.image) for frame in (clip.before, clip.after)] == [
        expected["before_frame"],
        expected["after_frame"],
    ]


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=40, unique=True), st.integers(-10, 2100))
def test_the_shown_frame_is_the_last_that_has_started(ticks, time):
    starts = [tick / 100 for tick in sorted(ticks)]
    assert shown_frame(starts, time / 100) == shown_by_search(starts, time / 100)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30, unique=True), st.floats(0.01, 5), st.floats(-1, 30))
def test_the_two_frames_are_distinct_in_order_and_shown_in_the_middles_or_a_side_is_named(starts, last, transition):
    starts = sorted(starts)
    duration = starts[-1] + last
    chosen = attempt(choose_frames, starts, duration, transition)
    if isinstance(chosen, VideoError):
        assert chosen.reason in ("nothing_before_transition", "nothing_after_transition")
        middles = [shown_by_search(starts, time) for time in middle_times(transition, duration)]
        assert transition <= 0 or transition >= duration or middles[0] == -1 or middles[0] == middles[1]
        return
    before, after = chosen
    assert 0 <= before < after < len(starts)
    assert before == shown_by_search(starts, transition / 2)
    assert after == shown_by_search(starts, (transition + duration) / 2)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.integers(5, 300), min_size=3, max_size=40),
    share=st.floats(0.05, 0.95),
    reordered=st.booleans(),
    matroska=st.booleans(),
)
def test_a_clip_of_uneven_frames_gives_those_a_search_over_its_starts_finds(
    reader, tmp_path, gaps, share, reordered, matroska
):
    starts = [0, *np.cumsum(gaps)]
    path = tmp_path / ("clip.mkv" if matroska else "clip.mp4")
    make_clip(path, [int(start) for start in starts], bf="3" if reordered else "0")
    with av.open(str(path)) as container:
        shown = [(float(f.pts * f.time_base), frame_number(f.to_ndarray(format="rgb24"))) for f in container.decode()]
    starts_s = [start for start, _ in shown]
    transition = share * starts_s[-1]
    clip = attempt(reader.read_pair, path, transition)
    if isinstance(clip, VideoError):
        assert clip.reason == "nothing_after_transition"
        middles = (transition / 2, (transition + starts_s[-1]) / 2)
        assert len({shown_by_search(starts_s, middle) for middle in middles}) == 1
        return
    assert clip.frame_count == len(starts)
    assert clip.duration_s > starts_s[-1]
    for frame, wanted in ((clip.before, transition / 2), (clip.after, (transition + clip.duration_s) / 2)):
        assert frame.wanted_s == pytest.approx(wanted)
        assert frame.index == shown_by_search(starts_s, wanted) == frame_number(frame.image)
        assert frame.start_s == starts_s[frame.index]


def test_a_clip_with_reordered_frames_and_the_usual_edit_list_is_decorded(reader, tmp_path):
    clip = reader.read_pair(make_clip(tmp_path / "clip.mp4", range(0, 1200, 20), bf="3"), 1.0)
    assert clip.decoder == "decord"
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (15, 45)


def test_a_cut_whose_edit_list_hides_frames_gives_the_frames_a_player_shows(reader, tmp_path):
    source = make_clip(tmp_path / "source.mp4", range(0, 1800, 20), bf="2")
    clip = reader.read_pair(cut_without_decoding(source, tmp_path / "cut.mp4", 0.7), 1.0)
    assert clip.decoder == "pyav"
    assert clip.duration_s == pytest.approx(2.3, abs=0.05)
    # 0.5 s and 1.65 s into the cut are 1.2 s and 2.35 s of the source.
    assert abs(frame_number(clip.before.image) - 36) <= 1
    assert abs(frame_number(clip.after.image) - 70) <= 1


def test_a_clip_with_a_pause_in_its_edit_list_is_shown_as_edited(reader, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", range(0, 1200, 20))
    with av.open(str(path)) as container:
        ticks = int(1 / container.streams.video[0].time_base)
    # Frames 0..11, half a second of nothing, then the rest from the keyframe that follows.
    clip = reader.read_pair(with_edit_list(path, [(400, 0), (500, -1), (1600, ticks * 2 // 5)]), 2.2)
    assert not _read_container(str(path), 10**6).decord_may
    assert clip.decoder == "pyav"
    assert clip.duration_s == pytest.approx(2.5, abs=0.04)
    assert frame_number(clip.before.image) == pytest.approx(15 + 3, abs=1)
    assert frame_number(clip.after.image) == pytest.approx(15 + 40, abs=1)


def test_a_clip_whose_edit_list_plays_the_end_first_is_shown_as_edited(reader, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", range(0, 1200, 20))
    with av.open(str(path)) as container:
        ticks = int(1 / container.streams.video[0].time_base)
    clip = reader.read_pair(with_edit_list(path, [(800, ticks * 6 // 5), (1200, 0)]), 1.0)
    assert (clip.decoder, clip.frame_count, clip.duration_s) == ("pyav", 60, 2.0)
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (36 + 15, 45 - 24)


def test_a_clip_whose_edit_list_ends_early_ends_there(reader, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", range(0, 1200, 20))
    clip = reader.read_pair(with_edit_list(path, [(1000, 0)]), 0.5)
    assert not _read_container(str(path), 10**6).decord_may
    assert clip.decoder == "pyav"
    assert clip.duration_s == pytest.approx(1.0, abs=0.04)
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (7, 22)


def test_a_clip_whose_last_frames_are_damaged_ends_at_the_last_that_decodes(reader, tmp_path):
    path = make_clip(tmp_path / "clip.mp4", range(0, 1200, 20))
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    for packet in packets[45:]:
        data[packet.pos : packet.pos + packet.size] = bytes(packet.size)
    path.write_bytes(data)
    # Counted to the declared 2 s, both frames lie in the whole part; only the end is known to be wrong.
    clip = reader.read_pair(path, 0.6)
    assert (clip.decoder, clip.frame_count) == ("pyav", 45)
    assert clip.duration_s == pytest.approx(1.5)
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (9, 31)


def test_a_clip_that_starts_late_is_read_on_its_own_timeline(reader, tmp_path):
    clip = reader.read_pair(make_clip(tmp_path / "late.mp4", range(300, 1500, 20)), 1.5)
    assert not _read_container(str(tmp_path / "late.mp4"), 10**6).decord_may
    assert clip.decoder == "pyav"
    assert clip.duration_s == pytest.approx(2.5)
    assert (frame_number(clip.before.image), frame_number(clip.after.image)) == (7, 45)
    with pytest.raises(VideoError) as error:
        reader.read_pair(tmp_path / "late.mp4", 0.9)
    assert error.value.reason == "nothing_before_transition"


@pytest.mark.parametrize(
    ("matrix", "stored"),
    [
        ((1, 0, 0, 1), lambda upright: upright),
        ((0, 1, -1, 0), lambda upright: np.rot90(upright, 1)),
        ((-1, 0, 0, -1), lambda upright: np.rot90(upright, 2)),
        ((0, -1, 1, 0), lambda upright: np.rot90(upright, 3)),
        ((-1, 0, 0, 1), lambda upright: upright[:, ::-1]),
        ((1, 0, 0, -1), lambda upright: upright[::-1]),
        ((0, 1, 1, 0), lambda upright: upright.transpose(1, 0, 2)),
    ],
    ids=["none", "90", "180", "270", "mirrored", "upside down mirrored", "transposed"],
)
def test_a_turned_clip_is_turned_upright_exactly_once(reader, tmp_path, matrix, stored):
    path = tmp_path / "turned.mp4"
    first = stored(draw(0))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.height, stream.width, stream.pix_fmt = first.shape[0], first.shape[1], "yuv420p"
        for number in range(30):
            image = np.ascontiguousarray(stored(draw(number)))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode())
    clip = reader.read_pair(turn_by_header(path, matrix), 0.5)
    for frame in (clip.before, clip.after):
        assert frame.image.shape == (96, 160, 3)
        assert is_upright(frame.image)
        assert frame_number(frame.image) == frame.index
    assert clip.decoder == ("decord" if matrix == (1, 0, 0, 1) else "pyav")


def test_a_flipped_bit_costs_at_most_its_clip_and_the_next_is_read(reader, tmp_path):
    whole = (CASES / "video/cfr30_4s.mp4").read_bytes()
    outcomes = set()
    for seed in range(12):
        data = bytearray(whole)
        for place in np.random.default_rng(seed).integers(0, len(data), 6):
            data[place] ^= 0x55
        (tmp_path / "bits.mp4").write_bytes(data)
        outcome = attempt(reader.read_pair, tmp_path / "bits.mp4", 2.0)
        outcomes.add(outcome.reason if isinstance(outcome, VideoError) else "read")
    assert outcomes <= {"read", "unreadable_video", "nothing_after_transition"}
    assert "unreadable_video" in outcomes
    assert reader.read_pair(CASES / "video/cfr30_4s.mp4", 2.0).before.index == 30


def test_a_playlist_named_as_a_clip_opens_no_other_file(reader, tmp_path):
    segment = make_clip(tmp_path / "segment.ts", range(0, 1200, 20))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{segment.name}\n#EXT-X-ENDLIST\n"
    (tmp_path / "clip.mp4").write_text(playlist)
    (tmp_path / "concat.mp4").write_text(f"ffconcat version 1.0\nfile {segment.name}\n")
    for name in ("clip.mp4", "concat.mp4"):
        with pytest.raises(VideoError) as error:
            reader.read_pair(tmp_path / name, 1.0)
        assert error.value.reason == "unreadable_video"


def test_a_sound_without_pictures_is_unreadable(reader, tmp_path):
    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoError, match="no video stream"):
        reader.read_pair(tmp_path / "sound.mp4", 1.0)


def test_a_frame_over_the_limit_is_refused():
    with FrameReader(max_pixels=160 * 96 - 1) as small, pytest.raises(VideoError) as error:
        small.read_pair(CASES / "video/cfr30_4s.mp4", 2.0)
    assert error.value.reason == "frame_too_large"


def test_a_missing_file_and_a_time_that_is_no_number_are_refused(reader, tmp_path):
    with pytest.raises(VideoError, match="no such file"):
        reader.read_pair(tmp_path / "none.mp4", 2.0)
    with pytest.raises(ValueError, match="nan"):
        reader.read_pair(CASES / "video/cfr30_4s.mp4", float("nan"))


def test_a_decoder_that_hangs_costs_one_clip_and_is_gone_afterwards():
    with FrameReader(deadline_s=0.5) as hanging:
        path = CASES / "video/cfr30_4s.mp4"
        hanging.read_pair(path, 2.0)
        pid = hanging.child_pid
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(VideoError) as error:
            hanging.read_pair(path, 2.0)
        assert error.value.reason == "decode_timeout"
        assert 0.4 < time.monotonic() - begin < 5
        assert not Path(f"/proc/{pid}").exists()
        hanging.deadline_s = 60
        assert hanging.read_pair(path, 2.0).after.index == 90
        assert hanging.child_pid != pid


def test_a_decoder_that_crashes_costs_one_clip_and_the_reason_names_the_signal():
    with FrameReader() as crashing:
        path = CASES / "video/cfr30_4s.mp4"
        crashing.read_pair(path, 2.0)
        os.kill(crashing.child_pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (crashing.child_pid, signal.SIGKILL)).start()
        with pytest.raises(VideoError) as error:
            crashing.read_pair(path, 2.0)
        assert error.value.reason == "decoder_crashed"
        assert "SIGKILL" in error.value.detail
        assert crashing.read_pair(path, 2.0).after.index == 90


def test_a_child_that_dies_between_two_clips_costs_nothing():
    with FrameReader() as dying:
        path = CASES / "video/cfr30_4s.mp4"
        dying.read_pair(path, 2.0)
        os.kill(dying.child_pid, signal.SIGKILL)
        time.sleep(0.2)
        assert dying.read_pair(path, 2.0).after.index == 90
        pid = dying.child_pid
    assert not Path(f"/proc/{pid}").exists()


def test_one_child_serves_clip_after_clip_from_many_threads(reader):
    path = CASES / "video/cfr30_4s.mp4"
    reader.read_pair(path, 2.0)
    pid, seen = reader.child_pid, []
    threads = [
        threading.Thread(target=lambda t=t: seen.append((t, reader.read_pair(path, t).before.index)))
        for t in (0.4, 0.8, 1.2, 1.6, 2.4, 2.8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(0.4, 6), (0.8, 12), (1.2, 18), (1.6, 24), (2.4, 36), (2.8, 42)]
    assert reader.child_pid == pid


def test_the_child_and_a_plain_call_give_the_same_bytes_again_and_again(reader):
    path = CASES / "video/cfr30_4s.mp4"
    clips = [reader.read_pair(path, 2.0), reader.read_pair(path, 2.0), decode_pair(str(path), 2.0, 10**6)]
    assert len({clip.before.image.tobytes() + clip.after.image.tobytes() for clip in clips}) == 1


def test_the_module_loads_no_decoder():
    code = (
        "import sys, pipeline.formats.video, pipeline.formats.oops, pipeline.core.images;"
        "sys.exit(bool({'av', 'decord', 'torch', 'cv2'} & set(sys.modules)))"
    )
    project = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=project, check=False).returncode == 0


@pytest.mark.skipif(not REAL.is_dir(), reason="NOT CHECKED: no real clips beside this checkout (../shared/real_oops)")
def test_the_real_clips_give_their_middle_frames(reader):
    for video in read_oops(REAL, ["val"]).videos("val"):
        clip = reader.read_pair(video.path, official_time(video.label))
        assert clip.decoder == "decord"
        assert clip.duration_s == pytest.approx(video.label.len_s, abs=0.05)
        assert clip.before.image.shape == clip.after.image.shape
        assert clip.before.start_s <= clip.before.wanted_s < official_time(video.label) < clip.after.wanted_s
        assert np.abs(clip.before.image.astype(int) - clip.after.image).mean() > 3
