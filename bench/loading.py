"""Reading training pictures: JPEGs decoded at a reduced scale, beside a plain full decode of the same files.

python -m bench.loading [--images 64] [--side 1024]

A sample is four pictures: image, pose map, hard image, hard pose map. Both ways end in 224 x 224 pixels, bicubic, and
read the same bytes by turns. The pictures are made up here: smoothed noise with edges in place of photographs, and
skeletons drawn as pose maps are; written as this project writes JPEGs and, apart, as Pillow does by default.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.counting import Target, judged, table

TARGET_SIDE = 224
AT_LEAST = 3.0
"""Samples a second over those of plain decoding, at 1024 pixels."""
_PICTURES = 4
_EDGES = 24


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where the target is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.loading", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=64, help="pictures, half of them pose maps (default: 64)")
    parser.add_argument("--side", type=int, default=1024, help="height and width of the files (default: 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts (default: 3)")
    parser.add_argument("--no-features", action="store_true", help="do not compare features of EfficientNet-Lite0")
    options = parser.parse_args(argv)
    if options.images < _PICTURES or options.side < TARGET_SIDE or options.rounds < 1:
        parser.error(f"--images must be at least {_PICTURES}, --side at least {TARGET_SIDE}, --rounds at least 1")

    pictures = made_pictures(options.images // _PICTURES * _PICTURES, options.side)
    targets = []
    rows = [("", "samples/s, reduced", "plain", "ratio", "mean difference of a pixel", "largest of a feature")]
    for name, encode in ENCODINGS.items():
        files = [encode(each) for each in pictures]
        found = compared(files, options.rounds, not options.no_features)
        feature = "" if found.feature is None else f"{found.feature:.4f}"
        rows.append(
            (f"{name}, {sum(map(len, files)) / len(files) / 1000:.0f} kB each", f"{found.reduced:.1f}",
             f"{found.plain:.1f}", f"{found.ratio:.2f}", f"{found.pixel:.2f} of 255", feature)
        )  # fmt: skip
        targets.append(Target(f"samples/s over plain decoding, {name}", found.ratio, at_least=AT_LEAST, digits=".2f"))
        unlike = found.unlike
    print(f"{len(pictures)} pictures of {options.side} x {options.side}, four a sample, one thread\n")
    print(table(rows))
    if not options.no_features:
        print(f"\na feature's difference is 1 - cosine; between different pictures it is {unlike:.2f} (median)")
    print()
    if options.side != 1024:
        print(f"the target, {AT_LEAST:g} times as many samples a second, is for --side 1024")
        return 0
    return judged(targets)


@dataclass(frozen=True)
class Comparison:
    """Reduced against plain decoding of the same files. reduced, plain: samples a second.

    pixel: mean absolute difference, of 255. feature: largest 1 - cosine of EfficientNet-Lite0's features of the same
    file; unlike: the median of that between different files. Both None where no features were asked for.
    """

    reduced: float
    plain: float
    pixel: float
    feature: float | None
    unlike: float | None

    @property
    def ratio(self) -> float:
        return self.reduced / self.plain


def compared(files: Sequence[bytes], rounds: int, features: bool) -> Comparison:
    """Reads files both ways by turns, a sample at a time."""
    from pipeline.training.pictures import read_square

    ways: dict[str, Callable[[bytes], np.ndarray]] = {
        "reduced": lambda data: read_square(data, "made-up", TARGET_SIDE),
        "plain": read_plainly,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    read: dict[str, list[np.ndarray]] = {}
    for _ in range(rounds):
        read = {way: [] for way in ways}
        spent = dict.fromkeys(ways, 0.0)
        for start in range(0, len(files), _PICTURES):
            for way, decode in ways.items():
                begin = time.process_time()
                read[way] += [decode(data) for data in files[start : start + _PICTURES]]
                spent[way] += time.process_time() - begin
        for way, each in spent.items():
            seconds[way].append(each)
    samples = len(files) / _PICTURES
    differences = [
        np.abs(one.astype(np.int16) - other).mean() for one, other in zip(read["reduced"], read["plain"], strict=True)
    ]
    feature = unlike = None
    if features:
        feature, unlike = _feature_differences(read["reduced"], read["plain"])
    return Comparison(
        samples / min(seconds["reduced"]), samples / min(seconds["plain"]), float(np.mean(differences)), feature, unlike
    )


def read_plainly(data: bytes) -> np.ndarray:
    """Decoded whole, then resized: what a data set in the usual form does."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB").resize((TARGET_SIDE, TARGET_SIDE), Image.Resampling.BICUBIC))


def _feature_differences(reduced: Sequence[np.ndarray], plain: Sequence[np.ndarray]) -> tuple[float, float]:
    from pathlib import Path

    from pipeline.backends.efficientnet_lite import EfficientNetLite0
    from pipeline.backends.protocols import BackendContext

    embedder = EfficientNetLite0(BackendContext({}, Path(), Path()))
    one, other = embedder.embed(reduced), embedder.embed(plain)
    cosines = other @ other.T
    return float(1 - (one * other).sum(axis=1).min()), float(np.median(1 - cosines[~np.eye(len(other), dtype=bool)]))


# --- pictures -----------------------------------------------------------------------------------------------------


def made_pictures(count: int, side: int) -> list[np.ndarray]:
    """uint8 (side, side, 3): an image and a pose map by turns, the same ones every time."""
    return [made_pose_map(number, side) if number % 2 else made_photograph(number, side) for number in range(count)]


def made_photograph(number: int, side: int) -> np.ndarray:
    """Noise whose strength falls with its frequency as in photographs, cut by shapes with sharp edges, and grain.

    As a JPEG it takes about as many bytes a pixel as photographs of people do (0.4 at quality 95, 0.14 at 75).
    """
    rng = np.random.default_rng(number)
    rows, columns = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    strength = 1 / np.maximum(np.hypot(rows, columns), 1 / side)
    light = _clouds(rng, strength, side)
    image = np.stack([light + 0.1 * _clouds(rng, strength, side) for _ in range(3)], axis=2)
    y, x = np.mgrid[:side, :side] / side
    for _ in range(_EDGES):
        (cx, cy), (rx, ry), turn = rng.uniform(0, 1, 2), rng.uniform(0.02, 0.25, 2), rng.uniform(0, np.pi)
        along = ((x - cx) * np.cos(turn) + (y - cy) * np.sin(turn)) / rx
        across = ((y - cy) * np.cos(turn) - (x - cx) * np.sin(turn)) / ry
        inside = np.maximum(abs(along), abs(across)) < 1 if rng.random() < 0.5 else along**2 + across**2 < 1
        image[inside] = 0.5 * image[inside] + rng.normal(0, 1, 3)
    image += rng.normal(0, 0.02, image.shape)
    return np.clip(128 + 24 * image, 0, 255).astype(np.uint8)


def _clouds(rng: np.random.Generator, strength: np.ndarray, side: int) -> np.ndarray:
    waves = strength * np.exp(2j * np.pi * rng.random(strength.shape))
    field = np.fft.irfft2(waves, s=(side, side))
    return (field - field.mean()) / field.std()


def made_pose_map(number: int, side: int) -> np.ndarray:
    """A standing skeleton, its joints pushed about, drawn as the pipeline draws pose maps."""
    from pipeline.core.pose import draw_pose_map

    rng = np.random.default_rng(number)
    joints = np.array(_STANDING) + rng.normal(0, 0.03, (len(_STANDING), 2))
    return draw_pose_map([np.column_stack([joints * side, np.ones(len(joints))])], side, side)


_STANDING = (
    *((0.50, 0.12), (0.52, 0.10), (0.48, 0.10), (0.54, 0.11), (0.46, 0.11)),
    *((0.60, 0.25), (0.40, 0.25), (0.64, 0.40), (0.36, 0.40), (0.65, 0.53), (0.35, 0.53)),
    *((0.56, 0.53), (0.44, 0.53), (0.57, 0.72), (0.43, 0.72), (0.57, 0.90), (0.43, 0.90)),
)
"""COCO's 17 joints, x and y as shares of the side."""


def _as_pillow_does(picture: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG")
    return buffer.getvalue()


def _as_this_project(picture: np.ndarray) -> bytes:
    from pipeline.core.images import encode_jpeg

    return encode_jpeg(picture, quality=95)


ENCODINGS: dict[str, Callable[[np.ndarray], bytes]] = {
    "quality 95, 4:4:4 (this project)": _as_this_project,
    "quality 75, 4:2:0 (Pillow)": _as_pillow_does,
}


if __name__ == "__main__":
    raise SystemExit(main())
