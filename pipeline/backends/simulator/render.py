"""A small renderer on numpy arrays with a depth buffer: tapered limbs, ellipsoids and textured flat faces.

Every shape is drawn exactly where it falls on the image (weak perspective within a limb), shaded by one sun and the
sky, tested against the depth buffer. Twice too large and then halved, edges come out smooth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

FAR = np.float32(1e4)
NEAR = 0.2

Colour = tuple[float, float, float]


class Limb(NamedTuple):
    """A tapered capsule from point a to point b (metres), its radii there, its colour (RGB, 0..255)."""

    a: np.ndarray
    b: np.ndarray
    radius_a: float
    radius_b: float
    colour: Colour


class Blob(NamedTuple):
    """An ellipsoid: centre (metres), axes (3, 3) whose columns are its half axes, colour (RGB, 0..255)."""

    centre: np.ndarray
    axes: np.ndarray
    colour: Colour


class Face(NamedTuple):
    """A flat convex polygon: corners (N, 3) in metres, colour, and perhaps a grey texture multiplied onto it.

    The texture, square and a power of two wide, of values about 1, repeats every `repeat` metres. `ground` marks what
    shadows fall on. `lit` is False for what shines by itself, such as a window.
    """

    corners: np.ndarray
    colour: Colour
    texture: np.ndarray | None = None
    repeat: float = 1.0
    ground: bool = False
    lit: bool = True


Shape = Limb | Blob | Face


@dataclass(frozen=True)
class Light:
    """Direction towards the sun (unit vector, world), and how strong the sun and the sky are."""

    direction: np.ndarray
    sun: float = 0.62
    sky: float = 0.5
    warmth: float = 0.0

    @property
    def tint(self) -> np.ndarray:
        """The colour factor (3,) of the light: above 0 `warmth` reddens, below it turns blue."""
        return np.array([1 + self.warmth, 1.0, 1 - self.warmth], np.float32)


@dataclass(frozen=True)
class View:
    """A camera: rows of `basis` are its right, up and forward directions; `focal` and the centre are in pixels."""

    eye: np.ndarray
    basis: np.ndarray
    focal: float
    centre: tuple[float, float]
    size: tuple[int, int]

    @staticmethod
    def looking(eye: np.ndarray, target: np.ndarray, focal: float, size: tuple[int, int], roll: float = 0.0) -> View:
        """A camera at `eye` with `target` in the middle of a (width, height) image."""
        forward = (target - eye) / np.linalg.norm(target - eye)
        right = np.cross(forward, np.array([0.0, 1.0, 0.0]))
        right /= np.linalg.norm(right)
        up = np.cross(right, forward)
        right, up = np.cos(roll) * right + np.sin(roll) * up, np.cos(roll) * up - np.sin(roll) * right
        return View(eye, np.stack([right, up, forward]), focal, (size[0] / 2, size[1] / 2), size)

    def scaled(self, factor: float) -> View:
        """The same picture with `factor` times as many pixels a side."""
        width, height = (round(side * factor) for side in self.size)
        return replace(
            self,
            focal=self.focal * factor,
            centre=(self.centre[0] * factor, self.centre[1] * factor),
            size=(width, height),
        )

    def window(self, x: int, y: int, width: int, height: int) -> View:
        """The part of the picture whose top left pixel is (x, y)."""
        return replace(self, centre=(self.centre[0] - x, self.centre[1] - y), size=(width, height))

    def to_camera(self, points: np.ndarray) -> np.ndarray:
        """Points (..., 3) of the world as right, up, forward of the camera, metres."""
        return (points - self.eye) @ self.basis.T

    def project(self, points: np.ndarray) -> np.ndarray:
        """Points (..., 3) of the world as x, y in pixels and depth in metres."""
        camera = self.to_camera(points)
        depth = np.maximum(camera[..., 2], 1e-3)
        return np.stack(
            [
                self.centre[0] + self.focal * camera[..., 0] / depth,
                self.centre[1] - self.focal * camera[..., 1] / depth,
                camera[..., 2],
            ],
            -1,
        )


class Canvas:
    """A picture being drawn: colour float32 (H, W, 3), depth float32 (H, W) in metres, ground mask bool (H, W).

    A soft canvas keeps the shade of every pixel apart from its colour until `finish`, which smooths the shade where
    parts of a body meet, so that the body looks like one piece.
    """

    def __init__(self, view: View, light: Light, soft: bool = False) -> None:
        width, height = view.size
        self.view, self.light = view, light
        self.colour = np.zeros((height, width, 3), np.float32)
        self.depth = np.full((height, width), FAR, np.float32)
        self.ground = np.zeros((height, width), bool)
        self._shade = np.zeros((height, width), np.float32) if soft else None
        self._paint_number = np.zeros((height, width), np.uint16)
        self._paints: list[Colour] = [(0.0, 0.0, 0.0)]
        self.aim(view, light)

    def aim(self, view: View, light: Light) -> None:
        """Look and light in other axes from now on; the picture stays the same size."""
        self.view, self.light = view, light
        sun, up = view.basis @ light.direction, view.basis[:, 1]
        self._slope = tuple(np.float32(v) for v in 0.2 * light.sky * up + 0.74 * light.sun * sun)
        self._level, self._floor = np.float32(0.8 * light.sky + 0.2 * light.sun), np.float32(0.5 * light.sky)

    def draw(self, shapes: Iterable[Shape]) -> None:
        """Draw shapes in any order; the depth buffer decides what hides what."""
        limbs, blobs = [], []
        for shape in shapes:
            if isinstance(shape, Limb):
                limbs.append(shape)
            elif isinstance(shape, Blob):
                blobs.append(shape)
            else:
                self._face(shape)
        if limbs:
            ends = self.view.to_camera(np.array([(limb.a, limb.b) for limb in limbs]))
            for limb, (a, b) in zip(limbs, ends.tolist(), strict=True):
                self._limb(limb, a, b)
        if blobs:
            centres = self.view.to_camera(np.array([blob.centre for blob in blobs]))
            axes = self.view.basis @ np.array([blob.axes for blob in blobs])
            reaches, inverses = np.sqrt((axes**2).sum(2)), np.linalg.inv(axes).astype(np.float32)
            for blob, centre, reach, inverse in zip(blobs, centres, reaches, inverses, strict=True):
                self._blob(blob, centre, reach, inverse)

    def finish(self) -> None:
        """Shade what was drawn softly."""
        import cv2

        if self._shade is None:
            return
        there = self._paint_number > 0
        weight = cv2.blur(there.astype(np.float32), (7, 7))
        shade = cv2.blur(self._shade, (7, 7)) / np.maximum(weight, np.float32(1e-3))
        # Half the smoothed shade, half the sharp: seams fade, roundness stays.
        shade = np.float32(0.7) * shade + np.float32(0.3) * self._shade
        paints = (np.array(self._paints, np.float32) * self.light.tint)[self._paint_number]
        paints *= shade[..., None]
        np.copyto(self.colour, paints, where=there[..., None])

    def _box(self, low_x: float, high_x: float, low_y: float, high_y: float) -> tuple[int, int, int, int] | None:
        width, height = self.view.size
        x0, x1 = max(int(low_x), 0), min(int(high_x) + 2, width)
        y0, y1 = max(int(low_y), 0), min(int(high_y) + 2, height)
        return (x0, x1, y0, y1) if x0 < x1 and y0 < y1 else None

    def _paint(
        self,
        box: tuple[int, int, int, int],
        mask: np.ndarray,
        depth: np.ndarray,
        normal: tuple[np.ndarray, np.ndarray, np.ndarray],
        colour: Colour,
    ) -> None:
        """Shade the pixels of `mask` that lie before what is drawn already."""
        x0, x1, y0, y1 = box
        behind = self.depth[y0:y1, x0:x1]
        mask &= depth < behind
        nx, ny, nz = normal
        sx, sy, sz = self._slope
        shade = nx * sx
        shade += ny * sy
        shade += nz * sz
        shade += self._level
        np.maximum(shade, self._floor, out=shade)
        np.copyto(behind, depth, where=mask)
        if self._shade is not None:
            np.copyto(self._shade[y0:y1, x0:x1], shade, where=mask)
            np.copyto(self._paint_number[y0:y1, x0:x1], self._number(colour), where=mask)
            return
        paint = np.asarray(colour, np.float32) * self.light.tint
        np.copyto(self.colour[y0:y1, x0:x1], shade[..., None] * paint, where=mask[..., None])
        np.copyto(self.ground[y0:y1, x0:x1], False, where=mask)

    def _number(self, colour: Colour) -> int:
        """The number of a paint, a new one where the last differs."""
        if self._paints[-1] != colour:
            self._paints.append(colour)
        return len(self._paints) - 1

    def _limb(self, limb: Limb, a: list[float], b: list[float]) -> None:
        if min(a[2], b[2]) < NEAR:
            return
        focal, (cx, cy) = self.view.focal, self.view.centre
        ax, ay = cx + focal * a[0] / a[2], cy - focal * a[1] / a[2]
        bx, by = cx + focal * b[0] / b[2], cy - focal * b[1] / b[2]
        ra, rb = focal * limb.radius_a / a[2], focal * limb.radius_b / b[2]
        box = self._box(min(ax - ra, bx - rb), max(ax + ra, bx + rb), min(ay - ra, by - rb), max(ay + ra, by + rb))
        if box is None:
            return
        x0, x1, y0, y1 = box
        x = (np.arange(x0, x1, dtype=np.float32) + np.float32(0.5 - ax))[None, :]
        y = (np.arange(y0, y1, dtype=np.float32) + np.float32(0.5 - ay))[:, None]
        dx, dy = np.float32(bx - ax), np.float32(by - ay)
        length = dx * dx + dy * dy
        if length < 0.25:
            share = np.full((y1 - y0, x1 - x0), 0.0 if ra >= rb else 1.0, np.float32)
        else:
            share = x * (dx / length) + y * (dy / length)
            np.maximum(share, np.float32(0), out=share)
            np.minimum(share, np.float32(1), out=share)
        radius = share * np.float32(rb - ra)
        radius += np.float32(ra)
        aside_x = x - share * dx
        aside_x /= radius
        aside_y = share * dy
        aside_y -= y
        aside_y /= radius
        inside = 1 - aside_x * aside_x
        inside -= aside_y * aside_y
        mask = inside > 0
        toward = np.sqrt(np.maximum(inside, np.float32(0), out=inside), out=inside)
        toward *= np.float32(-1)
        thickness = share * np.float32(limb.radius_b - limb.radius_a)
        thickness += np.float32(limb.radius_a)
        thickness *= toward
        depth = share
        depth *= np.float32(b[2] - a[2])
        depth += np.float32(a[2])
        depth += thickness
        self._paint(box, mask, depth, (aside_x, aside_y, toward), limb.colour)

    def _blob(self, blob: Blob, centre: np.ndarray, reach: np.ndarray, inverse: np.ndarray) -> None:
        if centre[2] - reach[2] < NEAR:
            return
        focal, (cx, cy) = self.view.focal, self.view.centre
        near = centre[2] - 0.5 * reach[2]
        px, py = cx + focal * centre[0] / centre[2], cy - focal * centre[1] / centre[2]
        wide, tall = 1.06 * focal * reach[0] / near + 1, 1.06 * focal * reach[1] / near + 1
        box = self._box(px - wide, px + wide, py - tall, py + tall)
        if box is None:
            return
        x0, x1, y0, y1 = box
        x = ((np.arange(x0, x1, dtype=np.float32) + np.float32(0.5 - cx)) / np.float32(focal))[None, :]
        y = (-(np.arange(y0, y1, dtype=np.float32) + np.float32(0.5 - cy)) / np.float32(focal))[:, None]
        # In the ellipsoid's own axes it is the unit sphere, and |u t - start| = 1 along the ray of direction u.
        start = (inverse @ centre).astype(np.float32)
        quadric = inverse.T @ inverse
        ray = quadric @ centre.astype(np.float32)
        aa = (quadric[0, 0] * x * x + (2 * quadric[0, 2]) * x) + (
            quadric[1, 1] * y * y + (2 * quadric[1, 2]) * y + quadric[2, 2]
        )
        aa += (2 * quadric[0, 1]) * x * y
        ab = (ray[0] * x + ray[2]) + ray[1] * y
        inside = ab * ab - aa * np.float32(start @ start - 1)
        mask = inside > 0
        depth = ab - np.sqrt(np.maximum(inside, np.float32(0), out=inside), out=inside)
        depth /= aa
        # The normal is the quadric's gradient at the point hit.
        hit_x, hit_y, hit_z = (
            x * depth - np.float32(centre[0]),
            y * depth - np.float32(centre[1]),
            depth - np.float32(centre[2]),
        )
        n = [quadric[i, 0] * hit_x + quadric[i, 1] * hit_y + quadric[i, 2] * hit_z for i in range(3)]
        scale = 1 / np.sqrt(np.maximum(n[0] * n[0] + n[1] * n[1] + n[2] * n[2], np.float32(1e-12)))
        self._paint(box, mask, depth, (n[0] * scale, n[1] * scale, n[2] * scale), blob.colour)

    def _face(self, face: Face) -> None:
        import cv2

        focal, (cx, cy) = self.view.focal, self.view.centre
        width, height = self.view.size
        bounds = (-(cx + 40) / focal, (width + 40 - cx) / focal, -(height + 40 - cy) / focal, (cy + 40) / focal)
        corners = _clipped(self.view.to_camera(face.corners), bounds)
        if len(corners) < 3:
            return
        flat = np.stack([cx + focal * corners[:, 0] / corners[:, 2], cy - focal * corners[:, 1] / corners[:, 2]], 1)
        box = self._box(flat[:, 0].min(), flat[:, 0].max(), flat[:, 1].min(), flat[:, 1].max())
        if box is None:
            return
        x0, x1, y0, y1 = box
        whole = self.view.to_camera(face.corners[:3])
        normal = np.cross(whole[1] - whole[0], whole[2] - whole[0])
        size = float(np.linalg.norm(normal))
        if size < 1e-9:
            return
        normal = normal / size
        facing = float(normal @ corners[0])
        if abs(facing) < 1e-5:
            return
        if facing > 0:
            normal, facing = -normal, -facing
        stencil = np.zeros((y1 - y0, x1 - x0), np.uint8)
        polygon = np.round((flat - (x0 + 0.5, y0 + 0.5)) * 16).astype(np.int32)
        cv2.fillConvexPoly(stencil, polygon, 1, shift=4)
        x = ((np.arange(x0, x1, dtype=np.float32) + np.float32(0.5 - cx)) / np.float32(focal))[None, :]
        y = (-(np.arange(y0, y1, dtype=np.float32) + np.float32(0.5 - cy)) / np.float32(focal))[:, None]
        slope = np.minimum(np.float32(normal[0]) * x + (np.float32(normal[1]) * y + np.float32(normal[2])), -1e-6)
        depth = np.float32(facing) / slope
        behind = self.depth[y0:y1, x0:x1]
        mask = (stencil > 0) & (depth < behind)
        if not mask.any():
            return
        shade = np.float32(1.0)
        if face.lit:
            linear = sum(float(n) * float(slope) for n, slope in zip(normal, self._slope, strict=True))
            shade = np.float32(max(linear + float(self._level), float(self._floor)))
        if self._shade is not None:
            np.copyto(behind, depth, where=mask)
            np.copyto(self._shade[y0:y1, x0:x1], shade, where=mask)
            np.copyto(self._paint_number[y0:y1, x0:x1], self._number(face.colour), where=mask)
            return
        paint = np.asarray(face.colour, np.float32) * self.light.tint * shade
        np.copyto(self.ground[y0:y1, x0:x1], face.ground, where=mask)
        np.copyto(behind, depth, where=mask)
        if face.texture is None:
            np.copyto(self.colour[y0:y1, x0:x1], paint, where=mask[..., None])
            return
        distance = depth[mask]
        # Texture coordinates run along the face's own first edge and across it, in metres.
        along = face.corners[1] - face.corners[0]
        along = along / np.linalg.norm(along)
        across = face.corners[-1] - face.corners[0]
        across = across - along * float(along @ across)
        across = across / np.linalg.norm(across)
        rows, columns = np.nonzero(mask)
        eye = self.view.to_camera(face.corners[0])
        along, across = self.view.basis @ along, self.view.basis @ across
        px, py = x[0, columns] * distance, y[rows, 0] * distance
        side = face.texture.shape[0]
        rate = side / face.repeat
        u = (along[0] * px + along[1] * py + along[2] * distance - float(along @ eye)) * rate
        v = (across[0] * px + across[1] * py + across[2] * distance - float(across @ eye)) * rate
        grain = face.texture[v.astype(np.int32) & (side - 1), u.astype(np.int32) & (side - 1)]
        # Far away a texel is smaller than a pixel: fade to the mean instead of sparkling.
        fade = np.clip(1.6 - distance * np.float32(rate / focal * 0.55), 0, 1)
        self.colour[y0:y1, x0:x1][mask] = paint * (1 + (grain - 1) * fade)[:, None]


def _clipped(corners: np.ndarray, bounds: tuple[float, float, float, float]) -> np.ndarray:
    """The part of a polygon (camera axes) that lies before the camera and between the slopes of bounds.

    bounds: lowest and highest x/z, lowest and highest y/z. Without it, far corners leave OpenCV's range of pixels.
    """
    left, right, low, high = bounds
    planes = (
        (0.0, 0.0, 1.0, -NEAR),
        (1.0, 0.0, -left, 0.0),
        (-1.0, 0.0, right, 0.0),
        (0.0, 1.0, -low, 0.0),
        (0.0, -1.0, high, 0.0),
    )
    for a, b, c, d in planes:
        side = corners @ np.array([a, b, c]) + d
        if (side >= 0).all():
            continue
        kept = []
        for number, here in enumerate(corners):
            after = (number + 1) % len(corners)
            if side[number] >= 0:
                kept.append(here)
            if (side[number] >= 0) != (side[after] >= 0):
                kept.append(here + (corners[after] - here) * (side[number] / (side[number] - side[after])))
        if len(kept) < 3:
            return np.empty((0, 3))
        corners = np.array(kept)
    return corners


def box(
    centre: np.ndarray, half: np.ndarray, colour: Colour, basis: np.ndarray | None = None, **looks: object
) -> list[Face]:
    """The six faces of a box: centre, half sizes, turned by `basis` (3, 3)."""
    basis = np.eye(3) if basis is None else basis
    faces = []
    for axis in range(3):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        for sign in (-1.0, 1.0):
            corners = []
            for si, sj in ((-1, -1), (1, -1), (1, 1), (-1, 1)):
                offset = np.zeros(3)
                offset[axis], offset[i], offset[j] = sign * half[axis], si * half[i], sj * half[j]
                corners.append(np.asarray(centre) + basis @ offset)
            faces.append(Face(np.array(corners), colour, **looks))  # type: ignore[arg-type]
    return faces


def ball(centre: np.ndarray, radius: float, colour: Colour) -> Blob:
    """A sphere."""
    return Blob(np.asarray(centre, dtype=float), np.eye(3) * radius, colour)


def shadow(canvas: Canvas, shapes: Iterable[Shape], height: float, strength: float, shrink: float = 1.0) -> None:
    """Darken the ground where the shapes stand between it and the sun.

    height: of the ground, metres. shrink: how many canvas pixels one output pixel takes (sets the softness).
    """
    import cv2

    view, light = canvas.view, canvas.light
    mask = np.zeros(canvas.depth.shape, np.uint8)
    slide = light.direction / max(float(light.direction[1]), 0.3)

    def cast(points: np.ndarray) -> np.ndarray:
        drop = np.maximum(points[..., 1:2] - height, 0)
        landed = points - slide * drop
        landed[..., 1] = height
        return view.project(landed)

    shapes = list(shapes)
    limbs = [shape for shape in shapes if isinstance(shape, Limb)]
    blobs = [shape for shape in shapes if isinstance(shape, Blob)]
    faces = [shape for shape in shapes if isinstance(shape, Face)]
    if limbs:
        ends = cast(np.array([(limb.a, limb.b) for limb in limbs]))
        wides = view.focal * np.array([limb.radius_a + limb.radius_b for limb in limbs]) / ends[:, :, 2].mean(1)
        flat = np.clip(np.round(ends[:, :, :2]), -9999, 9999).astype(int).tolist()
        for (p, q), wide, near in zip(flat, wides, ends[:, :, 2].min(1), strict=True):
            if near > NEAR:
                cv2.line(mask, p, q, 255, max(1, min(round(float(wide)), 255)))
    if blobs:
        middles = cast(np.array([blob.centre for blob in blobs]))
        reaches = np.sqrt((np.array([blob.axes for blob in blobs]) ** 2).sum(2))
        tilt = abs(float(view.basis[2, 1])) + 0.15
        for middle, reach in zip(middles, reaches, strict=True):
            if middle[2] > NEAR:
                scale = view.focal / middle[2]
                centre = np.clip(np.round(middle[:2]), -9999, 9999).astype(int).tolist()
                size = (
                    max(1, round(scale * float(max(reach[0], reach[2])))),
                    max(1, round(scale * float(reach[2]) * tilt)),
                )
                cv2.ellipse(mask, centre, size, 0, 0, 360, 255, -1)
    for face in faces:
        corners = cast(face.corners.copy())
        if corners[:, 2].min() > NEAR:
            cv2.fillConvexPoly(mask, np.clip(np.round(corners[:, :2]), -9999, 9999).astype(np.int32), 255)
    rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
    if not len(rows):
        return
    edge = round(6 * shrink)
    y0, y1 = max(rows[0] - edge, 0), rows[-1] + edge + 1
    x0, x1 = max(columns[0] - edge, 0), columns[-1] + edge + 1
    kernel = 2 * round(2.5 * shrink) + 1
    soft = cv2.blur(mask[y0:y1, x0:x1], (kernel, kernel)).astype(np.float32) * np.float32(strength / 255)
    soft[~canvas.ground[y0:y1, x0:x1]] = 0
    canvas.colour[y0:y1, x0:x1] *= (1 - soft)[..., None]
