"""Text to image by posing, dressing and filming what a short caption says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.protocols import BackendContext, ImageRequest
from pipeline.backends.simulator import REVISION
from pipeline.backends.simulator.episode import Casting, Set, Shot, Story, backdrop, cast, fitting_scenes, shoot
from pipeline.backends.simulator.failures import FAILURES
from pipeline.backends.simulator.motions import ACTIONS
from pipeline.backends.simulator.person import Looks, draw_looks
from pipeline.backends.simulator.scenes import PLACES
from pipeline.backends.simulator.skeleton import keypoints, posture
from pipeline.core.seeds import generator_of

BAD_KINDS = ("no_person", "cut_off", "torn")
_WHO = (
    ("woman", ("woman", "lady", "girlfriend", "mother", "mom", "bride", "she ", "grandma", "aunt", "wife")),
    ("girl", ("girl", "daughter")),
    ("boy", ("boy", "kid", "child", "son ", "toddler", "baby")),
    ("man", ("man", "guy", "dude", "father", "dad", "groom", "he ", "husband", "uncle", "grandpa")),
)


@dataclass(frozen=True)
class Meaning:
    """What a caption asks for: action, failure, scene, and who (None: nobody in particular)."""

    action: str
    failure: str
    scene: str
    who: str | None


def _named(text: str, choices: dict[str, tuple[str, ...]]) -> str | None:
    """The choice whose longest word begins a word of the text; the first named where words are equally long."""
    best: tuple[int, int] | None = None
    found = None
    for name, words in choices.items():
        for word in words:
            match = re.search(rf"\b{re.escape(word.strip())}" + (r"\b" if word.endswith(" ") else ""), text)
            if match and (best is None or (-len(word), match.start()) < best):
                best, found = (-len(word), match.start()), name
    return found


def understand(prompt: str, identity: str, context: str = "") -> Meaning:
    """What to draw for a free short caption.

    Place and person are those of the context (what is said of the whole video), so that they are the same in all its
    kinds; action and failure are the prompt's, else the context's. What neither says is settled by the identity.
    """
    text, about = f" {prompt.lower()} ", f" {(context or prompt).lower()} "
    rng = generator_of("meaning", identity)
    drawn = rng.random(4)
    actions = {name: action.words for name, action in ACTIONS.items()}
    action = _named(text, actions) or _named(about, actions) or list(ACTIONS)[int(drawn[0] * len(ACTIONS))]
    falls = ACTIONS[action].falls
    failures = {name: item.words for name, item in FAILURES.items()}
    failure = _named(text, failures) or _named(about, failures) or falls[int(drawn[1] * len(falls))]
    scene = _named(about, {name: place.words for name, place in PLACES.items()})
    if scene is None:
        fitting = fitting_scenes(action, failure)
        scene = fitting[int(drawn[2] * len(fitting))]
    return Meaning(action, failure, scene, _named(about, dict(_WHO)))


class SimulatorTextToImage:
    """Draws captions by the physics simulator.

    Settings: `size`, pixels a side (320); `bad_share`, the share of images made bad on purpose (0.25).
    """

    name = "simulator"
    revision = REVISION

    def __init__(self, context: BackendContext) -> None:
        known = {"size", "bad_share"}
        unknown = set(context.settings) - known
        if unknown:
            raise ValueError(f"simulator: unknown settings {sorted(unknown)}; it knows {sorted(known)}")
        self.size = int(context.settings.get("size", 320))
        self.bad_share = float(context.settings.get("bad_share", 0.25))
        if not 0 <= self.bad_share <= 1:
            raise ValueError(f"simulator: bad_share is {self.bad_share}; it is a share, 0..1")
        if not 64 <= self.size <= 2048:
            raise ValueError(f"simulator: size is {self.size}; 64 to 2048 pixels can be drawn")
        self._truth_dir = context.truth_dir

    def generate(self, requests: Sequence[ImageRequest]) -> list[np.ndarray]:
        """One image uint8 (size, size, 3) RGB a request, in order; the truth of the batch goes to truth_dir."""
        images, rows = [], []
        for request in requests:
            image, row = draw(request, self.size, self.bad_share)
            images.append(image)
            rows.append(row)
        if rows:
            _write_truth(self._truth_dir, rows)
        return images


def draw(request: ImageRequest, size: int = 320, bad_share: float = 0.25) -> tuple[np.ndarray, dict[str, Any]]:
    """The image of one request, uint8 (size, size, 3), and its truth: the same whatever was drawn before.

    The joints of a torn body are those it would have if it were whole, not where its limbs are drawn.
    """
    meaning = understand(request.prompt, request.identity, request.context)
    looks = draw_looks(generator_of("looks", request.identity), meaning.who)
    seed = f"{request.seed}/{request.attempt}"
    rng = generator_of("image", seed)
    bad = BAD_KINDS[int(rng.integers(len(BAD_KINDS)))] if rng.random() < bad_share else None
    casting = cast(meaning.action, meaning.failure, meaning.scene, looks, request.identity, seed)
    low, high = ACTIONS[meaning.action].moment
    turn = float(rng.uniform(low, high))
    # Part of the way through the fall for `full`, further for `wentwrong`.
    after = {"goal": 0.0, "full": float(rng.uniform(0.35, 1.1))}.get(request.kind, float(rng.uniform(0.6, 1.6)))
    shot, state = _film(casting, turn, after, size, bad, rng)
    row = {
        "id": request.id,
        "bad": bad,
        "kind": request.kind,
        "joints": [[round(float(x), 2), round(float(y), 2), int(v)] for x, y, v in shot.joints],
        "clothes": clothes(looks),
        "scene": meaning.scene,
        "action": meaning.action,
        "failure": meaning.failure if request.kind != "goal" else None,
        "posture": state if bad != "no_person" else None,
    }
    return shot.image, row


def clothes(looks: Looks) -> dict[str, Any]:
    """The looks as plain values, for truth files."""
    return {
        "gender": looks.gender,
        "age": looks.age,
        "top": looks.top,
        "sleeves": looks.sleeves,
        "bottom": looks.bottom,
        "bottom_kind": looks.bottom_kind,
        "shoes": looks.shoes,
        "hair": looks.hair,
        "hair_length": looks.hair_length,
        "hat": looks.hat,
    }


def _film(
    casting: Casting, turn: float, after: float, size: int, bad: str | None, rng: np.random.Generator
) -> tuple[Shot, str]:
    failed = after > 0
    story = Story(casting, turn, after, rate=1 / after if failed else 1.0)
    moment = story.at(turn + after if failed else turn - 1e-6, mishap_seen=failed)
    stage = Set(casting, moment.frames.points[0], size)
    reach = float(rng.uniform(0.74, 0.88)) * size
    extent = stage.extent(moment.frames)
    side = max(extent[2] - extent[0], extent[3] - extent[1])
    stage.zoomed(float(np.clip(reach / side, 0.5, 1.35 if failed else 1.0)))
    if bad == "cut_off":
        stage.zoomed(1.5)
    extent = stage.extent(moment.frames)
    middle = np.array([extent[0] + extent[2], extent[1] + extent[3]]) / 2
    spare = np.maximum(size - 4 - (extent[2:] - extent[:2]), 0) / 2
    middle = middle + rng.uniform(-0.6, 0.6, 2) * spare
    if bad == "cut_off":
        # Push the body over one edge until a good part of its joints is outside.
        way = np.array([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)][int(rng.integers(4))])
        whole = np.array([extent[0] + extent[2], extent[1] + extent[3]]) / 2
        joints = stage.person_view(stage.view).project(keypoints(moment.frames))[:, :2]
        wanted = int(rng.integers(7, 12))
        for share in np.linspace(-0.3, 0.4, 36):
            middle = whole + way * (size / 2 + share * (extent[2:] - extent[:2]))
            if (np.abs(joints - middle) > size / 2).any(1).sum() >= wanted:
                break
    corner = (int(middle[0] - size / 2), int(middle[1] - size / 2))
    back = backdrop(stage, story.still(mishap_seen=failed), (corner[0], corner[1], corner[0] + size, corner[1] + size))
    return shoot(stage, back, moment, corner, bad != "no_person", bad == "torn"), posture(moment.frames)


def _write_truth(folder: Path, rows: list[dict[str, Any]]) -> None:
    """One JSON-lines file a batch, named by its first id, written whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9._-]", "_", str(rows[0]["id"])).lstrip(".") or "batch"
    target = folder / f"{name}.jsonl"
    temporary = folder / f".{name}.{os.getpid()}.part"
    temporary.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows), encoding="utf-8")
    temporary.replace(target)
