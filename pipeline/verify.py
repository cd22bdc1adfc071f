"""Whether a build is whole, and how well its engines do where the truth is known.

`python -m pipeline.verify` reads every shard once and compares it with what `stage.json` says of it and with the shards
it follows from. `--truth` measures filters, joints, captions and labels against what the simulator knows of its own
footage and images. The stages never read that truth; this module and bench alone do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.core.card import TRUTH_REPORT
from pipeline.core.errors import UserError
from pipeline.core.measures import (
    Share,
    body_size,
    colour_of,
    first_said,
    joints_found,
    opening,
    precision_recall,
    says,
    share,
    shown_index,
)
from pipeline.core.profile import Profile, oops_root

if TYPE_CHECKING:
    from pipeline.core.stage import Stage
    from pipeline.core.store import Store

TERMS_FILE = Path(__file__).resolve().parent / "verify_terms.yaml"
REPORT_NAME = TRUTH_REPORT

_PROBLEMS_SHOWN = 20
_READ_IMAGES = 256
"""Images held in memory at once."""
_BY_SIMULATOR = "simulator"
_FEWEST_WORDS, _MOST_WORDS = 25, 56
_REACH = 0.1
"""Of the person's height: how far from its place a joint may be found."""
_FEWEST_JOINTS = 3
"""Joints that must be in sight for a person to be."""
_POSTURES = ("upright", "fallen", "upside_down")


# --- whether a build is whole -------------------------------------------------------------------------------------


@dataclass
class Check:
    """One thing that was looked at: how many cases there were, and a line for each that is wrong."""

    name: str
    cases: int = 0
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: bool, problem: str) -> bool:
        """Count a case; note the problem where it does not hold. Returns whether it holds."""
        self.cases += 1
        if not holds:
            self.problems.append(problem)
        return holds


def check_build(profile: Profile, build: str) -> list[Check]:
    """Every check of a build, with its problems. Raises UserError where nothing is built at all."""
    from pipeline import delivery, stages
    from pipeline.core.store import Store
    from pipeline.decompose import final_caption_stage

    store = Store(stages.build_dir(profile, build))
    if not any(store.build_dir.glob("*/*/stage.json")):
        raise UserError(f"nothing is built in {store.build_dir}: run python -m pipeline.build first")
    there = Check("every shard is there")
    files = Check("files are those of stage.json")
    counts = Check("in = kept + rejected + failed")
    lineage = Check("ids in are those of the stage before")
    images = Check("images have their sha256")
    factors = Check("factors are of the caption that stands")
    sound: set[tuple[str, str]] = set()
    for made in stages.all_stages():
        for shard in stages.shard_names(made, profile):
            where = f"{made.name} {shard}"
            manifest = _whole_manifest(store, made.name, shard)
            if not there.expect(
                manifest is not None, f"{where} is not built or damaged: run python -m pipeline.{made.name}"
            ):
                continue
            assert manifest is not None
            if not _files_stand(store, made.name, shard, manifest, files):
                continue  # what is in them is anyone's guess
            sound.add((made.name, shard))
            _check_counts(store, made.name, shard, manifest, counts)
            if sound.issuperset(made.upstream(profile, shard)):
                _check_lineage(profile, store, made, shard, lineage)
            if made.name in ("generate", "frames"):
                _check_images(store, made.name, shard, images)
            if made.name == "decompose" and (final_caption_stage(shard)[0], shard) in sound:
                _check_factors(store, shard, factors)
    out = Check("the dataset folder is this build's")
    out.expect(
        ("publish", "all") in sound and delivery.delivery_stands(profile, store),
        f"{profile.out} does not hold this build's dataset: run python -m pipeline.publish",
    )
    return [there, files, counts, lineage, images, factors, out]


def _whole_manifest(store: Store, stage: str, shard: str) -> dict[str, Any] | None:
    """What `stage.json` says; None where it is missing, damaged, or does not say what every shard must."""
    try:
        manifest = store.manifest(stage, shard)
        whole = manifest is not None and {"in", "kept", "rejected", "failed"} <= set(manifest["counts"])
        return manifest if whole and isinstance(manifest, dict) and isinstance(manifest["files"], dict) else None
    except (UserError, UnicodeDecodeError, KeyError, TypeError):
        return None


def _files_stand(store: Store, stage: str, shard: str, manifest: Mapping[str, Any], check: Check) -> bool:
    from pipeline.core.store import file_digest

    folder = store.shard_dir(stage, shard)
    said = dict(manifest["files"])
    there = {path.name: path for path in sorted(folder.glob("*.parquet"))}
    sound = [
        check.expect(
            name in there and file_digest(there[name]) == digest,
            f"{stage} {shard}: {name} {'is not what was written' if name in there else 'is gone'}; "
            f"delete {folder} and run the stage again",
        )
        for name, digest in sorted(said.items())
    ]
    sound += [
        check.expect(False, f"{stage} {shard}: {name} is not of this shard") for name in sorted(set(there) - set(said))
    ]
    return all(sound)


def _check_counts(store: Store, stage: str, shard: str, manifest: Mapping[str, Any], check: Check) -> None:
    counts = manifest["counts"]
    kept, dropped = len(store.kept_ids(stage, shard)), store.dropped(stage, shard)
    found = {
        "kept": kept,
        "rejected": sum(row["outcome"] == "rejected" for row in dropped),
        "failed": sum(row["outcome"] == "failed" for row in dropped),
    }
    said = {name: counts[name] for name in found}
    check.expect(
        said == found and counts["in"] == sum(found.values()),
        f"{stage} {shard}: {counts['in']} went in, {_numbers(said)} by stage.json, {_numbers(found)} in the files",
    )


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items())


def _check_lineage(profile: Profile, store: Store, made: Stage, shard: str, check: Check) -> None:
    """The ids that came out are those that the stages before sent in."""
    from pipeline.core.stage import StageContext

    if not made.upstream(profile, shard):
        return  # it reads the OOPS! folder
    try:
        wanted = {item.id for item in made.items(StageContext(profile, store, shard, _no_engine))}
    except (UserError, OSError, ValueError) as error:
        check.expect(False, f"{made.name} {shard}: what it reads cannot be read: {error}")
        return
    found = {*store.kept_ids(made.name, shard), *(row["id"] for row in store.dropped(made.name, shard))}
    odd = sorted(wanted ^ found)
    check.expect(not odd, f"{made.name} {shard}: {len(odd)} ids do not match, e.g. {', '.join(odd[:3])}")


def _no_engine(section: str) -> Any:
    raise AssertionError(f"the ids of a shard are known without the engine of {section}")


def _check_images(store: Store, stage: str, shard: str, check: Check) -> None:
    ids = store.kept_ids(stage, shard)
    for start in range(0, len(ids), _READ_IMAGES):
        rows = store.rows(stage, shard, ["image", "sha256"], ids[start : start + _READ_IMAGES])
        for record_id, row in rows.items():
            check.expect(
                hashlib.sha256(row["image"]).hexdigest() == row["sha256"],
                f"{stage} {shard}: the image of {record_id} is not that of its sha256",
            )


def _check_factors(store: Store, shard: str, check: Check) -> None:
    from pipeline.decompose import final_caption_stage

    stage, _ = final_caption_stage(shard)
    captions = {record_id: row["caption"] for record_id, row in store.rows(stage, shard, ["caption"]).items()}
    for record_id, row in store.rows("decompose", shard, ["caption", "caption_sha256"]).items():
        stands = captions.get(record_id)
        check.expect(
            stands is not None
            and row["caption"] == stands
            and row["caption_sha256"] == hashlib.sha256(stands.encode()).hexdigest(),
            f"decompose {shard}: the factors of {record_id} are of another caption than {stage}'s",
        )


def format_checks(checks: Sequence[Check]) -> str:
    """The checks as a table, and under it their problems, the first of each."""
    lines = [("check", "looked at", "wrong", "")]
    for check in checks:
        verdict = "ok" if not check.problems else "WRONG"
        lines.append((check.name, str(check.cases), str(len(check.problems)), verdict if check.cases else "no case"))
    parts = [_table(lines, right={1, 2})]
    for check in checks:
        more = len(check.problems) - _PROBLEMS_SHOWN
        shown = [*check.problems[:_PROBLEMS_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        if shown:
            parts.append("\n".join([f"{check.name}:", *(f"  {problem}" for problem in shown)]))
    return "\n\n".join(parts)


def _table(lines: Sequence[Sequence[str]], right: set[int]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# --- the truth ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What the simulator knows of one image.

    joints: 17 of x, y (pixels), visible (0 or 1). posture: upright | fallen | upside_down, None where nobody is shown.
    failure: what goes wrong, None where nothing does. bad: how a generated image was spoiled, or None.
    """

    joints: Sequence[Sequence[float]]
    posture: str | None
    top: str
    bottom: str
    scene: str
    action: str
    failure: str | None
    bad: str | None = None

    @property
    def visible(self) -> bool:
        """Whether a person can be seen."""
        return self.bad != "no_person" and sum(joint[2] > 0 for joint in self.joints) >= _FEWEST_JOINTS


@dataclass(frozen=True)
class Frame:
    """A real frame's times, seconds: what was asked for by the truth, what the stage asked for and got, a frame's
    length, and whether the person's true state is that of the frame's kind.
    """

    due: float
    wanted: float
    shown: float
    length: float
    state_right: bool
    odd: str | None


@dataclass(frozen=True)
class Case:
    """One image on its way: what is true of it, and what the stages said.

    judged: whether a filter judged it. scores: what the filter judged (`core.pose`). reason: why it was rejected.
    joints: of the surest person found, (17, 3), or None. caption, behavior, scene: None where nothing was said.
    kept: passed all filters.
    """

    id: str
    kind: str
    pair: str
    truth: Truth
    frame: Frame | None = None
    judged: bool = False
    scores: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    too_alike: bool | None = None
    kept: bool = False
    joints: Any = None
    caption: str | None = None
    behavior: str | None = None
    scene: str | None = None


@dataclass(frozen=True)
class Terms:
    """`verify_terms.yaml`: which words stand for what."""

    colours: Mapping[str, Sequence[str]]
    garments: Mapping[str, Sequence[str]]
    other_things: Sequence[str]
    posture: Mapping[str, Sequence[str]]
    names: Mapping[str, Sequence[str]]
    scenes: Mapping[str, Sequence[str]]
    actions: Mapping[str, Sequence[str]]
    failures: Mapping[str, Sequence[str]]
    a_fall: Sequence[str]


def load_terms(path: Path = TERMS_FILE) -> Terms:
    """The terms. Raises TypeError for a key that is missing or unknown."""
    import yaml

    return Terms(**yaml.safe_load(path.read_text("utf-8")))


def clip_truth(profile: Profile, video: str) -> dict[str, Any]:
    """What the simulator wrote of one test clip. Raises UserError where it is not there."""
    for split in profile.frames.splits:
        path = oops_root(profile) / "truth" / split / f"{video}.json"
        if path.is_file():
            return _json(path.read_text("utf-8"), path)
    raise UserError(f"the truth of clip '{video}' is not in {oops_root(profile) / 'truth'}: film the footage anew")


def image_truths(folder: Path) -> dict[str, dict[str, Any]]:
    """What the simulator wrote of its generated images, by id.

    Raises UserError where two files tell differently of one image, as after a build with other settings.
    """
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            row = _json(line, path)
            if found.setdefault(row["id"], row) != row:
                raise UserError(
                    f"{folder} tells two truths of {row['id']}: delete the folder, then run "
                    "python -m pipeline.generate --force"
                )
    return found


def _json(text: str, path: Path) -> dict[str, Any]:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): delete it and make it anew") from None


def _truth(row: Mapping[str, Any], joints: Any, posture: str | None, failure: str | None) -> Truth:
    clothes = row["clothes"]
    return Truth(
        joints=joints,
        posture=posture,
        top=clothes["top"],
        bottom=clothes["bottom"],
        scene=row["scene"],
        action=row["action"],
        failure=failure,
        bad=row.get("bad"),
    )


def read_cases(profile: Profile, build: str) -> list[Case]:
    """Every image of the build of which there is a truth, by id.

    Raises UserError where the profile's footage is real, the build is not finished, or a truth is missing.
    """
    from pipeline import stages
    from pipeline.core.store import Store

    if profile.oops.root is not None:
        raise UserError(
            f"--truth: {profile.oops.root} is real footage, whose truth nobody knows; "
            "without --truth the build itself is checked"
        )
    store = Store(stages.build_dir(profile, build))
    if store.manifest("publish", "all") is None:
        raise UserError(f"--truth: the build in {store.build_dir} is not finished: run python -m pipeline.build first")
    cases: list[Case] = []
    for shard in stages.shard_names(stages.stage("frames"), profile):
        cases += _frame_cases(profile, store, shard)
    if profile.generate.backend == _BY_SIMULATOR:
        folder = store.build_dir / "truth" / "generate"
        truths = image_truths(folder)
        for shard in stages.shard_names(stages.stage("generate"), profile):
            cases += _generated_cases(store, shard, truths, folder)
    return sorted(cases, key=lambda case: case.id)


def _generated_cases(store: Store, shard: str, truths: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[Case]:
    said = _Said(store, shard)
    for record_id, row in store.rows("generate", shard, ["kind", "pair_id"]).items():
        if record_id not in truths:
            raise UserError(f"the truth of {record_id} is not in {folder}: run python -m pipeline.generate --force")
        known = truths[record_id]
        truth = _truth(known, known["joints"], known["posture"], known["failure"])
        yield said.case(record_id, row["kind"], row["pair_id"], truth, None)


def _frame_cases(profile: Profile, store: Store, shard: str) -> Iterator[Case]:
    said = _Said(store, shard)
    columns = ["kind", "pair_id", "video", "transition_time_s", "wanted_time_s", "shown_time_s"]
    for record_id, row in store.rows("frames", shard, columns).items():
        clip = clip_truth(profile, row["video"])
        times = [frame["time"] for frame in clip["frames"]]
        at = clip["frames"][shown_index(times, row["shown_time_s"])]
        turn, before = row["transition_time_s"], row["kind"] == "goal"
        frame = Frame(
            due=turn / 2 if before else (turn + clip["duration"]) / 2,
            wanted=row["wanted_time_s"],
            shown=row["shown_time_s"],
            length=1 / clip["frame_rate"],
            state_right=at["state"] == ("before" if before else "after"),
            odd=clip["odd"],
        )
        truth = _truth(clip, at["keypoints"], at["posture"], None if before else clip["failure"])
        yield said.case(record_id, row["kind"], row["pair_id"], truth, frame)


class _Said:
    """What the stages said of the images of one shard."""

    def __init__(self, store: Store, shard: str) -> None:
        from pipeline.core.records import filtered_stage
        from pipeline.decompose import final_caption_stage

        self._poses = store.rows("keypoints", shard, ["persons", "scores"])
        self._dropped = {row["id"]: row for row in store.dropped("keypoints", shard) if row["outcome"] == "rejected"}
        last = filtered_stage(shard)
        self._kept = set(store.kept_ids(last, shard))
        self._alike: dict[str, bool] = {}
        if last == "similarity":
            from pipeline.similarity import TOO_ALIKE

            self._alike = dict.fromkeys(self._kept, False)
            self._alike |= {row["id"]: True for row in store.dropped(last, shard) if row["reason"] == TOO_ALIKE}
        self._captions = store.rows(final_caption_stage(shard)[0], shard, ["caption"])
        self._labels = store.rows("attributes", shard, ["action", "anomaly", "scene"])

    def case(self, record_id: str, kind: str, pair: str, truth: Truth, frame: Frame | None) -> Case:
        import numpy as np

        pose, dropped = self._poses.get(record_id), self._dropped.get(record_id)
        scores = pose["scores"] if pose else dropped["detail"] if dropped else "{}"
        labels = self._labels.get(record_id, {"action": None, "anomaly": None, "scene": None})
        persons = pose["persons"] if pose else []
        return Case(
            id=record_id,
            kind=kind,
            pair=pair,
            truth=truth,
            frame=frame,
            judged=pose is not None or dropped is not None,
            scores=json.loads(scores),
            reason=dropped["reason"] if dropped else None,
            too_alike=self._alike.get(record_id),
            kept=record_id in self._kept,
            joints=np.array(persons[0]["keypoints"]).reshape(-1, 3) if persons else None,
            caption=self._captions.get(record_id, {}).get("caption"),
            behavior=labels["action"] if kind == "goal" else labels["anomaly"],
            scene=labels["scene"],
        )


# --- the figures --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One line of the report: a share (0..1) or, where `unit` says so, another number; the cases behind it.

    at_least: the target, None where the figure is only reported. value: None where there was no case.
    """

    group: str
    name: str
    value: float | None
    of: int
    at_least: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or without a case."""
        return None if self.at_least is None or self.value is None else self.value >= self.at_least


def _figure(group: str, name: str, found: Share, at_least: float | None = None, note: str = "") -> Figure:
    return Figure(group, name, None if found.value is None else round(found.value, 6), found.of, at_least, note)


def truth_figures(profile: Profile, cases: Sequence[Case], terms: Terms) -> list[Figure]:
    """All figures that need nothing but the cases, in the order of the report."""
    kept = [case for case in cases if case.kept]
    return [
        *_frames(cases),
        *_people(profile, cases),
        *_structure(cases),
        *_pose(kept),
        *_pairs(cases),
        *_colours(kept, terms),
        *_postures(kept, terms),
        *_labels(kept, terms),
        *_captions(kept, terms),
    ]


def _frames(cases: Sequence[Case]) -> list[Figure]:
    frames = [case.frame for case in cases if case.frame is not None]
    on_time = share(abs(each.shown - each.wanted) <= each.length + 1e-6 for each in frames)
    due = share(abs(each.shown - each.due) <= each.length + 1e-6 for each in frames)
    states = share(each.state_right for each in frames if each.odd != "static")
    return [
        _figure("frames", "shown within a frame of the time asked for", on_time, 1.0),
        _figure("frames", "shown within a frame of the middle by the truth's duration", due, 1.0),
        _figure("frames", "the person's state is before / after", states, 0.95, "static clips have no after"),
    ]


def _people(profile: Profile, cases: Sequence[Case]) -> list[Figure]:
    """The people filter on frames, where the build used it, and repeated on the scores of the generated images."""
    from pipeline.core.pose import PeopleThresholds, decide_people

    thresholds = PeopleThresholds(**profile.keypoints.people.model_dump())
    judged = [case for case in cases if case.judged]
    found = [(decide_people(case.scores, thresholds) is None, case) for case in judged]
    # Frames without a person are few or none: without the generated ones among them no filter could be imprecise.
    precision, _ = precision_recall((said, case.truth.visible) for said, case in found)
    nobody = sum(not case.truth.visible for case in judged)
    figures = [_figure("people filter", "precision", precision, 0.95, f"{nobody} of {len(judged)} show nobody")]
    for name, is_frame in (("frames", True), ("generated images", False)):
        own = [(said, case.truth) for said, case in found if (case.frame is not None) == is_frame]
        for posture, target in zip(_POSTURES, (0.92, 0.75, None), strict=True):
            recall = share(said for said, truth in own if truth.visible and truth.posture == posture)
            figures.append(_figure("people filter", f"recall {posture.replace('_', ' ')}, {name}", recall, target))
    return figures


def _structure(cases: Sequence[Case]) -> list[Figure]:
    own = [case for case in cases if case.frame is None and case.judged]
    figures = []
    for defect, reason, target in (
        ("no_person", "no_person", 0.9),
        ("cut_off", "cut_off", 0.9),
        ("torn", "broken_body", None),
    ):
        precision, recall = precision_recall((case.reason == reason, case.truth.bad == defect) for case in own)
        dropped = share(case.reason is not None for case in own if case.truth.bad == defect)
        wrong = share(case.truth.bad is None for case in own if case.reason == reason)
        name = defect.replace("_", " ")
        note = f"{wrong.right} of {wrong.of} are sound images"
        figures += [
            _figure("structure filter", f"{name}, precision", precision, target, note),
            _figure("structure filter", f"{name}, recall", recall, target),
            _figure("structure filter", f"{name}, dropped for any reason", dropped),
        ]
    for posture in _POSTURES:
        sound = share(case.reason is None for case in own if case.truth.bad is None and case.truth.posture == posture)
        figures.append(_figure("structure filter", f"sound and {posture.replace('_', ' ')}, kept", sound))
    return figures


def _pose(kept: Sequence[Case]) -> list[Figure]:
    found: dict[str, Share] = {name: Share(0, 0) for name in (*_POSTURES, "whole", "all")}
    torn = sum(case.truth.bad == "torn" for case in kept)
    for case in kept:
        if not case.truth.visible or case.truth.posture is None:
            continue
        near = joints_found(case.joints, case.truth.joints, _REACH * body_size(case.truth.joints))
        # The truth has a torn body's joints where they would be if it were whole, not where its limbs are drawn.
        for name in ("all",) if case.truth.bad == "torn" else (case.truth.posture, "whole", "all"):
            found[name] += near
    whole = _figure(
        "pose", "joints within 10 % of the person's height", found["whole"], 0.85, f"{torn} torn bodies left out"
    )
    return [
        whole,
        *(_figure("pose", f"  of them {each.replace('_', ' ')}", found[each]) for each in _POSTURES),
        _figure("pose", "  with the torn bodies", found["all"]),
    ]


def _pairs(cases: Sequence[Case]) -> list[Figure]:
    pairs = {case.pair: case for case in cases if case.frame is not None and case.too_alike is not None}
    judged = [(case.frame.odd, bool(case.too_alike)) for case in pairs.values() if case.frame is not None]
    return [
        _figure("pair filter", "static clips dropped", share(alike for odd, alike in judged if odd == "static"), 1.0),
        _figure("pair filter", "real failures kept", share(not alike for odd, alike in judged if odd is None), 0.95),
    ]


def _colours(kept: Sequence[Case], terms: Terms) -> list[Figure]:
    figures = []
    for part, other in (("top", "bottom"), ("bottom", "top")):
        named = [
            (
                getattr(case.truth, part),
                colour_of(
                    case.caption or "",
                    terms.garments[part],
                    terms.colours,
                    [*terms.garments[other], *terms.other_things],
                ),
                case.truth.visible,
            )
            for case in kept
        ]
        right = share(true == said and seen for true, said, seen in named)
        unnamed = sum(said is None for _, said, _ in named)
        figures.append(_figure("colours", part, right, 0.9, f"{unnamed} not named"))
        figures.append(
            _figure("colours", f"  {part} where one is named", share(true == said for true, said, _ in named if said))
        )
    return figures


def _postures(kept: Sequence[Case], terms: Terms) -> list[Figure]:
    said = [(case.truth.posture, first_said(case.caption or "", terms.posture)) for case in kept]
    unnamed = sum(told is None for _, told in said)
    right = share(true is not None and true == told for true, told in said)
    figures = [_figure("posture", "upright / fallen / upside down", right, 0.9, f"{unnamed} not named")]
    return figures + [
        _figure(
            "posture", f"  of them {each.replace('_', ' ')}", share(told == true for true, told in said if true == each)
        )
        for each in _POSTURES
    ]


def _labels(kept: Sequence[Case], terms: Terms) -> list[Figure]:
    scenes = [(_accepted(terms.scenes, case.truth.scene), case.scene) for case in kept]
    actions = [(_accepted(terms.actions, case.truth.action), case.behavior) for case in kept if case.kind == "goal"]
    failed = [case for case in kept if case.kind != "goal" and case.truth.failure is not None]
    failures = [(_accepted(terms.failures, str(case.truth.failure)), case.behavior) for case in failed]
    general = share(label in [*words, *terms.a_fall] for words, label in failures)
    return [
        *(
            _figure("labels", name, share(label in words for words, label in said), 0.85, f"{_none(said)} without")
            for name, said in (("scene", scenes), ("action", actions), ("anomaly", failures))
        ),
        _figure("labels", "  anomaly, any fall counted as right", general),
    ]


def _none(said: Iterable[tuple[Sequence[str], str | None]]) -> int:
    return sum(label is None for _, label in said)


def _accepted(table: Mapping[str, Sequence[str]], truth: str) -> Sequence[str]:
    if truth not in table:
        raise UserError(f"{TERMS_FILE.name} has no words for '{truth}': add them")
    return table[truth]


def _captions(kept: Sequence[Case], terms: Terms) -> list[Figure]:
    captions = [case.caption for case in kept if case.caption]
    garments = [*terms.garments["top"], *terms.garments["bottom"]]
    words = {
        "appearance": [*terms.names["appearance"], *garments],
        "action": terms.names["action"],
        "place": terms.names["place"],
    }
    named = {name: [says(caption, phrases) for caption in captions] for name, phrases in words.items()}
    lengths = share(_FEWEST_WORDS <= len(caption.split()) <= _MOST_WORDS for caption in captions)
    openings = Share(len({opening(caption) for caption in captions}), len(captions))
    return [
        _figure("captions", f"{_FEWEST_WORDS} to {_MOST_WORDS} words", lengths, 1.0),
        _figure("captions", "distinct", Share(len(set(captions)), len(captions)), 0.95),
        _figure("captions", "distinct openings of three words", openings, None, f"{openings.right} of them"),
        *(_figure("captions", f"naming {name}", share(answers), 0.95) for name, answers in named.items()),
        _figure("captions", "naming all three", share(map(all, zip(*named.values(), strict=True))), 0.95),
    ]


def keep_rate_figures(profile: Profile, build: str) -> list[Figure]:
    """The share of generated images that came into the dataset, by kind, beside PAB's."""
    from pipeline import delivery, stages
    from pipeline.core.card import PAPER_KEEP_RATES
    from pipeline.core.store import Store

    store = Store(stages.build_dir(profile, build))
    shards = stages.shard_names(stages.stage("generate"), profile)
    return [
        _figure(
            "keep rates",
            each.kind,
            Share(each.published, each.generated),
            None,
            f"PAB {PAPER_KEEP_RATES[each.kind]:.0%}",
        )
        for each in delivery.kind_counts(store, shards)
    ]


def format_figures(figures: Sequence[Figure]) -> str:
    """The figures as a table for a terminal."""
    lines = [("", "figure", "value", "target", "cases", "", "")]
    group = None
    for each in figures:
        value = "-" if each.value is None else f"{100 * each.value:.1f} %"
        target = "" if each.at_least is None else f"{100 * each.at_least:.0f} %"
        verdict = {True: "met", False: "MISSED", None: "no case" if each.value is None else ""}[each.met]
        lines.append(
            (each.group if each.group != group else "", each.name, value, target, str(each.of), verdict, each.note)
        )
        group = each.group
    return _table(lines, right={2, 3, 4})


def write_report(profile: Profile, build: str, figures: Sequence[Figure]) -> Path:
    """Write the figures as JSON into the build's folder, with the key of the publish shard. Returns the path."""
    from pipeline import stages
    from pipeline.core.store import Store, write_atomically

    path = stages.build_dir(profile, build) / REPORT_NAME
    manifest = Store(path.parent).manifest("publish", "all")
    rows = [{**asdict(each), "met": each.met} for each in figures]
    missed = [f"{each.group}: {each.name.strip()}" for each in figures if each.met is False]
    data = {"build": build, "key": manifest["key"] if manifest else None, "missed": missed, "figures": rows}
    write_atomically(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.verify`. Returns the exit code: 1 where a check fails or a target is missed."""
    from pipeline import cli

    parser = cli.common_parser(
        "pipeline.verify", "Check a finished build, or measure it against the simulator's truth."
    )
    parser.add_argument("--truth", action="store_true", help="measure against what the simulator knows of its pictures")
    options = parser.parse_args(argv)

    def run() -> int:
        profile, build = cli.profile_and_build(options)
        if not options.truth:
            checks = check_build(profile, build)
            print(format_checks(checks))
            return cli.SOME_FAILED if any(check.problems for check in checks) else cli.DONE
        from pipeline import delivery
        from pipeline.core.store import Store

        cases = read_cases(profile, build)
        figures = [*truth_figures(profile, cases, load_terms()), *keep_rate_figures(profile, build)]
        print(format_figures(figures))
        path = write_report(profile, build, figures)
        missed = sum(each.met is False for each in figures)
        print(f"\n{missed} of {sum(each.met is not None for each in figures)} targets missed; written to {path}")
        store = Store(path.parent)
        print(delivery.card_message(profile, delivery.refresh_card(profile, store)))
        return cli.SOME_FAILED if missed else cli.DONE

    return cli.guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
