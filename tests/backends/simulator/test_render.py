import numpy as np
import pytest

pytest.importorskip("cv2")

from pipeline.backends.simulator.render import Canvas, Face, Light, Limb, View, ball, box, shadow

LIGHT = Light(np.array([0.0, 0.8, 0.6]))
VIEW = View.looking(np.array([0.0, 1.0, 5.0]), np.array([0.0, 1.0, 0.0]), 200.0, (120, 100))


def drawn(*shapes) -> Canvas:
    canvas = Canvas(VIEW, LIGHT)
    canvas.draw(shapes)
    return canvas


def test_a_ball_covers_the_disc_it_projects_to_and_lies_at_its_depth():
    canvas = drawn(ball(np.array([0.0, 1.0, 0.0]), 0.5, (200, 0, 0)))
    covered = canvas.depth < 100
    assert covered.sum() == pytest.approx(np.pi * (200 * 0.5 / np.sqrt(25 - 0.25)) ** 2, rel=0.02)
    assert canvas.depth[50, 60] == pytest.approx(4.5, abs=0.01)


def test_a_straight_limb_is_as_wide_as_it_is_thick():
    canvas = drawn(Limb(np.array([0.0, 0.5, 0.0]), np.array([0.0, 1.5, 0.0]), 0.1, 0.1, (0, 200, 0)))
    assert (canvas.depth[50] < 100).sum() == pytest.approx(2 * 0.1 * 200 / 5, abs=1.5)


def test_what_is_nearer_hides_what_is_farther_in_any_order():
    near, far = ball(np.array([0.0, 1.0, 1.0]), 0.3, (255, 0, 0)), ball(np.array([0.0, 1.0, -1.0]), 0.3, (0, 0, 255))
    for shapes in ((near, far), (far, near)):
        colour = drawn(*shapes).colour[50, 60]
        assert colour[0] > 50
        assert colour[2] == 0


def test_ground_that_reaches_behind_the_camera_is_drawn_up_to_the_horizon():
    corners = np.array([[-50.0, 0, 50], [50, 0, 50], [50, 0, -50], [-50, 0, -50]])
    canvas = drawn(Face(corners, (90, 150, 60), ground=True))
    assert canvas.ground[60:].all()
    assert not canvas.ground[:49].any()
    assert canvas.depth[99, 60] == pytest.approx(200 / 49.5, rel=0.02)


def test_a_texture_leaves_the_mean_of_a_face_as_it_is():
    corners = np.array([[-1.0, 0, 0], [1, 0, 0], [1, 2, 0], [-1, 2, 0]])
    grain = np.ones((64, 64), np.float32)
    grain[:32] = 0.8
    grain[32:] = 1.2
    plain, grained = drawn(Face(corners, (100, 100, 100))), drawn(Face(corners, (100, 100, 100), grain, 1.0))
    assert grained.colour.mean() == pytest.approx(plain.colour.mean(), rel=0.03)


def test_a_shadow_falls_on_the_ground_only():
    ground = Face(np.array([[-9.0, 0, 9], [9, 0, 9], [9, 0, -9], [-9, 0, -9]]), (100, 100, 100), ground=True)
    block = box(np.array([0.0, 0.5, 0.0]), np.array([0.3, 0.5, 0.3]), (200, 200, 200))
    canvas = drawn(ground, *block)
    before = canvas.colour.copy()
    shadow(canvas, block, 0.0, 0.5)
    darker = (canvas.colour < before - 1).any(-1)
    assert darker.any()
    assert canvas.ground[darker].all()


def test_a_window_of_a_view_shows_the_same_pixels():
    shape = ball(np.array([0.2, 1.1, 0.0]), 0.4, (10, 200, 90))
    whole = drawn(shape)
    part = Canvas(VIEW.window(30, 20, 60, 50), LIGHT)
    part.draw([shape])
    assert np.allclose(part.colour, whole.colour[20:70, 30:90], atol=0.01)
