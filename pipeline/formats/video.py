"""Takes the picture before and the picture after the transition out of a clip, by time.

Footage from the web is hostile and decoders are not to be trusted with it: decord 0.6.0 gives wrong frames without an
error on stream-copied cuts, and can spin for ever while it holds the interpreter's lock. So decoding runs in a child
process that stays up from clip to clip and is killed at a deadline: a bad clip costs that clip.

Who decodes is settled by the container, which PyAV reads first. To PyAV goes a clip whose edit list hides, repeats or
leaves out frames (nearly every mp4 has one that does nothing), one that does not start at 0, one with another number of
frames than it declares, and one that is to be shown turned. decord does the rest, and PyAV again where decord fails
or gives other timestamps than the container.

Times are seconds on the stream's own timeline (pts x time base, as in OOPS!'s own loader), never index / rate.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from pipeline.core.errors import UserError

Decoder = Literal["decord", "pyav"]

VIDEO_REASONS = (
    "unreadable_video",
    "decode_timeout",
    "decoder_crashed",
    "nothing_before_transition",
    "nothing_after_transition",
    "frame_too_large",
)
DEFAULT_DEADLINE_S = 60.0
DEFAULT_MAX_PIXELS = 50_000_000

# A time this little before a frame's start still shows that frame: times are written down with rounding.
_TIME_SLACK_S = 1e-6
# decord keeps timestamps in float32; half a millisecond is far below any frame's length.
_DECORD_TIME_SLACK_S = 5e-4
_START_DEADLINE_S = 120.0
_CHILD_MEMORY_BYTES = 8 << 30
_MAX_HEADER_BYTES = 1 << 16
# What a clip may be. Playlists and other formats that open further files or addresses are left out.
_CONTAINERS = "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg"


class VideoError(Exception):
    """A clip gives no pair of frames. `reason` is one of VIDEO_REASONS; `detail` is for a person."""

    def __init__(self, reason: str, detail: str) -> None:
        assert reason in VIDEO_REASONS, reason
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class ShownFrame:
    """The frame a clip shows at a time.

    image: uint8 (H, W, 3) RGB, upright. wanted_s: the time asked for. start_s: when the frame appears, seconds. index:
    its place in display order, from 0.
    """

    image: np.ndarray
    wanted_s: float
    start_s: float
    index: int


@dataclass(frozen=True)
class ClipFrames:
    """The middle frames of a clip's two sides. duration_s: the end of the last frame that can be decoded."""

    before: ShownFrame
    after: ShownFrame
    duration_s: float
    decoder: Decoder
    frame_count: int


def shown_frame(starts_s: Sequence[float] | np.ndarray, time_s: float) -> int:
    """The index of the last frame that starts at or before `time_s`; -1 when none does. `starts_s` ascends, seconds."""
    return int(np.searchsorted(np.asarray(starts_s, dtype=np.float64), time_s + _TIME_SLACK_S, side="right")) - 1


def middle_times(transition_s: float, duration_s: float) -> tuple[float, float]:
    """The middle of the time before and of the time after the transition, seconds."""
    return transition_s / 2, (transition_s + duration_s) / 2


def choose_frames(starts_s: Sequence[float] | np.ndarray, duration_s: float, transition_s: float) -> tuple[int, int]:
    """The indices of the frames shown in the middle of either side of the transition.

    Raises VideoError when a side is empty, or when one frame fills both.
    """
    if transition_s <= 0:
        raise VideoError("nothing_before_transition", f"the transition is at {transition_s:g} s")
    if transition_s >= duration_s:
        raise VideoError(
            "nothing_after_transition", f"the transition is at {transition_s:g} s, the clip ends at {duration_s:.3f} s"
        )
    before, after = (shown_frame(starts_s, middle) for middle in middle_times(transition_s, duration_s))
    if before < 0:
        raise VideoError("nothing_before_transition", f"no frame is shown yet at {transition_s / 2:.3f} s")
    if before == after:
        raise VideoError("nothing_after_transition", f"frame {before} is shown on both sides of the transition")
    return before, after


@dataclass(frozen=True)
class ClipMoments:
    """What a clip shows at some times, in the order asked; None where it shows nothing. The rest: as in ClipFrames."""

    frames: tuple[ShownFrame | None, ...]
    duration_s: float
    decoder: Decoder
    frame_count: int


class FrameReader:
    """Reads clips one after the other in a child process, which is started when first needed.

    Use as a context manager. After a timeout or a crash the next clip gets a fresh child. One reader serves one clip
    at a time (threads wait for each other).
    """

    def __init__(self, deadline_s: float = DEFAULT_DEADLINE_S, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
        self.deadline_s = deadline_s
        self.max_pixels = max_pixels
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def child_pid(self) -> int | None:
        """The decoding process, None while there is none."""
        return self._child.pid if self._child else None

    def close(self) -> None:
        """Ends the child; the reader may be used again."""
        with self._lock:
            self._kill()

    def read_pair(self, path: Path, transition_s: float) -> ClipFrames:
        """The frames shown at t/2 and at (t + duration)/2 of the clip whose transition is at t = `transition_s`.

        Raises VideoError for a clip that gives no such pair, UserError when the decoders are not installed, ValueError
        for a time that is not finite.
        """
        if not math.isfinite(transition_s):
            raise ValueError(f"the transition time is {transition_s}")
        if transition_s <= 0:
            raise VideoError("nothing_before_transition", f"the transition is at {transition_s:g} s")
        answer, images = self._request("pair", path, {"transition_s": float(transition_s)})
        before, after = images
        assert before is not None
        assert after is not None
        return ClipFrames(before, after, float(answer["duration_s"]), answer["decoder"], int(answer["frame_count"]))

    def duration(self, path: Path) -> float:
        """The end of the clip's last frame in seconds, as its container says; nothing but the first frame is decoded.

        Raises as `read_pair` does.
        """
        return float(self._request("duration", path, {})[0]["duration_s"])

    def read_at(self, path: Path, times_s: Sequence[float]) -> ClipMoments:
        """The frames shown at these times, which may come in any order and twice.

        Raises as `read_pair` does; a time at which the clip shows nothing is no error.
        """
        if not all(math.isfinite(time_s) for time_s in times_s):
            raise ValueError(f"a time is not finite: {list(times_s)}")
        answer, images = self._request("times", path, {"times_s": [float(time_s) for time_s in times_s]})
        return ClipMoments(tuple(images), float(answer["duration_s"]), answer["decoder"], int(answer["frame_count"]))

    def _request(self, what: str, path: Path, asked: dict[str, Any]) -> tuple[dict[str, Any], list[ShownFrame | None]]:
        """The child's answer and its frames."""
        if not path.is_file():
            raise VideoError("unreadable_video", "no such file")
        request = {
            "what": what,
            "path": str(path.resolve()),
            "max_pixels": self.max_pixels,
            "deadline_s": self.deadline_s,
            **asked,
        }
        with self._lock:
            child = self._running_child()
            try:
                return self._ask(child, request)
            except _DeadlineError:
                self._kill()
                raise VideoError("decode_timeout", f"not decoded within {self.deadline_s:g} s") from None
            except _GoneError:
                raise VideoError("decoder_crashed", self._kill()) from None
            except BaseException as error:
                if not isinstance(error, VideoError):
                    self._kill()  # an interrupted answer must not be taken for the next clip's
                raise

    def _running_child(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._kill()
        project = str(Path(__file__).resolve().parents[2])
        search_path = os.pathsep.join(part for part in (project, os.environ.get("PYTHONPATH")) if part)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "pipeline.formats.video"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": search_path},
        )
        try:
            ready = _Answer(self._child, _START_DEADLINE_S).header()
        except (_DeadlineError, _GoneError):
            raise UserError(f"the decoding process does not start ({self._kill()}): run python -m {__name__}") from None
        if "missing" in ready:
            self._kill()
            raise UserError(f"cannot decode videos ({ready['missing']}): pip install av decord==0.6.0")
        return self._child

    def _ask(
        self, child: subprocess.Popen[bytes], request: dict[str, Any]
    ) -> tuple[dict[str, Any], list[ShownFrame | None]]:
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(request).encode("ascii") + b"\n")
        except BrokenPipeError:
            raise _GoneError from None
        answer = _Answer(child, self.deadline_s)
        header = answer.header()
        if "reason" in header:
            raise VideoError(str(header["reason"]), str(header["detail"])[:500])
        return header, [None if part is None else self._frame(answer, part) for part in header["frames"]]

    def _frame(self, answer: _Answer, part: dict[str, Any]) -> ShownFrame:
        height, width = (int(side) for side in part["size"])
        if height < 1 or width < 1 or height * width > self.max_pixels:
            raise _GoneError
        image = np.frombuffer(answer.take(height * width * 3), dtype=np.uint8).reshape(height, width, 3)
        return ShownFrame(image, float(part["wanted_s"]), float(part["start_s"]), int(part["index"]))

    def _kill(self) -> str:
        """Ends the child and says how it ended."""
        child, self._child = self._child, None
        if child is None:
            return "no process"
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=0.2)  # a child that is dying by itself says more by its own exit code
        ended_alone = child.returncode is not None
        child.kill()
        code = child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        if not ended_alone:
            return "the decoding process was ended"
        return f"the decoding process died of {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class _DeadlineError(Exception):
    """The child did not answer in time."""


class _GoneError(Exception):
    """The child is dead or talks nonsense."""


class _Answer:
    """Reads one answer of the child: a line of JSON, then raw bytes."""

    def __init__(self, child: subprocess.Popen[bytes], deadline_s: float) -> None:
        assert child.stdout is not None
        self._pipe = child.stdout.fileno()
        self._until = time.monotonic() + deadline_s
        self._buffer = bytearray()

    def header(self) -> dict[str, Any]:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise _GoneError
            self._more()
        line, self._buffer = bytes(self._buffer[:end]), self._buffer[end + 1 :]
        value = json.loads(line)
        if not isinstance(value, dict):
            raise _GoneError
        return value

    def take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = bytes(self._buffer[:size]), self._buffer[size:]
        return data

    def _more(self) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        left_ms = math.ceil((self._until - time.monotonic()) * 1000)
        if left_ms <= 0 or not poll.poll(left_ms):
            raise _DeadlineError
        data = os.read(self._pipe, 1 << 20)
        if not data:
            raise _GoneError
        self._buffer += data


# ---- What runs in the child ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Container:
    """What the container says: frame starts ascending, seconds; the end of the last; whether decord may decode it."""

    starts_s: list[float]
    end_s: float
    decord_may: bool


@dataclass
class _Held:
    index: int
    start_s: float
    frame: Any


def decode_pair(path: str, transition_s: float, max_pixels: int) -> ClipFrames:
    """`FrameReader.read_pair` without the child process: for clips that can be trusted, and for that process itself."""
    import av

    try:
        container = _read_container(path, max_pixels)
        if container.decord_may and (clip := _decode_with_decord(path, container, transition_s, max_pixels)):
            return clip
        return _decode_with_pyav(path, container.end_s, transition_s, max_pixels)
    except (av.error.FFmpegError, OSError) as error:
        # Without the path, which av puts into its messages: the same clip gives the same words anywhere.
        raise VideoError("unreadable_video", error.strerror or type(error).__name__) from error
    except MemoryError as error:
        raise VideoError("frame_too_large", "not enough memory") from error


def decode_times(path: str, times_s: Sequence[float], max_pixels: int) -> ClipMoments:
    """`FrameReader.read_at` without the child process."""
    import av

    try:
        container = _read_container(path, max_pixels)
        if container.decord_may and (clip := _times_with_decord(path, container, times_s, max_pixels)):
            return clip
        starts, end, held = _pass_over(path, times_s, max_pixels)
        frames: list[ShownFrame | None] = []
        for time_s, frame in zip(times_s, held, strict=True):
            shown = frame is not None and time_s < end
            frames.append(_upright(frame, time_s) if frame is not None and shown else None)
        return ClipMoments(tuple(frames), end, "pyav", len(starts))
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError("unreadable_video", error.strerror or type(error).__name__) from error
    except MemoryError as error:
        raise VideoError("frame_too_large", "not enough memory") from error


def container_duration(path: str, max_pixels: int) -> float:
    """`FrameReader.duration` without the child process."""
    import av

    try:
        container = _read_container(path, max_pixels)
    except (av.error.FFmpegError, OSError) as error:
        raise VideoError("unreadable_video", error.strerror or type(error).__name__) from error
    if not container.starts_s:
        raise VideoError("unreadable_video", "no frame has a time")
    return container.end_s


@contextlib.contextmanager
def _opened(path: str, max_pixels: int, **options: str) -> Iterator[tuple[Any, Any]]:
    """The container and its best video stream."""
    import av

    with av.open(path, options={"format_whitelist": _CONTAINERS, "protocol_whitelist": "file", **options}) as container:
        stream: Any = container.streams.best("video")
        if stream is None:
            raise VideoError("unreadable_video", "no video stream")
        _check_size(stream.codec_context.width, stream.codec_context.height, max_pixels)
        stream.codec_context.thread_count = 1
        yield container, stream


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise VideoError("frame_too_large", f"{width} x {height} pixels, the limit is {max_pixels}")


def _read_container(path: str, max_pixels: int) -> _Container:
    """Reads every packet's time, without decoding more than the first frame."""
    import av

    with _opened(path, max_pixels) as (container, stream):
        whole, packets = _packets(container, stream)
        time_base = stream.time_base
        declared = stream.frames
        # Matroska and others declare no count, and have no edit list that a count would be needed for.
        count_is_open = declared == 0 and "mov" not in container.format.name
        default_length = _default_length(stream)
    shown = sorted((pts, length) for pts, length, hidden in packets if pts is not None and not hidden)
    starts = [float(pts * time_base) for pts, _ in shown]
    end = _end(starts, float(shown[-1][1] * time_base), default_length) if shown else 0.0
    # An edit list shows in what it does: packets hidden, repeated (more than declared) or left out (fewer), or a start
    # other than 0. The usual one, which takes off the delay of reordered frames, does none of that: decord copes.
    all_shown = whole and len(shown) == len(packets) and (count_is_open or declared == len(packets))
    if not shown or not all_shown:
        return _Container(starts, end, False)
    if shown[0][0] != 0 or any(a == b for (a, _), (b, _) in itertools.pairwise(shown)):
        return _Container(starts, end, False)
    with _opened(path, max_pixels) as (container, stream):
        try:
            first = next(container.decode(stream))
        except (StopIteration, av.error.FFmpegError):
            return _Container(starts, end, False)
        return _Container(starts, end, _orientation(first) == (False, False, False))


def _packets(container: Any, stream: Any) -> tuple[bool, list[tuple[int | None, int, bool]]]:
    """Whether the stream could be read to its end, and (pts, duration, hidden by the edit list) of every packet."""
    import av

    packets = []
    try:
        for packet in container.demux(stream):
            if packet.size:
                packets.append((packet.pts, packet.duration or 0, packet.is_discard))
    except av.error.FFmpegError:
        return False, packets
    return True, packets


def _default_length(stream: Any) -> float:
    rate = stream.average_rate or stream.guessed_rate
    return float(1 / rate) if rate else 0.0


def _end(starts: list[float], last_length: float, default_length: float) -> float:
    """The end of the last frame. A container may leave its length open: then that of the one before, or 1 / rate."""
    if last_length <= 0:
        last_length = starts[-1] - starts[-2] if len(starts) > 1 else default_length
    return starts[-1] + last_length


def _decord_reader(path: str, container: _Container) -> Any | None:
    """A decord reader of the clip; None where it does not agree with the container. Raises whatever decord does."""
    import decord

    count = len(container.starts_s)
    reader = decord.VideoReader(path, ctx=decord.cpu(0), num_threads=1)
    if len(reader) != count:
        return None
    starts = np.asarray(reader.get_frame_timestamp(range(count)))[:, 0]
    slack = _DECORD_TIME_SLACK_S * max(1.0, container.end_s / 60)
    return None if np.abs(starts - np.asarray(container.starts_s)).max() > slack else reader


def _times_with_decord(
    path: str, container: _Container, times_s: Sequence[float], max_pixels: int
) -> ClipMoments | None:
    """The frames by decord; None when decord fails or does not agree with the container."""
    import decord

    starts, end = container.starts_s, container.end_s
    places = [shown_frame(starts, time_s) if time_s < end else -1 for time_s in times_s]
    try:
        reader = _decord_reader(path, container)
        if reader is None:
            return None
        # In the order of the clip, so that it seeks forwards alone.
        images = {place: np.ascontiguousarray(reader[place].asnumpy()) for place in sorted(set(places) - {-1})}
        reader[len(starts) - 1].asnumpy()
    except (decord.DECORDError, RuntimeError, IndexError, ValueError):
        return None
    for image in images.values():
        _check_size(image.shape[1], image.shape[0], max_pixels)
    frames = [
        None if place < 0 else ShownFrame(images[place], time_s, starts[place], place)
        for time_s, place in zip(times_s, places, strict=True)
    ]
    return ClipMoments(tuple(frames), end, "decord", len(starts))


def _decode_with_decord(path: str, container: _Container, transition_s: float, max_pixels: int) -> ClipFrames | None:
    """The pair by decord; None when decord fails or does not agree with the container."""
    import decord

    before, after = choose_frames(container.starts_s, container.end_s, transition_s)
    wanted = middle_times(transition_s, container.end_s)
    count = len(container.starts_s)
    try:
        reader = _decord_reader(path, container)
        if reader is None:
            return None
        images = [np.ascontiguousarray(reader[index].asnumpy()) for index in (before, after)]
        reader[count - 1].asnumpy()  # the clip's duration stands only when its last frame can be decoded
    except (decord.DECORDError, RuntimeError, IndexError, ValueError):
        return None
    for image in images:
        _check_size(image.shape[1], image.shape[0], max_pixels)
    frames = [
        ShownFrame(image, wanted_s, container.starts_s[index], index)
        for image, wanted_s, index in zip(images, wanted, (before, after), strict=True)
    ]
    return ClipFrames(frames[0], frames[1], container.end_s, "decord", count)


def _decode_with_pyav(path: str, expected_end_s: float, transition_s: float, max_pixels: int) -> ClipFrames:
    """The pair by PyAV, which decodes the whole clip and keeps two frames; twice when the clip ends elsewhere."""
    starts, end, held = _pass_over(path, middle_times(transition_s, expected_end_s), max_pixels)
    before, after = choose_frames(starts, end, transition_s)
    wanted = middle_times(transition_s, end)
    if [frame.index if frame else -1 for frame in held] != [before, after]:
        starts, end, held = _pass_over(path, wanted, max_pixels)
    frames = []
    for index, wanted_s, frame in zip((before, after), wanted, held, strict=True):
        assert frame is not None
        assert frame.index == index
        frames.append(_upright(frame, wanted_s))
    return ClipFrames(frames[0], frames[1], end, "pyav", len(starts))


def _upright(held: _Held, wanted_s: float) -> ShownFrame:
    image = _turn(held.frame.to_ndarray(format="rgb24"), _orientation(held.frame))
    return ShownFrame(image, wanted_s, held.start_s, held.index)


def _pass_over(path: str, wanted: Sequence[float], max_pixels: int) -> tuple[list[float], float, list[_Held | None]]:
    """Decodes the clip once: the frames' starts, the last one's end, and the frame shown at each wanted time."""
    starts: list[float] = []
    held: list[_Held | None] = [None for _ in wanted]
    last_length = 0.0
    with _opened(path, max_pixels) as (container, stream):
        default_length = _default_length(stream)
        for frame in _decodable_frames(container, stream):
            start = float(frame.pts * frame.time_base)
            if starts and start <= starts[-1]:
                continue  # no player shows a frame that is over before it begins
            _check_size(frame.width, frame.height, max_pixels)
            starts.append(start)
            last_length = float((frame.duration or 0) * frame.time_base)
            for place, wanted_s in enumerate(wanted):
                if start <= wanted_s + _TIME_SLACK_S:
                    held[place] = _Held(len(starts) - 1, start, frame)
    if not starts:
        raise VideoError("unreadable_video", "no frame can be decoded")
    return starts, _end(starts, last_length, default_length), held


def _decodable_frames(container: Any, stream: Any) -> Iterator[Any]:
    """Every frame that decodes: a broken packet is passed over, a broken container ends the clip."""
    import av

    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError):
            return
        with contextlib.suppress(av.error.FFmpegError):
            for frame in packet.decode():
                if frame.pts is not None and not frame.is_corrupt:
                    yield frame


def _orientation(frame: Any) -> tuple[bool, bool, bool]:
    """How a stored frame becomes upright: (swap axes, flip rows, flip columns), done in that order.

    From the display matrix (ISO 14496-12, 16.16 fixed point): x' = a x + c y, y' = b x + d y. A matrix that is no turn
    by a right angle leaves the frame as stored.
    """
    for side_data in frame.side_data:
        if side_data.type.name == "DISPLAYMATRIX":
            a, b, _, c, d = (int(value) for value in np.frombuffer(bytes(side_data), dtype=np.int32)[:5])
            if a == d == 0 and b and c:
                return True, b < 0, c < 0
            if b == c == 0 and a and d:
                return False, d < 0, a < 0
    return False, False, False


def _turn(image: np.ndarray, orientation: tuple[bool, bool, bool]) -> np.ndarray:
    swap_axes, flip_rows, flip_columns = orientation
    if swap_axes:
        image = image.transpose(1, 0, 2)
    if flip_rows:
        image = image[::-1]
    if flip_columns:
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _serve() -> None:
    """The child's loop: a request a line on standard input, an answer on what was standard output."""
    import resource

    # The libraries print as they like; only this module may speak on the answer's pipe.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _CHILD_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _CHILD_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # Ctrl-C reaches the whole process group: the parent decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import av
        import decord  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        _answer(answers, {"missing": str(error)[:300]})
        return
    av.logging.set_level(None)
    _answer(answers, {"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        # Should the parent be gone while a decoder spins with the interpreter's lock held, the kernel ends us.
        signal.alarm(math.ceil(request.pop("deadline_s")) + 5)
        try:
            frames, about = _served(request.pop("what"), request)
        except VideoError as error:
            _answer(answers, {"reason": error.reason, "detail": error.detail})
        except Exception as error:
            _answer(answers, {"reason": "decoder_crashed", "detail": f"{type(error).__name__}: {error}"[:300]})
        else:
            parts = [
                None
                if frame is None
                else {
                    "size": frame.image.shape[:2],
                    **{k: getattr(frame, k) for k in ("wanted_s", "start_s", "index")},
                }
                for frame in frames
            ]
            _answer(answers, {"frames": parts, **about}, *(frame.image for frame in frames if frame is not None))
        signal.alarm(0)


def _served(what: str, asked: dict[str, Any]) -> tuple[Sequence[ShownFrame | None], dict[str, Any]]:
    """The frames a request is for, and what is told of the clip beside them."""
    if what == "duration":
        return (), {"duration_s": container_duration(**asked)}
    clip = decode_pair(**asked) if what == "pair" else decode_times(**asked)
    frames = (clip.before, clip.after) if isinstance(clip, ClipFrames) else clip.frames
    return frames, {"duration_s": clip.duration_s, "decoder": clip.decoder, "frame_count": clip.frame_count}


def _answer(pipe: Any, header: dict[str, Any], *images: np.ndarray) -> None:
    pipe.write(json.dumps(header).encode("ascii") + b"\n")
    for image in images:
        pipe.write(image.data)
    pipe.flush()


if __name__ == "__main__":
    _serve()
