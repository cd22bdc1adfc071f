"""One thing that happens: somebody does something at a place, and it goes wrong. Told in time, then filmed.

Time runs in seconds from the start of the action; negative offsets are before the transition. The person's axes are
those of `motions`; the stage's are those of `scenes`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from pipeline.backends.simulator.failures import FAILURES, THINGS, Mishap, World, dropped
from pipeline.backends.simulator.motions import ACTIONS, Action
from pipeline.backends.simulator.person import Looks, body
from pipeline.backends.simulator.render import Canvas, Face, Light, Limb, Shape, View, shadow
from pipeline.backends.simulator.scenes import PLACES, Scene, paint_sky
from pipeline.backends.simulator.skeleton import Frames, Pose, forward, keypoints
from pipeline.backends.simulator.textures import texture
from pipeline.core.seeds import generator_of

DISTANCE = 8.0
STANDING = 1.76
RATE = 30.0


@dataclass(frozen=True)
class Casting:
    """Everything that is settled before the camera runs. Angles in radians; `fill` is the share of the frame's height
    a standing person takes."""

    action: str
    failure: str
    scene: str
    looks: Looks
    scene_seed: str
    fall_seed: str
    heading: float
    yaw: float
    elevation: float
    roll: float
    fill: float
    light: Light
    sky_shift: float


def cast(action: str, failure: str, scene: str, looks: Looks, scene_seed: str, seed: str) -> Casting:
    """Settle heading, camera and light from a seed."""
    rng = generator_of("casting", seed)
    low, high = ACTIONS[action].turned
    heading = float(rng.uniform(low, high))
    if rng.random() < 0.5:
        heading = np.pi - heading
    azimuth, height = float(rng.uniform(-1.2, 1.2)), float(rng.uniform(0.7, 1.5))
    direction = np.array([np.sin(azimuth), height, np.cos(azimuth)])
    indoors = scene in ("gym", "living room", "kitchen")
    light = Light(
        direction / np.linalg.norm(direction),
        sun=float(rng.uniform(0.4, 0.5) if indoors else rng.uniform(0.45, 0.72)),
        sky=float(rng.uniform(0.62, 0.72) if indoors else rng.uniform(0.5, 0.64)),
        warmth=float(rng.uniform(-0.03, 0.07)),
    )
    return Casting(
        action=action,
        failure=failure,
        scene=scene,
        looks=looks,
        scene_seed=scene_seed,
        fall_seed=f"{seed}/fall",
        heading=heading,
        yaw=float(rng.uniform(-0.3, 0.3)),
        elevation=float(rng.uniform(0.1, 0.34)),
        roll=float(rng.normal(0, 0.012)),
        fill=float(rng.uniform(0.58, 0.82)),
        light=light,
        sky_shift=float(rng.random()),
    )


def fitting_scenes(action: str, failure: str) -> tuple[str, ...]:
    """The places where such a thing may happen."""
    if failure == "water":
        return ("pool side", "beach", "park")
    return ACTIONS[action].scenes or tuple(PLACES)


@dataclass(frozen=True)
class Moment:
    """What is to be seen at one instant: the pose and its joints, the shapes about the person, before or after."""

    pose: Pose
    frames: Frames
    shapes: list[Shape]
    state: str


@functools.cache
def _world() -> World:
    return World()


class Story:
    """An action that fails when it has run `turn` seconds, told at any instant before and at `rate` after.

    after: seconds told after the transition (0: the failure is only prepared, nothing falls).
    """

    def __init__(self, casting: Casting, turn: float, after: float, rate: float = RATE) -> None:
        self.casting = casting
        self.turn, self.rate = turn, rate
        self.action: Action = ACTIONS[casting.action]
        last = self.pose_before(turn)
        rng = generator_of(casting.fall_seed, casting.failure)
        self.mishap: Mishap = FAILURES[casting.failure].prepare(
            last, self.action, rng, -1.0 if np.cos(casting.heading) > 0 else 1.0
        )
        self.mishap.loose += dropped(self.action, casting.failure, forward(last), turn, rng)
        self.poses: list[Pose] = []
        self.places: list[list[tuple[np.ndarray, np.ndarray]]] = []
        if after > 0:
            step = 0.04
            speed = (last.position - self.pose_before(turn - step).position) / step
            speed = np.clip(speed, -3.0, 3.0)
            self.poses, self.places = _world().fall(last, speed, self.mishap, self.action.solids, after, rate, rng)

    def pose_before(self, seconds: float) -> Pose:
        """The pose `seconds` into the action; before its start, its first."""
        return self.action.pose(max(seconds, 0.0))

    def still(self, mishap_seen: bool = True) -> list[Shape]:
        """What never moves: the table, and, unless `mishap_seen` is False, what he trips over or falls into."""
        shapes = list(self.mishap.static) if mishap_seen else []
        if self.action.stays is not None:
            shapes += self.action.stays()
        return [_textured(shape) for shape in shapes]

    def at(self, seconds: float, mishap_seen: bool = True) -> Moment:
        """What is seen `seconds` into the action; `mishap_seen` False leaves out what comes flying or running."""
        shapes: list[Shape] = []
        since = seconds - self.turn
        if self.mishap.moving is not None and mishap_seen:
            shapes += self.mishap.moving(since)
        if since < 0 or not self.poses:
            pose = self.pose_before(seconds)
            frames = forward(pose)
            if self.action.things is not None:
                shapes += self.action.things(max(seconds, 0.0), frames)
            return Moment(pose, frames, shapes, "before")
        number = min(round(since * self.rate), len(self.poses) - 1)
        pose = self.poses[number]
        frames = forward(pose)
        for loose, (place, basis) in zip(self.mishap.loose, self.places[number], strict=True):
            shapes += THINGS[loose.thing].draw(place, basis)
        # Skis stay on and a kicked ball flies on; a thrown ball is gone by then.
        if self.action.things is not None and (self.action.drops == "skis" or self.action.name == "kicking a ball"):
            shapes += self.action.things(seconds, frames)
        return Moment(pose, frames, shapes, "after")


def _textured(shape: Shape) -> Shape:
    if isinstance(shape, Face) and isinstance(shape.texture, str):
        return shape._replace(texture=texture(shape.texture), ground=True)
    return shape


class Set:
    """The place with its camera, and where the person's axes stand in it."""

    def __init__(self, casting: Casting, pivot: np.ndarray, size: int) -> None:
        self.casting, self.size = casting, size
        self.scene: Scene = PLACES[casting.scene].furnish(generator_of("scene", casting.scene, casting.scene_seed))
        c, s = np.cos(casting.heading), np.sin(casting.heading)
        self.turn = np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])
        self.offset = -self.turn @ np.array([pivot[0], 0.0, pivot[2]])
        target = np.array([0.0, 0.85, 0.0])
        level = DISTANCE * np.cos(casting.elevation)
        eye = target + np.array(
            [level * np.sin(casting.yaw), DISTANCE * np.sin(casting.elevation), level * np.cos(casting.yaw)]
        )
        focal = casting.fill * size * DISTANCE / STANDING
        self.view = View.looking(eye, target, focal, (size, size), casting.roll)

    def zoomed(self, factor: float) -> None:
        """Make everything `factor` times as large."""
        self.view = replace(self.view, focal=self.view.focal * factor)

    def person_view(self, view: View) -> View:
        """The same camera in the person's axes."""
        return replace(view, eye=self.turn.T @ (view.eye - self.offset), basis=view.basis @ self.turn)

    @property
    def person_light(self) -> Light:
        """The same light in the person's axes."""
        light = self.casting.light
        return replace(light, direction=self.turn.T @ light.direction)

    def extent(self, frames: Frames) -> np.ndarray:
        """(x0, y0, x1, y1), pixels: what the body covers."""
        view = self.person_view(self.view)
        points = np.concatenate([keypoints(frames), _tips(frames)])
        flat = view.project(points)
        margin = 0.1 * view.focal / DISTANCE
        low, high = flat[:, :2].min(0) - margin, flat[:, :2].max(0) + margin
        return np.concatenate([low, high])


def _tips(frames: Frames) -> np.ndarray:
    tips = [frames.at("neck", (0.0, 0.26, 0.0))]
    for side in ("right", "left"):
        tips += [
            frames.at(f"{side}_elbow", (0.0, -0.37, 0.0)),
            frames.at(f"{side}_ankle", (0.14, -0.05, 0.0)),
            frames.at(f"{side}_ankle", (-0.06, -0.05, 0.0)),
        ]
    return np.array(tips)


@dataclass(frozen=True)
class Backdrop:
    """The empty place as filmed: colour float32 (H, W, 3), depth (H, W), ground mask, and where its top left pixel
    lies in the set's image."""

    colour: np.ndarray
    depth: np.ndarray
    ground: np.ndarray
    corner: tuple[int, int]


def backdrop(stage: Set, still: list[Shape], box: tuple[int, int, int, int], detail: float = 1.5) -> Backdrop:
    """Film the empty place within box (x0, y0, x1, y1) of the set's image, `detail` times as fine, then shrunk."""
    import cv2

    x0, y0, x1, y1 = box
    view = stage.view.window(x0, y0, x1 - x0, y1 - y0)
    fine = view.scaled(detail)
    canvas = Canvas(fine, stage.casting.light)
    canvas.aim(stage.person_view(fine), stage.person_light)
    canvas.draw(reversed(still))
    canvas.aim(fine, stage.casting.light)
    canvas.draw(reversed(stage.scene.shapes))
    paint_sky(canvas, stage.scene, stage.casting.sky_shift)
    size = (x1 - x0, y1 - y0)
    return Backdrop(
        cv2.resize(canvas.colour, size, interpolation=cv2.INTER_AREA),
        cv2.resize(canvas.depth, size, interpolation=cv2.INTER_NEAREST),
        cv2.resize(canvas.ground.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0,
        (x0, y0),
    )


@dataclass(frozen=True)
class Shot:
    """A finished picture uint8 (H, W, 3) and its joints float (17, 3): x and y in pixels, 1 where seen, else 0."""

    image: np.ndarray
    joints: np.ndarray


def shoot(
    stage: Set, back: Backdrop, moment: Moment, corner: tuple[int, int], person: bool = True, torn: bool = False
) -> Shot:
    """Film one moment before the backdrop; corner is the top left of the frame in the set's image."""
    import cv2

    size = stage.size
    dx, dy = corner[0] - back.corner[0], corner[1] - back.corner[1]
    part = (slice(dy, dy + size), slice(dx, dx + size))
    view = stage.person_view(stage.view.window(corner[0], corner[1], size, size))
    light = stage.person_light
    shapes = list(moment.shapes) if person else []
    if person:
        shapes += body(moment.frames, stage.casting.looks, torn)
    canvas = Canvas(view, light)
    canvas.colour, canvas.depth, canvas.ground = back.colour[part].copy(), back.depth[part], back.ground[part]
    indoors = stage.scene.indoors
    shadow(canvas, shapes, 0.0, 0.3 if indoors else 0.42, shrink=1.4 if indoors else 1.0)
    joints = np.zeros((17, 3))
    box = _box_of(shapes, view)
    if box is not None:
        x0, y0, x1, y1 = box
        fine = view.window(x0, y0, x1 - x0, y1 - y0).scaled(2)
        near = Canvas(fine, light, soft=True)
        wide = (2 * (x1 - x0), 2 * (y1 - y0))
        near.colour[:] = cv2.resize(canvas.colour[y0:y1, x0:x1], wide, interpolation=cv2.INTER_NEAREST)
        near.depth[:] = cv2.resize(canvas.depth[y0:y1, x0:x1], wide, interpolation=cv2.INTER_NEAREST)
        near.draw(shapes)
        near.finish()
        canvas.colour[y0:y1, x0:x1] = cv2.resize(near.colour, (x1 - x0, y1 - y0), interpolation=cv2.INTER_AREA)
        if person:
            joints = _joints(moment.frames, view, near, (x0, y0))
    return Shot(np.clip(canvas.colour + 0.5, 0, 255).astype(np.uint8), joints)


def _joints(frames: Frames, view: View, near: Canvas, corner: tuple[int, int]) -> np.ndarray:
    flat = view.project(keypoints(frames))
    height, width = near.depth.shape
    joints = np.zeros((17, 3))
    joints[:, :2] = flat[:, :2]
    for number, (x, y, depth) in enumerate(flat):
        column, row = int((x - corner[0]) * 2), int((y - corner[1]) * 2)
        inside = 0 <= x < view.size[0] and 0 <= y < view.size[1] and 0 <= column < width and 0 <= row < height
        joints[number, 2] = float(inside and depth - near.depth[row, column] < 0.2)
    return joints


def _box_of(shapes: list[Shape], view: View) -> tuple[int, int, int, int] | None:
    """The whole pixels that shapes may touch, within the frame; None where they touch none."""
    points, radii = [], []
    for shape in shapes:
        if isinstance(shape, Face):
            points += list(shape.corners)
            radii += [0.0] * len(shape.corners)
        elif isinstance(shape, Limb):
            points += [shape.a, shape.b]
            radii += [shape.radius_a, shape.radius_b]
        else:
            points.append(shape.centre)
            radii.append(float(np.sqrt((shape.axes**2).sum(1).max())))
    if not points:
        return None
    flat = view.project(np.array(points))
    seen = flat[:, 2] > 0.3
    if not seen.any():
        return None
    reach = view.focal * np.array(radii)[seen] * 1.1 / flat[seen, 2] + 2
    width, height = view.size
    x0 = int(np.clip((flat[seen, 0] - reach).min(), 0, width))
    x1 = int(np.clip((flat[seen, 0] + reach).max() + 1, 0, width))
    y0 = int(np.clip((flat[seen, 1] - reach).min(), 0, height))
    y1 = int(np.clip((flat[seen, 1] + reach).max() + 1, 0, height))
    return (x0, y0, x1, y1) if x1 - x0 > 1 and y1 - y0 > 1 else None
