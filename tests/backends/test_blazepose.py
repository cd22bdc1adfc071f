"""BlazePose with its real weights, on drawn people and, where they are, on photographs."""

from __future__ import annotations

from pathlib import Path

import mannequin
import numpy as np
import pytest
import real_pictures
from hypothesis import given
from hypothesis import strategies as st

from pipeline.backends import blazepose
from pipeline.backends.blazepose import BlazePose, _Fit, square_tiles, turn_back
from pipeline.backends.protocols import BackendContext
from pipeline.core.pose import people_filter, structure_filter

pytest.importorskip("mediapipe")


def engine(**settings) -> BlazePose:
    return BlazePose(BackendContext(settings, Path(), Path()))


@pytest.fixture(scope="module")
def pose() -> BlazePose:
    return engine()


def drawn(turn: float = 0, height: float = 240, feet=(160, 290), size=(320, 320)) -> tuple[np.ndarray, np.ndarray]:
    joints = mannequin.joints(mannequin.STANDING, height, feet, turn)
    return mannequin.draw(joints, mannequin.Clothes(), mannequin.room(*size)), joints


def error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.hypot(*(found - truth)[:, :2].T).mean())


@pytest.mark.parametrize("turn", [0, 90, 180, 270, -60])
def test_a_person_is_found_joint_by_joint_whichever_way_up(pose, turn):
    image, truth = drawn(turn)
    (person,) = pose.estimate([image])[0]
    assert error(person.keypoints, truth) < 12
    assert person.score > 0.7
    assert person.keypoints.dtype == np.float32
    assert people_filter([person], 320, 320)[0] is None
    assert structure_filter([person], 320, 320)[0] is None


def test_an_upright_person_well_inside_costs_one_attempt(monkeypatch):
    estimator = engine()
    attempts = []
    process = blazepose._process
    monkeypatch.setattr(
        blazepose, "_process", lambda graph, image: attempts.append(image.shape) or process(graph, image)
    )
    assert len(estimator.estimate([drawn()[0]])[0]) == 1
    assert len(attempts) == 1


def body(image_width: int, shift: float = 0.0, quality: float = 0.6, turn: int = 0) -> _Fit:
    joints = mannequin.joints(mannequin.STANDING, 200, (image_width / 2 + shift, 280)).astype(float)
    return _Fit(joints, quality, turn)


def scripted(answers: dict[str, _Fit | None]) -> BlazePose:
    """An engine whose attempts on the picture as it is, mirrored, and in each turn are answered as given."""
    estimator = object.__new__(BlazePose)
    estimator._tiles, estimator._turns = False, True
    picture = np.arange(320 * 320 * 3, dtype=np.uint32).astype(np.uint8).reshape(320, 320, 3)
    picture[:8, :16] = 255  # so that no turn and no mirror image equals another
    looks = {"upright": picture, "mirrored": picture[:, ::-1]}
    looks |= {f"turn {turn}": np.rot90(picture, turn) for turn in (1, 2, 3)}

    def fit(image):
        return next((answers.get(name) for name, look in looks.items() if np.array_equal(look, image)), None)

    estimator._fit = fit
    estimator._look_faintly = lambda view: None
    estimator.picture = picture
    return estimator


def mirrored(fit: _Fit) -> _Fit:
    joints = fit.joints[[0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]].copy()
    joints[:, 0] = 320 - joints[:, 0]
    return _Fit(joints, fit.quality, fit.turn)


def test_a_doubtful_body_keeps_its_score_where_the_mirrored_picture_shows_it_too():
    estimator = scripted({"upright": body(320), "mirrored": mirrored(body(320, shift=2))})
    (person,) = estimator.estimate([estimator.picture])[0]
    assert person.score == pytest.approx(0.6)


def test_a_doubtful_body_keeps_its_score_where_a_turned_picture_shows_it_too():
    turned = body(320)
    turned = _Fit(turn_back(turned.joints, 3, 320, 320), 0.65, 0)  # what the picture turned by 90 degrees shows
    estimator = scripted({"upright": body(320), "turn 1": turned})
    (person,) = estimator.estimate([estimator.picture])[0]
    assert person.score == pytest.approx(0.65)
    assert error(person.keypoints, body(320).joints) < 1e-3


def test_a_doubtful_body_that_no_second_look_confirms_keeps_half_its_score():
    for answers in ({"upright": body(320)}, {"upright": body(320), "mirrored": body(320, shift=60)}):
        estimator = scripted(answers)
        (person,) = estimator.estimate([estimator.picture])[0]
        assert person.score == pytest.approx(0.3)


def test_a_sure_body_in_a_turned_picture_needs_no_confirmation():
    estimator = scripted({"turn 2": body(320, quality=0.8)})
    (person,) = estimator.estimate([estimator.picture])[0]
    assert person.score == pytest.approx(0.8)
    assert error(person.keypoints, turn_back(body(320).joints, 2, 320, 320)) < 1e-3


def test_tiles_find_a_person_who_is_small_in_a_wide_picture(pose):
    image, truth = drawn(height=80, feet=(520, 300), size=(640, 360))
    assert all(found.score < 0.2 for found in engine(tiles=False).estimate([image])[0])
    (person,) = pose.estimate([image])[0]
    assert error(person.keypoints, truth) < 5


@pytest.mark.parametrize("side", [1, 5, 16, 17, 64])
def test_no_person_is_seen_in_noise_or_nothing_of_any_size(pose, side):
    noise = np.random.default_rng(side).integers(0, 256, (side, 2 * side, 3), dtype=np.uint8)
    plain = np.full((3 * side, side, 3), 90, dtype=np.uint8)
    assert pose.estimate([noise, plain]) == [[], []]


def test_a_gray_a_one_channel_and_a_transparent_image_are_read_like_rgb(pose):
    image, _ = drawn()
    gray = image.mean(axis=2).astype(np.uint8)
    expected = pose.estimate([np.repeat(gray[:, :, None], 3, axis=2)])[0][0].keypoints.tobytes()
    opaque = np.dstack([image, np.full(image.shape[:2], 255, np.uint8)])
    assert pose.estimate([gray])[0][0].keypoints.tobytes() == expected
    assert pose.estimate([gray[:, :, None]])[0][0].keypoints.tobytes() == expected
    assert pose.estimate([opaque])[0][0].keypoints.tobytes() == pose.estimate([image])[0][0].keypoints.tobytes()


def test_an_image_of_floats_is_an_error(pose):
    with pytest.raises(ValueError, match="uint8"):
        pose.estimate([np.zeros((64, 64, 3))])


def test_the_order_of_images_does_not_change_a_bit(pose):
    images = [drawn(turn)[0] for turn in (0, 90, 180)] + [mannequin.room(), drawn(height=100, feet=(60, 200))[0]]

    def bits(people):
        return [(person.keypoints.tobytes(), person.box, person.score) for person in people]

    forward = [bits(people) for people in pose.estimate(images)]
    backward = [bits(people) for people in engine().estimate(images[::-1])]
    assert forward == backward[::-1]
    assert [bits(pose.estimate([image])[0]) for image in images] == forward


# ------------------------------------------------------------------------------------------- beyond the edge


def cut(edge: str) -> np.ndarray:
    """A person of whom about half lies over one edge of the picture."""
    feet = {"left": (10, 300), "right": (310, 300), "bottom": (160, 470)}[edge]
    return drawn(height=260, feet=feet)[0]


@pytest.mark.parametrize("edge", ["left", "right", "bottom"])
def test_a_body_of_which_half_lies_over_the_edge_is_cut_off(pose, edge):
    (person,) = pose.estimate([cut(edge)])[0]
    assert structure_filter([person], 320, 320)[0] == "cut_off"


@pytest.mark.parametrize(("feet", "side"), [(-10, -1), (330, 1)])
def test_less_than_half_a_body_is_a_trace_of_a_person_with_joints_outside(pose, feet, side):
    (person,) = pose.estimate([drawn(height=260, feet=(feet, 300))[0]])[0]
    outside = person.keypoints[:, 2] == 0
    assert outside.sum() >= 6
    assert (person.keypoints[outside, 0] * side > min(320 * side, 0)).all()
    assert person.score < 0.2
    assert people_filter([person], 320, 320)[0] == "low_confidence"
    assert structure_filter([person], 320, 320)[0] == "cut_off"


def test_an_empty_room_has_not_even_a_trace(pose):
    assert pose.estimate([mannequin.room(), mannequin.room(480, 270, (90, 120, 160), (60, 110, 50))]) == [[], []]


def looking(beyond: dict[int, _Fit | None], gray: _Fit | None = None, first: _Fit | None = None) -> BlazePose:
    """An engine whose first looks show `first`, and whose faint looks are answered as given."""
    estimator = scripted({"upright": first})
    estimator._look_beyond = lambda image, turn: beyond.get(turn)
    estimator._look_faintly = lambda view: gray
    return estimator


def with_outside(count: int, quality: float) -> _Fit:
    """A body whose last joints, so many, lie below a picture of 320 x 320."""
    joints = body(320).joints.copy()
    joints[:, 1] = 100 + np.arange(17)
    joints[17 - count :, 1] = 330 + np.arange(count)
    return _Fit(joints, quality, 0)


def test_a_trace_has_the_joints_of_the_middle_look_and_a_fifth_of_the_mean_score():
    looks = {0: with_outside(9, 0.8), 1: with_outside(2, 0.6), 3: with_outside(5, 0.4)}
    estimator = looking(looks, gray=with_outside(0, 0.2))
    (person,) = estimator.estimate([estimator.picture])[0]
    assert person.score == pytest.approx(0.2 * 0.5)
    assert (person.keypoints[:, 1] > 320).sum() == 5
    assert (person.keypoints[:, 2] == 0).sum() == 5


def test_a_look_at_nobody_counts_against_a_trace():
    estimator = looking({0: with_outside(9, 0.7)})
    assert estimator.estimate([estimator.picture]) == [[]]
    estimator = looking({0: with_outside(9, 0.9)})
    (person,) = estimator.estimate([estimator.picture])[0]
    assert person.score == pytest.approx(0.2 * 0.9 / 4)


def test_joints_that_the_look_beyond_the_edge_has_outside_move_there_and_the_others_stay():
    first = body(320, quality=0.6)
    looks = {turn: with_outside(4, 0.5) for turn in (0, 1, 3)}
    estimator = looking(looks, first=first)
    (person,) = estimator.estimate([estimator.picture])[0]
    assert error(person.keypoints[:13], first.joints[:13]) < 1e-3
    assert error(person.keypoints[13:], looks[0].joints[13:]) < 1e-3
    assert person.score == pytest.approx(0.3)


@pytest.mark.parametrize(("shift", "asked"), [(0, False), (125, True), (-125, True)])
def test_a_sure_body_is_looked_at_again_only_where_it_comes_near_the_edge(shift, asked):
    estimator = scripted({"upright": body(320, shift, quality=0.9)})
    turns = []
    estimator._look_beyond = lambda image, turn: turns.append(turn)
    estimator.estimate([estimator.picture])
    assert bool(turns) == asked


@given(st.integers(16, 60), st.integers(16, 60), st.sampled_from([0, 1, 2, 3]), st.data())
def test_what_a_look_beyond_the_edge_finds_is_given_in_pixels_of_the_picture(width, height, turn, data):
    """Brute force: mark one pixel, let the look find the mark; there and at its mirror images lies the joint."""
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    image = np.zeros((height, width, 3), dtype=np.uint8)
    image[y, x] = 255
    estimator = object.__new__(BlazePose)
    places: list[int] = []

    def find(view):
        rows, columns = np.nonzero(view.pixels[:, :, 0])
        number = len(places)
        joints = np.full((17, 3), 0.5)
        joints[:, :2] = columns[number] + 0.5, rows[number] + 0.5
        places.append(len(rows))
        return _Fit(joints, 0.5, 0)

    estimator._look_faintly = find
    found = [estimator._look_beyond(image, turn).joints[0, :2].tolist()]
    while len(found) < places[0]:
        found.append(estimator._look_beyond(image, turn).joints[0, :2].tolist())
    assert [x + 0.5, y + 0.5] in found
    for other in found:
        outside = not (0 <= other[0] <= width and 0 <= other[1] <= height)
        assert outside or other == [x + 0.5, y + 0.5]


def test_joints_outside_the_image_are_not_seen_but_keep_their_place(pose):
    image, _ = drawn(height=300, feet=(160, 400))
    (person,) = pose.estimate([image])[0]
    outside = person.keypoints[:, 1] > 320
    assert outside.any()
    assert (person.keypoints[outside, 2] == 0).all()
    assert person.box[3] <= 320


def test_nothing_is_written_to_standard_error(capfd):
    engine().estimate([drawn()[0]])
    assert capfd.readouterr().err == ""


@given(st.integers(0, 3), st.integers(1, 40), st.integers(1, 40), st.data())
def test_turning_back_is_where_rot90_took_the_pixel_from(turn, width, height, data):
    """Brute force: mark one pixel, turn the picture, find it, turn its centre back."""
    x, y = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    image = np.zeros((height, width), dtype=int)
    image[y, x] = 1
    (row,), (column,) = np.nonzero(np.rot90(image, turn))
    joint = np.array([[column + 0.5, row + 0.5, 0.7]])
    assert turn_back(joint, turn, width, height).tolist() == [[x + 0.5, y + 0.5, 0.7]]


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_tiles_lie_in_the_image_and_cover_it_unless_it_is_very_long(width, height):
    side, corners = square_tiles(width, height)
    assert 2 <= len(corners) <= 4
    for x, y in corners:
        assert 0 <= x <= width - side
        assert 0 <= y <= height - side
    if max(width, height) <= 3 * min(width, height) and min(width, height) > 10:
        covered = np.zeros((height, width), dtype=bool)
        for x, y in corners:
            covered[y : y + side, x : x + side] = True
        assert covered.all()


@real_pictures.needs_real_pictures
@pytest.mark.parametrize("name", real_pictures.NAMES)
def test_a_person_of_a_real_photograph_is_found_near_the_annotated_joints(pose, name):
    image = real_pictures.load(name)
    (person,) = pose.estimate([image])[0]
    size = max(np.ptp(person.keypoints[:, 0]), np.ptp(person.keypoints[:, 1]))
    distances = []
    for truth in real_pictures.annotated(name):
        marked = truth[:, 2] > 0
        distances.append(error(person.keypoints[marked], truth[marked]) / size)
    assert min(distances) < 0.12
    assert people_filter([person], image.shape[1], image.shape[0])[0] is None


@real_pictures.needs_real_pictures
@pytest.mark.parametrize("name", real_pictures.NAMES)
def test_a_real_photograph_of_a_whole_person_is_not_cut_off(pose, name):
    image = real_pictures.load(name)
    assert structure_filter(pose.estimate([image])[0], image.shape[1], image.shape[0])[0] is None


@real_pictures.needs_real_pictures
@pytest.mark.parametrize("part", ["lower half", "left half", "legs"])
def test_a_part_of_the_one_person_of_a_real_photograph_is_cut_off(pose, part):
    image = real_pictures.load(real_pictures.NAMES[0])
    (person,) = real_pictures.annotated(real_pictures.NAMES[0])
    (x0, y0), (x1, y1) = person[person[:, 2] > 0, :2].min(axis=0), person[person[:, 2] > 0, :2].max(axis=0)
    middle, knees = round((y0 + y1) / 2), round(y0 + 0.65 * (y1 - y0))
    shown = {"lower half": image[middle:], "left half": image[:, : round((x0 + x1) / 2)], "legs": image[knees:]}[part]
    assert structure_filter(pose.estimate([shown])[0], shown.shape[1], shown.shape[0])[0] == "cut_off"


spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
boxes = st.tuples(spans, spans).map(lambda xy: (xy[0][0], xy[1][0], xy[0][1], xy[1][1]))


@given(boxes, boxes)
def test_the_overlap_of_two_boxes_is_shared_cells_over_all_cells(one, other):
    cells = [{(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])} for b in (one, other)]
    union = cells[0] | cells[1]
    expected = len(cells[0] & cells[1]) / len(union) if union else 0.0
    assert blazepose._overlap(one, other) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("quality", "box", "believed"),
    [(0.6, (10, 10, 50, 110), True), (0.6, (200, 10, 240, 110), False), (0.4, (10, 10, 50, 110), False)],
    ids=["where the detector has a box", "where it has one elsewhere", "too weak a fit"],
)
def test_a_doubtful_body_is_believed_only_with_a_pedestrian_in_its_place(monkeypatch, quality, box, believed):
    joints = np.zeros((17, 3))
    joints[:, 0], joints[:, 1] = np.linspace(12, 48, 17), np.linspace(12, 108, 17)
    look = blazepose._Seen(blazepose._Fit(joints, quality, 0), believed=False)
    monkeypatch.setattr(blazepose, "pedestrian_boxes", lambda image: [box])
    found = blazepose._seen_by_the_pedestrian_detector(np.zeros((120, 300, 3), np.uint8), [look])
    assert [each.believed for each in found] == ([True] if believed else [])


def test_the_pedestrian_detector_sees_nobody_in_an_empty_picture():
    assert blazepose.pedestrian_boxes(np.full((120, 160, 3), 130, np.uint8)) == []
