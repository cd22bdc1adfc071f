"""Clips of people who fail, written as an OOPS! folder: videos, transition times, captions; the truth beside them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.backends.simulator.captions import CORRECTIONS, Caption, two_workers
from pipeline.backends.simulator.episode import Casting, Set, Shot, Story, backdrop, cast, fitting_scenes, shoot
from pipeline.backends.simulator.motions import ACTIONS
from pipeline.backends.simulator.person import draw_looks
from pipeline.backends.simulator.skeleton import posture
from pipeline.backends.simulator.text_to_image import clothes
from pipeline.core.seeds import generator_of

FRAME_RATE = 10
VOTE_SPREAD = 0.2

_TITLES = (
    "Weekend {thing} Trouble - Home Clips ({month} {year})",
    "Best {thing} Fails of the Week ({month} {year})",
    "Fails of the Month - {month} {year} _ Home Clips",
    "{thing} Gone Wrong! Funny Fails Compilation {year}",
    "Fail Compilation {month} {year} - Part {part}",
    "Ultimate {thing} Fails [HD] {year}",
    "Olé! {thing} Fails from Around the World ({year})",
    "Les pires chutes à la maison - {month} {year}",
    "It's Not My Day - {thing} Edition_",
    "Señor Clumsy and Friends ({month} {year})",
    "Ouch, That Hurts... {thing} Nominees ({month} {year})",
    "Über Fails - {thing} & More",
    "What Could Go Wrong_ {thing} Moments No. {part}",
    "Fail Café - {thing} Special ({month}_{year})",
)
_THINGS = (
    "Sports",
    "Ladder",
    "Skate",
    "Party",
    "Garden",
    "Gym",
    "Summer",
    "Winter",
    "Backyard",
    "Dance",
    "Bike",
    "Dog",
)
_MONTHS = ("January", "March", "April", "June", "July", "August", "October", "November")


@dataclass(frozen=True)
class ClipPlan:
    """Everything about one clip before it is filmed. Times in seconds, size (width = height) in pixels.

    odd: None, or static | empty | tiny for the few clips that are no use. votes: three transition times, -1 where a
    worker saw no failure; None for a clip nobody labelled. heldout: a fourth worker's, or None.
    """

    name: str
    split: str
    seed: str
    size: int
    frames: int
    turn: float
    action: str
    failure: str
    scene: str
    odd: str | None
    votes: tuple[float, float, float] | None
    heldout: float | None
    captions: tuple[Caption, Caption] | None

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.frames / FRAME_RATE


def plan_footage(train_clips: int, val_clips: int, seed: int, *, size: int = 320) -> list[ClipPlan]:
    """The clips of a folder, train first: equal arguments give equal plans."""
    if train_clips < 0 or val_clips < 0:
        raise ValueError("the number of clips is 0 or more")
    if size < 64 or size % 2:
        raise ValueError(f"a clip is an even number of pixels wide, 64 or more, not {size}")
    plans: list[ClipPlan] = []
    for split, count in (("train", train_clips), ("val", val_clips)):
        names = _names(split, count, seed)
        plans += [_plan(split, number, names[number], seed, size) for number in range(count)]
    return plans


def _names(split: str, count: int, seed: int) -> list[str]:
    """Unique names: one video title serves several clips, numbered without anything between."""
    names: list[str] = []
    number = 0
    while len(names) < count:
        rng = generator_of("title", seed, split, number)
        title = _TITLES[number % len(_TITLES)].format(
            thing=_THINGS[int(rng.integers(len(_THINGS)))],
            month=_MONTHS[int(rng.integers(len(_MONTHS)))],
            year=int(rng.integers(2013, 2019)),
            part=int(rng.integers(2, 40)),
        )
        # The split and round are told apart by a name of the uploader, so that no two titles are ever equal.
        title = (
            f"{title} {'FC' if split == 'train' else 'HV'}{number}_"
            if number >= len(_TITLES) or split == "val"
            else title
        )
        clips = rng.permutation(np.arange(1, 40))[: int(rng.integers(4, 13))]
        names += [f"{title}{clip}" for clip in sorted(int(c) for c in clips)]
        number += 1
    return names[:count]


def _plan(split: str, number: int, name: str, seed: int, size: int) -> ClipPlan:
    rng = generator_of("clip", seed, split, number)
    actions = list(ACTIONS)
    # Every action comes once a round, the rounds shuffled apart; a longer folder begins with the shorter one.
    order = generator_of("order", seed, split, number // len(actions)).permutation(len(actions))
    action = ACTIONS[actions[int(order[number % len(actions)])]]
    failure = action.falls[int(rng.integers(len(action.falls)))]
    fitting = fitting_scenes(action.name, failure)
    scene = fitting[int(rng.integers(len(fitting)))]
    before = int(rng.integers(17, 31))
    if failure == "head" and action.cycle is not None:
        # Half way to the transition he is in the air, at the transition in the air again.
        before = round(2 * action.cycle * FRAME_RATE)
    after = int(rng.integers(17, 26))
    frames = max(before + after, 34)
    turn = before / FRAME_RATE
    odd = ("static", "empty", "tiny")[int(rng.integers(3))] if rng.random() < 0.04 else None
    clip_seed = f"{seed}/{split}/{number}"
    looks = draw_looks(generator_of("looks", clip_seed))
    labelled = split == "val" or rng.random() < 0.8
    votes = _votes(rng, turn, frames / FRAME_RATE) if labelled else None
    heldout = None
    if votes is not None and sum(vote < 0 for vote in votes) <= 1:
        heldout = -1.0 if rng.random() < 0.05 else _vote(rng, turn, frames / FRAME_RATE)
    captions = None if rng.random() < 0.06 else two_workers(rng, action.name, failure, scene, looks, action.drops)
    return ClipPlan(
        name, split, clip_seed, size, frames, turn, action.name, failure, scene, odd, votes, heldout, captions
    )


def _vote(rng: np.random.Generator, turn: float, duration: float) -> float:
    return float(np.clip(round(float(turn + rng.normal(0, VOTE_SPREAD)), 4), 0.05, duration - 0.05))


def _votes(rng: np.random.Generator, turn: float, duration: float) -> tuple[float, float, float]:
    unseen = rng.random()
    missing = 2 if unseen < 0.05 else (1 if unseen < 0.15 else 0)
    votes = [_vote(rng, turn, duration) for _ in range(3)]
    for place in rng.permutation(3)[:missing]:
        votes[int(place)] = -1.0
    return votes[0], votes[1], votes[2]


# --- filming ------------------------------------------------------------------------------------------------------


def write_clip(root: Path, plan: ClipPlan) -> Path:
    """Film one clip: the mp4 under oops_video/<split>/ and its truth under truth/<split>/; returns the video's path.

    Both are written under temporary names and renamed, the video last.
    """
    shots, rows, casting, joints_seen = _film(plan)
    truth = {
        "name": plan.name,
        "split": plan.split,
        "transition": plan.turn,
        "duration": plan.duration,
        "frame_rate": FRAME_RATE,
        "size": [plan.size, plan.size],
        "action": plan.action,
        "failure": plan.failure,
        "scene": plan.scene,
        "clothes": clothes(casting.looks),
        "odd": plan.odd,
        "person_visible": joints_seen,
        "frames": rows,
    }
    truth_folder = root / "truth" / plan.split
    video_folder = root / "oops_video" / plan.split
    truth_folder.mkdir(parents=True, exist_ok=True)
    video_folder.mkdir(parents=True, exist_ok=True)
    _write_text(truth_folder / f"{plan.name}.json", json.dumps(truth, ensure_ascii=False, sort_keys=True) + "\n")
    target = video_folder / f"{plan.name}.mp4"
    temporary = video_folder / f".{plan.name}.{os.getpid()}.part"
    try:
        _encode(temporary, [shot.image for shot in shots])
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _film(plan: ClipPlan) -> tuple[list[Shot], list[dict[str, Any]], Casting, bool]:
    looks = draw_looks(generator_of("looks", plan.seed))
    casting = cast(plan.action, plan.failure, plan.scene, looks, plan.seed, plan.seed)
    action = ACTIONS[plan.action]
    rng = generator_of("film", plan.seed)
    lead = _lead(rng, action.moment, plan.turn)
    story = Story(casting, lead + plan.turn, plan.duration - plan.turn, rate=FRAME_RATE)
    times = [frame / FRAME_RATE for frame in range(plan.frames)]
    moments = [story.at(lead + time) for time in times]
    stage, corners, box = _follow(casting, [moment.frames for moment in moments], plan)
    if plan.odd == "static":
        moments = [moments[0]] * len(moments)
        corners = [corners[0]] * len(corners)
    back = backdrop(stage, story.still(), box)
    shots, rows = [], []
    for time, moment, corner in zip(times, moments, corners, strict=True):
        shot = shoot(stage, back, moment, corner, person=plan.odd != "empty")
        shots.append(shot)
        rows.append(
            {
                "time": round(time, 6),
                "state": moment.state,
                "posture": posture(moment.frames) if plan.odd != "empty" else None,
                "keypoints": [[round(float(x), 2), round(float(y), 2), int(seen)] for x, y, seen in shot.joints],
            }
        )
    seen = plan.odd != "empty" and any(shot.joints[:, 2].sum() >= 3 for shot in shots)
    return shots, rows, casting, seen


def _lead(rng: np.random.Generator, moment: tuple[float, float], turn: float) -> float:
    """How many seconds of the action have passed as the clip starts, so that half way to the transition it shows best.

    Negative: he stands ready for so long first.
    """
    low, high = moment
    best = float(rng.uniform(low, high)) - turn / 2
    return max(best, 0.0) if high - low > 1.2 else best


def _follow(
    casting: Casting, frames: list[Any], plan: ClipPlan
) -> tuple[Set, list[tuple[int, int]], tuple[int, int, int, int]]:
    """The camera and where its window lies at each frame: it pans smoothly after the person and holds all of him."""
    from scipy.ndimage import gaussian_filter1d

    size = plan.size
    roots = np.array([frame.points[0] for frame in frames])
    stage = Set(casting, 0.5 * (roots.min(0) + roots.max(0)), size)
    if plan.odd == "tiny":
        stage.zoomed(0.2)
    for _ in range(6):
        extents = np.array([stage.extent(frame) for frame in frames])
        middles = 0.5 * (extents[:, :2] + extents[:, 2:])
        smooth = gaussian_filter1d(middles, 4.0, axis=0, mode="nearest")
        need = max(float((extents[:, 2:] - smooth).max()), float((smooth - extents[:, :2]).max()))
        factor = 0.475 * size / need
        if factor >= 1:
            break
        stage.zoomed(factor)
    corners = [(round(x - size / 2), round(y - size / 2)) for x, y in smooth.tolist()]
    low, high = np.min(corners, 0), np.max(corners, 0) + size
    return stage, corners, (int(low[0]), int(low[1]), int(high[0]), int(high[1]))


def _encode(path: Path, images: Sequence[np.ndarray]) -> None:
    """Write an h264 mp4 (yuv420p, starting at 0, no edit list), the same bytes for the same images."""
    import av

    height, width = images[0].shape[:2]
    with av.open(str(path), "w", format="mp4", options={"use_editlist": "0", "fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FRAME_RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1
        # A fixed quantiser and no look-ahead: x264's floating-point rate control gave other bytes now and then for the
        # very same frames.
        stream.options = {
            "preset": "veryfast",
            "qp": "23",
            "bf": "0",
            "threads": "1",
            "flags": "+bitexact",
            "x264-params": "rc-lookahead=0:mbtree=0:weightp=0:scenecut=0:aq-mode=0",
        }
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


# --- annotations --------------------------------------------------------------------------------------------------


def write_annotations(root: Path, plans: Sequence[ClipPlan]) -> None:
    """Write annotations/ (name lists, transition times) and svos/ (caption archive) for the planned clips."""
    annotations, archive = root / "annotations", root / "svos"
    annotations.mkdir(parents=True, exist_ok=True)
    archive.mkdir(parents=True, exist_ok=True)
    good = [plan for plan in plans if plan.odd is None]
    for split in ("train", "val"):
        _write_names(annotations / f"{split}.txt", [plan for plan in plans if plan.split == split])
        _write_names(annotations / f"{split}_filtered.txt", [plan for plan in good if plan.split == split])
    _write_names(annotations / "filtered_vids.txt", good)
    times = {plan.name: _times(list(plan.votes), plan.duration) for plan in plans if plan.votes is not None}
    heldout = {plan.name: _times([plan.heldout], plan.duration) for plan in plans if plan.heldout is not None}
    _write_text(annotations / "transition_times.json", json.dumps(times, ensure_ascii=False))
    _write_text(annotations / "heldout_transition_times.json", json.dumps(heldout, ensure_ascii=False))
    words: Counter[str] = Counter()
    for split in ("train", "val"):
        captions = {}
        for plan in plans:
            if plan.split != split or plan.captions is None:
                continue
            captions[_garbled(plan.name)] = [_record(caption) for caption in plan.captions]
            for caption in plan.captions:
                words.update(f"{caption.goal} {caption.wentwrong}".lower().replace(".", " ").split())
        _write_text(archive / f"{split}.json", json.dumps(captions, ensure_ascii=False))
    _write_text(archive / "vocab.json", json.dumps(dict(sorted(words.items())), ensure_ascii=False))
    _write_text(archive / "corrections.json", json.dumps(CORRECTIONS, ensure_ascii=False))


def _times(votes: list[float], duration: float) -> dict[str, Any]:
    relative = [vote / duration for vote in votes]
    return {
        "t": votes,
        "len": duration,
        "stdev": float(np.std(votes)),
        "rel_t": relative,
        "rel_stdev": float(np.std(relative)),
        "n_notfound": sum(vote < 0 for vote in votes),
    }


def _record(caption: Caption) -> dict[str, Any]:
    return {
        "goal": caption.goal,
        "wentwrong": caption.wentwrong,
        "kgoalsvos": _triples(caption.goal),
        "kwentwrongsvos": _triples(caption.wentwrong),
    }


def _triples(text: str) -> list[list[str]]:
    """A rough subject, verb and object by place in the sentence, as the archive carries them."""
    words = text.lower().rstrip(" .!").split()
    articles = {"a", "an", "the", "this"}
    words = words[1:] if words and words[0] in articles else words
    return [[words[0], words[1], words[-1]]] if len(words) > 2 else []


def _garbled(name: str) -> str:
    """The key as the archive has it: UTF-8 read as cp1252; as it stands where that cannot be read."""
    try:
        return name.encode("utf-8").decode("cp1252")
    except UnicodeDecodeError:
        return name


def _write_names(path: Path, plans: Sequence[ClipPlan]) -> None:
    _write_text(path, "".join(f"{plan.name}\n" for plan in plans))


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
