"""Measures the embedded engines on real pictures and on sentences labelled by hand.

python -m bench.stages [--profile demo] [--real FOLDER] [--wrong]

The sentences and labels lie in tests/cases/text. The pictures are not part of the project: FOLDER holds
`real_people/` (four photographs of COCO with `keypoints.json`) and `real_oops/oops_video/` (clips of OOPS!); without it
what needs them is not measured, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.labelled import HALVES, box_overlap, matching_person, plain_caption, read_labels, score_splits
from pipeline.backends import registry
from pipeline.backends.protocols import BackendContext, CaptionRequest, Person
from pipeline.core.errors import UserError
from pipeline.core.measures import Share, body_size, colour_of, first_said, joints_found, share
from pipeline.core.profile import Profile, load_profile
from pipeline.core.prompts import load_prompt
from pipeline.verify import Figure, Terms, format_figures, load_terms

_REACH = 0.1
"""Of the person's height: how far from its place a joint may be found."""
_FEWEST_JOINTS = 10
"""Joints an annotated person must have to be asked for: of a hand at the picture's edge nobody expects a pose."""
_MARGIN = 0.25
"""Of a labelled box's sides: how much of its surroundings a captioner is shown."""


@dataclass(frozen=True)
class Measured:
    """Figures, and a line for each wrong answer."""

    figures: list[Figure]
    wrong: list[str]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a target is missed, 2 for wrong input."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default="demo", help="whose engines are measured (default: demo)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a profile value")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="real_people/ and real_oops/ are in here")
    parser.add_argument("--wrong", action="store_true", help="also print every wrong answer")
    options = parser.parse_args(argv)
    try:
        measured = list(measure(load_profile(options.profile, options.set), options.real))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures = [figure for each in measured for figure in each.figures]
    print(format_figures(figures))
    if options.wrong:
        for each in measured:
            print("\n".join(["", *each.wrong]))
    if options.real is None:
        print("\nreal pictures: not measured; give --real FOLDER (see --help)")
    return 1 if any(figure.met is False for figure in figures) else 0


def measure(profile: Profile, real: Path | None) -> Iterator[Measured]:
    """All groups of figures. Raises UserError where the folder of real pictures lacks one."""
    yield subjects(engine_of(profile, "sources"))
    yield factors(engine_of(profile, "decompose"))
    if real is not None:
        estimator = engine_of(profile, "keypoints")
        yield joints(estimator, real)
        yield real_people(estimator, engine_of(profile, "recaption"), load_terms(), real)


def engine_of(profile: Profile, section: str) -> Any:
    """The engine that a profile names for a section."""
    chosen = getattr(profile, section)
    return registry.create(section, chosen.backend, BackendContext(chosen.settings, Path(), Path()))


def figure(group: str, name: str, found: Share, at_least: float | None = None, note: str = "") -> Figure:
    """A share as a line of the table."""
    return Figure(group, name, None if found.value is None else round(found.value, 6), found.of, at_least, note)


def subjects(reader: Any) -> Measured:
    """Share of sentences whose subject was rightly told to be a person or not."""
    rows = read_labels("subject_100")
    groups: list[tuple[str, list[dict[str, Any]], float | None]] = [
        *(
            (half, [row for row in rows if row["half"] == half], 0.95 if half == "untouched" else None)
            for half in HALVES
        ),
        ("the cases", read_labels("subject_filter"), None),
    ]
    figures, wrong = [], []
    for name, own, target in groups:
        answers = reader.subjects_are_people([row["caption"] for row in own])
        right = [answer == (row["expect"] == "keep") for row, answer in zip(own, answers, strict=True)]
        figures.append(figure("subject filter", name, share(right), target))
        # The untouched half stays untouched: what is wrong in it is counted, not shown.
        if name != "untouched":
            wrong += [f"subject, {row['expect']}: {row['caption']}"
                      for row, fine in zip(own, right, strict=True) if not fine]  # fmt: skip
    return Measured(figures, wrong)


def factors(decomposer: Any) -> Measured:
    """Content words of hand-marked captions by where the decomposer put them."""
    rows = read_labels("factors_60")
    prompt = load_prompt("decompose").text
    figures, wrong = [], []
    for half in HALVES:
        marked = [row["marked"] for row in rows if row["half"] == half]
        score = score_splits(marked, decomposer.decompose([plain_caption(text) for text in marked], prompt))
        judged = half == "untouched"
        figures += [
            figure("decomposition", f"{half}: in the right factor", score.right, 0.9 if judged else None),
            figure("decomposition", f"{half}: in some factor", score.somewhere, 0.97 if judged else None),
            *(figure("decomposition", f"{half}: {name}", found) for name, found in score.factors.items()),
        ]
        for name, count in (("no word in two factors", score.doubled), ("no word the caption lacks", score.added)):
            captions = Share(len(marked) - count, len(marked))
            figures.append(figure("decomposition", f"{half}: {name}", captions, 1.0 if judged else None))
        if not judged:
            wrong += [f"factors: {line}" for line in score.wrong]
    return Measured(figures, wrong)


def joints(estimator: Any, real: Path) -> Measured:
    """People found of people annotated in the photographs, and their joints within a tenth of their height."""
    data = json.loads(_file(real, "real_people/keypoints.json").read_text("utf-8"))
    found_people, found_joints = Share(0, 0), Share(0, 0)
    wrong = []
    for image in data["images"]:
        name = f"real_people/{image['file_name']}"
        persons = estimator.estimate([read_picture(real, name, None)])[0]
        for number, each in enumerate(data["annotations"]):
            if each["image_id"] != image["id"] or each["num_keypoints"] < _FEWEST_JOINTS:
                continue
            truth = np.array(each["keypoints"], dtype=np.float64).reshape(17, 3)
            reach = _REACH * body_size(truth[truth[:, 2] > 0])
            results = [joints_found(person.keypoints, truth, reach) for person in persons]
            best = max(results, key=lambda result: result.right, default=joints_found(None, truth, reach))
            is_found = 2 * best.right >= best.of
            found_people += Share(is_found, 1)
            if is_found:
                found_joints += best
            else:
                wrong.append(f"pose: person {number} of {name}: {best.right} of {best.of} joints")
    return Measured(
        [
            figure("real pose", "people found (half their joints in place)", found_people),
            figure("real pose", "joints of those found, within a tenth of the height", found_joints),
        ],
        wrong,
    )


def real_people(estimator: Any, captioner: Any, terms: Terms, real: Path) -> Measured:
    """Hand-labelled people: found, posture, colours of top and bottom as the captioner says them, people counted.

    The captioner is shown the person with some of the surroundings, and its words are read as those of a build are.
    """
    rows = read_labels("real_people_20")
    prompt = load_prompt("caption").text
    counts: dict[str, list[bool]] = {
        name: [] for name in ("person found", "posture", "colour of the top", "colour of the bottom")
    }
    counted: dict[tuple[str, float | None], bool] = {}
    wrong = []

    def note(name: str, right: bool, row: dict[str, Any], said: object) -> None:
        counts[name].append(right)
        if not right:
            wrong.append(f"real people: {row['id']} ({row['person']}), {name}: {said}")

    for row in rows:
        image = read_picture(real, row["file"], row["time_s"])
        persons = estimator.estimate([image])[0]
        picture = (row["file"], row["time_s"])
        if picture not in counted:
            counted[picture] = len(persons) == row["people_in_image"]
            if not counted[picture]:
                wrong.append(f"real people: {row['file']}: {len(persons)} people of {row['people_in_image']} found")
        match = matching_person(row["box"], persons)
        note("person found", match is not None, row, f"{len(persons)} others found" if persons else "nobody found")
        if match is None:
            continue
        view, shift = crop(image, row["box"])
        own = [moved(person, shift) for person in (persons[match], *persons[:match], *persons[match + 1 :])]
        near = [person for person in own if is_in(person, view.shape[1], view.shape[0])]
        request = CaptionRequest(row["id"], view, tuple(near or own[:1]), "normal", None, prompt)
        caption = captioner.caption([request])[0].text or ""
        note("posture", first_said(caption, terms.posture) == row["posture"], row, caption)
        for part, garments in terms.garments.items():
            if row[part] is not None:
                said = colour_of(caption, garments, terms.colours, terms.other_things)
                accepted = ["grey" if colour == "gray" else colour for colour in row[part]["colours"]]
                note(f"colour of the {part}", said in accepted, row, f"{said}, not {' or '.join(accepted)}: {caption}")
    figures = [figure("real people", name, share(answers)) for name, answers in counts.items()]
    figures.append(figure("real people", "pictures whose people are counted right", share(counted.values())))
    return Measured(figures, wrong)


def read_picture(real: Path, name: str, time_s: float | None) -> np.ndarray:
    """A photograph, or the frame of a clip shown at a time; uint8 (H, W, 3) RGB. Raises UserError where it is not."""
    import cv2

    path = _file(real, name)
    if time_s is None:
        image = cv2.imread(str(path))
    else:
        clip = cv2.VideoCapture(str(path))
        wanted = round(time_s * clip.get(cv2.CAP_PROP_FPS))
        image = None
        for _ in range(wanted + 1):
            is_there, image = clip.read()
            if not is_there:
                image = None
                break
        clip.release()
    if image is None:
        raise UserError(f"{path}: no picture{'' if time_s is None else f' at {time_s} s'} in it")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def _file(real: Path, name: str) -> Path:
    path = real / name
    if not path.is_file():
        raise UserError(f"--real {real}: {name} is not there; real_people/ and real_oops/ must be (see --help)")
    return path


def crop(image: np.ndarray, box: Sequence[float]) -> tuple[np.ndarray, tuple[int, int]]:
    """The part of an image around a box, with a margin, and its upper left corner (x, y) in pixels."""
    height, width = image.shape[:2]
    across, down = _MARGIN * (box[2] - box[0]), _MARGIN * (box[3] - box[1])
    x0, y0 = max(0, int(box[0] - across)), max(0, int(box[1] - down))
    x1, y1 = min(width, int(box[2] + across)), min(height, int(box[3] + down))
    return image[y0:y1, x0:x1], (x0, y0)


def moved(person: Person, shift: tuple[int, int]) -> Person:
    """The person in an image whose upper left corner was at `shift`."""
    keypoints = person.keypoints - np.array([*shift, 0], dtype=person.keypoints.dtype)
    x0, y0, x1, y1 = person.box
    return Person(keypoints, (x0 - shift[0], y0 - shift[1], x1 - shift[0], y1 - shift[1]), person.score)


def is_in(person: Person, width: int, height: int) -> bool:
    """Whether most of a person's box lies in an image of this size."""
    x0, y0, x1, y1 = person.box
    inside = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
    return inside[2] > inside[0] and inside[3] > inside[1] and box_overlap(person.box, inside) > 0.5


if __name__ == "__main__":
    raise SystemExit(main())
