"""Keypoints by BlazePose, with the weights that come inside the mediapipe wheel.

BlazePose is trained on upright people and finds one person a picture. A picture is tried as it is; where that misses or
is doubtful it is tried mirrored and in the three other turns, and only where none of them is believed is it tried
smaller (for people who fill the picture) and in enlarged square tiles (for people who are small in it).

BlazePose's own visibility is near 1 for whatever it has fitted a body to, also where there are only legs. What gives
such a fit away is that the picture mirrored or turned gives another body. A small upright body may instead be confirmed
by OpenCV's pedestrian detector, which knows nothing of BlazePose. A doubtful body that no second look confirms keeps
half its score, and the people filter drops it as of low confidence.

A body that the picture's edge cuts is squeezed into the picture or not found at all. Where nobody is found, or a body
is doubtful or reaches the edge, the picture is looked at once more, continued beyond its edges by its own mirror image:
there the cut limbs go on, and BlazePose places their joints outside. Those looks ask for less than the first ones, so
that what they alone find is no more than a trace of a person, with a score that never reaches that of a body.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.backends.pixel_reading import as_rgb
from pipeline.backends.protocols import BackendContext, Person
from pipeline.core.quiet import silent_output

# COCO-17 in BlazePose's 33 points.
BLAZEPOSE_TO_COCO = (0, 2, 5, 7, 8, 11, 12, 13, 14, 15, 16, 23, 24, 25, 26, 27, 28)
MEDIAPIPE_VERSION = "0.10.14"
SMALLEST_SIDE = 16
"""Pixels; in a picture with a shorter side nobody can be made out."""

_SURE = 0.75  # quality (see _Fit) from which one attempt is believed without another
_FOUND = 0.25  # quality below which a fit is no person
# Mean joint distance, in sizes of the body, up to which two fits are the same body. Measured on real frames: people
# found twice lie 0.01 to 0.06 apart; bodies fitted to legs, water and furniture 0.06 to 2 (turned) or 0.11 to 2
# (mirrored).
_TURN_AGREEMENT = 0.055
_MIRROR_AGREEMENT = 0.07
_MIRRORED = (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)  # left and right of COCO-17 exchanged
_TILE_SIDE = 448
# A doubtful upright fit of at least this quality counts where the pedestrian detector is this sure of a box that
# overlaps it (intersection over union) by this much. On real frames its weights for people lie at 0.5 to 2.5, for
# furniture and water below 0.7 and once at 1.05; there BlazePose fits nothing of this quality.
_PEDESTRIAN_QUALITY = 0.5
_PEDESTRIAN_WEIGHT = 1.0
_PEDESTRIAN_OVERLAP = 0.4
# The looks beyond the edge. How far the picture is continued, and how near its edge a joint must lie for a body that is
# sure to be looked at again, both in shorter sides.
_CONTINUED = 0.25
_NEAR_EDGE = 0.05
_FAINT_DETECTION = 0.1
_TURNS_BEYOND = (0, 1, 3)  # upside down adds least: over the edge it is the upright body again
_TRACE = 0.2  # mean of the detector's scores over these looks below which there is nobody; noise reaches 0.17
_TRACE_SHARE = 0.2
"""A trace's score is this share of that mean: below that of any body worth keeping."""


@dataclass(frozen=True)
class _Fit:
    """One body BlazePose has fitted: joints (17, 3) in pixels of the picture; quality = detection x mean visibility;
    turn: in which quarter turn of the picture it was found."""

    joints: np.ndarray
    quality: float
    turn: int


@dataclass(frozen=True)
class _Seen:
    """The fit that was chosen, and whether it is sure or a second look confirmed it."""

    fit: _Fit
    believed: bool


@dataclass(frozen=True)
class _View:
    """A scaled part of the picture: its pixels, picture pixels a view pixel, and where its corner lies."""

    pixels: np.ndarray
    scale: float
    left: int
    top: int


class BlazePose:
    """`PoseEstimator` by BlazePose (full), one person an image, in four turns.

    Settings: `tiles` (default true) tries a smaller copy and enlarged tiles where the whole picture shows nobody;
    `turns` (default true) tries the three other turns. Images are independent of each other: order and
    batch size do not change a bit.
    """

    name = "blazepose"
    revision = f"mediapipe-{MEDIAPIPE_VERSION}/pose_landmark_full/2"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the engine comes with the first image."""
        self._tiles = bool(context.settings.get("tiles", True))
        self._turns = bool(context.settings.get("turns", True))

    @functools.cached_property
    def _graph(self) -> Any:
        return _open_graph(detection=0.5, presence=0.5)

    @functools.cached_property
    def _faint_graph(self) -> Any:
        return _open_graph(detection=_FAINT_DETECTION, presence=0.0)

    def estimate(self, images: Sequence[np.ndarray]) -> list[list[Person]]:
        """At most one person an image; keypoints float32 (17, 3). A joint outside the image has score 0 but keeps its
        coordinates. Gray and transparent images are taken as RGB (transparent: on white); raises ValueError for
        anything but uint8, RuntimeError where another mediapipe is installed, ImportError where none is.
        """
        return [self._estimate_one(as_rgb(image)) for image in images]

    def _estimate_one(self, image: np.ndarray) -> list[Person]:
        height, width = image.shape[:2]
        if min(height, width) < SMALLEST_SIDE:
            return []
        seen = self._look(image)
        if self._tiles and not (seen and seen.believed):
            # The surest of what the smaller copy and the tiles show, if it can be believed.
            looks = [found for view in _scaled_views(image) if (found := self._look_at(view))]
            believed = [found for found in looks if found.believed] or _seen_by_the_pedestrian_detector(image, looks)
            seen = max(believed, key=lambda found: found.fit.quality, default=seen)
        if seen is None:
            return self._trace(image)
        if not seen.believed or _reaches_edge(seen.fit.joints, width, height):
            beyond = _middle([self._look_beyond(image, turn) for turn in _TURNS_BEYOND], width, height)
            seen = _Seen(_cut_by(beyond, seen.fit, width, height), seen.believed)
        return [_person(seen, width, height)]

    def _trace(self, image: np.ndarray) -> list[Person]:
        """Who may be in a picture that shows no body: joints where a look beyond the edge has them."""
        height, width = image.shape[:2]
        beyond = [self._look_beyond(image, turn) for turn in _TURNS_BEYOND]
        looks = [*beyond, self._look_faintly(_on_gray(image))]
        there = [fit for fit in looks if fit is not None]
        evidence = sum(fit.quality for fit in there) / len(looks)
        if evidence < _TRACE:
            return []
        found = _middle(beyond, width, height) or max(there, key=lambda fit: fit.quality)
        trace = _Fit(found.joints, _TRACE_SHARE * evidence, found.turn)
        return [_person(_Seen(trace, believed=True), width, height)]

    def _look_beyond(self, image: np.ndarray, turn: int) -> _Fit | None:
        """What a faint look at the picture finds, continued beyond its edges by its mirror image and turned.

        Joints in pixels of the picture; quality is the detector's score.
        """
        height, width = image.shape[:2]
        margin = round(_CONTINUED * min(height, width))
        continued = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="reflect")
        fit = self._look_faintly(_View(np.rot90(continued, turn), 1.0, 0, 0))
        if fit is None:
            return None
        joints = turn_back(fit.joints, turn, width + 2 * margin, height + 2 * margin)
        return _Fit(joints - np.array([margin, margin, 0.0]), fit.quality, turn)

    def _look_faintly(self, view: _View) -> _Fit | None:
        """The body that the detector holds for the likeliest, however little it believes in it; its score as quality.

        Joints in pixels of the whole picture.
        """
        found = _process(self._faint_graph, view.pixels)
        if found is None:
            return None
        joints, detection = found
        placed = joints * np.array([view.scale, view.scale, 1.0]) + np.array([view.left, view.top, 0.0])
        return _Fit(placed, detection, turn=0)

    def _look(self, image: np.ndarray) -> _Seen | None:
        """The body in the picture by as few attempts as settle it."""
        upright = self._fit(image)
        if upright is not None and (upright.quality >= _SURE or self._mirror_agrees(image, upright)):
            return _Seen(upright, believed=True)
        fits = [] if upright is None else [upright]
        turned = [self._fit_turned(image, turn) for turn in (1, 2, 3)] if self._turns else []
        fits += [fit for fit in turned if fit is not None]
        believed = [
            fit
            for fit in fits
            if fit.quality >= _FOUND
            and any(_distance(fit, other) <= _TURN_AGREEMENT for other in fits if other is not fit)
        ]
        if believed:
            return _Seen(max(believed, key=lambda fit: fit.quality), believed=True)
        best = max(fits, key=lambda fit: fit.quality, default=None)  # the first of equals: the fewest turns
        if best is None or best.quality < _FOUND:
            return None
        sure = best.quality >= _SURE or (best is not upright and self._mirror_agrees(image, best))
        return _Seen(best, believed=sure)

    def _look_at(self, view: _View) -> _Seen | None:
        """The body in a scaled part of the picture, joints in pixels of the whole; upright and mirrored only."""
        fit = self._fit(view.pixels)
        if fit is None or fit.quality < _FOUND:
            return None
        believed = fit.quality >= _SURE or self._mirror_agrees(view.pixels, fit)
        joints = fit.joints * np.array([view.scale, view.scale, 1.0]) + np.array([view.left, view.top, 0.0])
        return _Seen(_Fit(joints, fit.quality, fit.turn), believed)

    def _mirror_agrees(self, image: np.ndarray, fit: _Fit) -> bool:
        """Whether the mirrored picture, turned as it was for this fit, shows the same body."""
        if fit.quality < _FOUND:
            return False
        mirrored = self._fit(np.rot90(image, fit.turn)[:, ::-1])
        if mirrored is None:
            return False
        joints = mirrored.joints[list(_MIRRORED)]
        joints[:, 0] = (image.shape[1] if fit.turn % 2 == 0 else image.shape[0]) - joints[:, 0]
        joints = turn_back(joints, fit.turn, image.shape[1], image.shape[0])
        return _distance(fit, _Fit(joints, mirrored.quality, fit.turn)) <= _MIRROR_AGREEMENT

    def _fit(self, image: np.ndarray) -> _Fit | None:
        """The body in the picture as it stands."""
        found = _process(self._graph, image)
        if found is None:
            return None
        joints, detection = found
        return _Fit(joints, detection * float(joints[:, 2].mean()), turn=0)

    def _fit_turned(self, image: np.ndarray, turn: int) -> _Fit | None:
        """The body in the picture turned by turn x 90 degrees counter-clockwise, its joints turned back."""
        fit = self._fit(np.rot90(image, turn))
        if fit is None:
            return None
        return _Fit(turn_back(fit.joints, turn, image.shape[1], image.shape[0]), fit.quality, turn)


def _process(graph: Any, image: np.ndarray) -> tuple[np.ndarray, float] | None:
    """Joints (17, 3) in pixels of the picture with their visibility, and the detector's score; None for nobody."""
    height, width = image.shape[:2]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SymbolDatabase.GetPrototype")  # mediapipe's own, at each call
        result = graph.process({"image": np.ascontiguousarray(image)})
    if not result.pose_landmarks or not result.pose_detection:
        return None
    points = [result.pose_landmarks.landmark[index] for index in BLAZEPOSE_TO_COCO]
    joints = np.array([[p.x * width, p.y * height, p.visibility] for p in points], dtype=np.float64)
    if not np.isfinite(joints).all():
        return None
    joints[:, 2] = np.clip(joints[:, 2], 0, 1)
    return joints, float(np.clip(result.pose_detection.score[0], 0, 1))


def _outside(joints: np.ndarray, width: float, height: float) -> np.ndarray:
    """Which joints lie outside the picture, bool (17,)."""
    x, y = joints[:, 0], joints[:, 1]
    return (x < 0) | (x > width) | (y < 0) | (y > height)


def _reaches_edge(joints: np.ndarray, width: int, height: int) -> bool:
    """Whether a joint lies outside the picture or close to its edge."""
    near = _NEAR_EDGE * min(width, height)
    return bool(_outside(joints - np.array([near, near, 0.0]), width - 2 * near, height - 2 * near).any())


def _middle(looks: Sequence[_Fit | None], width: int, height: int) -> _Fit | None:
    """Of three looks the one that has neither the most nor the fewest joints outside; a look at nobody has none."""
    counts = [0 if fit is None else int(_outside(fit.joints, width, height).sum()) for fit in looks]
    return looks[sorted(range(len(looks)), key=counts.__getitem__)[len(looks) // 2]]


def _cut_by(beyond: _Fit | None, fit: _Fit, width: int, height: int) -> _Fit:
    """The fit with those joints that the look beyond the edge has outside moved there; the others stay."""
    if beyond is None:
        return fit
    outside = _outside(beyond.joints, width, height)[:, None]
    return _Fit(np.where(outside, beyond.joints, fit.joints), fit.quality, fit.turn)


def _on_gray(image: np.ndarray) -> _View:
    """The picture in the middle of a gray one of twice its size."""
    height, width = image.shape[:2]
    canvas = np.full((2 * height, 2 * width, 3), 127, dtype=np.uint8)
    top, left = height // 2, width // 2
    canvas[top : top + height, left : left + width] = image
    return _View(canvas, 1.0, -left, -top)


def _scaled_views(image: np.ndarray) -> Iterator[_View]:
    """The picture at half size on gray, for people who fill it, and its square tiles enlarged, for small people."""
    from PIL import Image

    height, width = image.shape[:2]
    yield _on_gray(image)
    side, corners = square_tiles(width, height)
    for x, y in corners:
        tile = Image.fromarray(np.ascontiguousarray(image[y : y + side, x : x + side]))
        pixels = np.asarray(tile.resize((_TILE_SIDE, _TILE_SIDE), Image.Resampling.BICUBIC))
        yield _View(pixels, side / _TILE_SIDE, x, y)


def _seen_by_the_pedestrian_detector(image: np.ndarray, looks: Sequence[_Seen]) -> list[_Seen]:
    """The doubtful fits that OpenCV's pedestrian detector, of its own, has a box for; now believed."""
    doubtful = [found for found in looks if found.fit.quality >= _PEDESTRIAN_QUALITY]
    if not doubtful:
        return []
    boxes = pedestrian_boxes(image)
    return [
        _Seen(found.fit, believed=True)
        for found in doubtful
        if any(_overlap(_joint_box(found.fit.joints), box) >= _PEDESTRIAN_OVERLAP for box in boxes)
    ]


def pedestrian_boxes(image: np.ndarray) -> list[tuple[float, float, float, float]]:
    """The boxes (x0, y0, x1, y1 in pixels) that OpenCV's HOG people detector is sure of.

    It looks at the picture at twice its size, since its window is 128 pixels high.
    """
    import cv2

    cv2.setNumThreads(1)  # the order of its boxes hangs on the threads
    detector = cv2.HOGDescriptor()
    detector.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), dtype=np.float32))
    enlarged = cv2.resize(np.ascontiguousarray(image), None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    found, weights = detector.detectMultiScale(enlarged, winStride=(8, 8), padding=(16, 16), scale=1.05)
    return [
        (x / 2, y / 2, (x + width) / 2, (y + height) / 2)
        for (x, y, width, height), weight in zip(found, np.ravel(weights), strict=True)
        if weight >= _PEDESTRIAN_WEIGHT
    ]


def _joint_box(joints: np.ndarray) -> tuple[float, float, float, float]:
    (x0, y0), (x1, y1) = joints[:, :2].min(axis=0), joints[:, :2].max(axis=0)
    return float(x0), float(y0), float(x1), float(y1)


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def turn_back(joints: np.ndarray, turn: int, width: int, height: int) -> np.ndarray:
    """Joints found in `np.rot90(image, turn)` as joints of the image, which is width x height pixels."""
    x, y, score = joints.T
    turned = {0: (x, y), 1: (width - y, x), 2: (width - x, height - y), 3: (y, height - x)}[turn % 4]
    return np.stack([*turned, score], axis=1)


def square_tiles(width: int, height: int) -> tuple[int, list[tuple[int, int]]]:
    """Side and upper left corners of two to four overlapping square tiles that cover the picture.

    A long picture is cut along its longer side only; a nearly square one into four that overlap by half a tile.
    """
    short, long = min(width, height), max(width, height)
    if long < 1.3 * short:
        side = max(1, round(0.66 * short))
        return side, [(x, y) for y in (0, height - side) for x in (0, width - side)]
    count = min(4, max(2, int(np.ceil((long - short) / (0.6 * short))) + 1))
    offsets = [round(i * (long - short) / (count - 1)) for i in range(count)]
    return short, [(offset, 0) if width >= height else (0, offset) for offset in offsets]


def _distance(one: _Fit, other: _Fit) -> float:
    """The mean distance of the joints both believe in, in sizes of the body; infinite where they share fewer than 5."""
    shared = np.minimum(one.joints[:, 2], other.joints[:, 2]) >= 0.5
    if shared.sum() < 5:
        return float("inf")
    difference = one.joints[shared, :2] - other.joints[shared, :2]
    size = float(np.ptp(one.joints[shared, :2], axis=0).max())
    return float(np.hypot(*difference.T).mean()) / size if size > 0 else float("inf")


def _person(seen: _Seen, width: int, height: int) -> Person:
    joints = seen.fit.joints.astype(np.float32)
    joints[_outside(joints, width, height), 2] = 0.0
    visible = joints[joints[:, 2] >= 0.3]
    if len(visible) < 2:
        visible = joints
    low, high = visible[:, :2].min(axis=0), visible[:, :2].max(axis=0)
    # The joints end at the ears and ankles: a twentieth of the size for crown, feet and breadth.
    margin = 0.05 * float((high - low).max())
    x0, x1 = np.clip([low[0] - margin, high[0] + margin], 0, width)
    y0, y1 = np.clip([low[1] - margin, high[1] + margin], 0, height)
    score = seen.fit.quality if seen.believed else seen.fit.quality / 2
    return Person(keypoints=joints, box=(float(x0), float(y0), float(x1), float(y1)), score=float(score))


def _open_graph(detection: float, presence: float) -> Any:
    """mediapipe's pose graph in static mode, with the detector's score as an output (its Pose class hides it).

    detection, presence: the scores (0..1) from which the detector's box and the body fitted to it are given out.
    """
    with silent_output(2), warnings.catch_warnings():  # its start-up notes, some of them from C++
        warnings.simplefilter("ignore")
        try:
            import mediapipe
            from mediapipe.python.solution_base import SolutionBase
            from mediapipe.python.solutions import pose
        except ImportError as error:
            raise ImportError(
                f"the blazepose backend needs mediapipe {MEDIAPIPE_VERSION}: pip install '.[embedded]'"
            ) from error
        if mediapipe.__version__ != MEDIAPIPE_VERSION:
            raise RuntimeError(
                f"the blazepose backend needs mediapipe {MEDIAPIPE_VERSION} (its weights are in that wheel), "
                f"found {mediapipe.__version__}: pip install '.[embedded]'"
            )
        landmark = "poselandmarkbyroicpu__tensorstoposelandmarksandsegmentation__ThresholdingCalculator.threshold"
        graph = SolutionBase(
            binary_graph_path=pose._BINARYPB_FILE_PATH,
            side_inputs={
                "model_complexity": 1,
                "smooth_landmarks": False,
                "enable_segmentation": False,
                "smooth_segmentation": False,
                "use_prev_landmarks": False,
            },
            calculator_params={
                "posedetectioncpu__TensorsToDetectionsCalculator.min_score_thresh": detection,
                landmark: presence,
            },
            outputs=["pose_landmarks", "pose_detection"],
        )
        # The first picture prints the engine's start-up notes: let it be one of ours, while nobody listens.
        graph.process({"image": np.zeros((64, 64, 3), dtype=np.uint8)})
    return graph
