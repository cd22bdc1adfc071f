"""Sweeps a filter's thresholds over what it measured in a finished build, and proposes values.

`python -m pipeline.calibrate keypoints` decides again for many values of every threshold, the others as they stand. No
engine is asked. It prints a table for each threshold, draws a histogram of the score that it cuts, and with `--write`
puts the proposed values into a copy of the profile.

What is proposed, for each threshold alone:
* where it is known which records should be kept (simulated footage and images): the value of the best F1 of "should be
  kept", with `--min-recall R` among the values that keep the share R of them. Values that are not clearly worse count
  as equally good (`core.thresholds.as_good`): the present one stands if it is among them, else the middle of their
  widest run of neighbours is taken, as a round number where there is one;
* with `--keep-rate S`: the value that keeps nearest to the share S;
* else the bottom of the deepest valley of the score's histogram, and nothing where it has a single hill or where the
  threshold only steers what other rules count.

What should be kept: a generated image that was not spoiled; a picture on which somebody can be seen, for which the
people filter is tried on the generated images as well, since hardly any frame is without a person; a pair that shows a
real failure, where static clips should go and other clips that are no use do not count.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline import filters
from pipeline.core import thresholds
from pipeline.core.card import PAPER_KEEP_RATES
from pipeline.core.errors import UserError
from pipeline.core.measures import precision_recall
from pipeline.core.profile import PROFILES_DIR, Profile, load_profile
from pipeline.core.store import Store, write_atomically
from pipeline.core.thresholds import Rules
from pipeline.filters import Judged
from pipeline.report import text_table
from schemas.records import KINDS

if TYPE_CHECKING:
    from PIL import Image

RECORDS = 5000
"""Records looked at where a build has more; which ones, their ids decide."""
_ROWS = 21
_KIND_ORDER = (*KINDS, "generated", "pair")
_STEERING_VALUES = 32
"""Values tried of a threshold at which every record has to be decided anew."""


@dataclass(frozen=True)
class Known:
    """What is known of one judged record: whether it should be kept (None: it does not count), and what it is."""

    sound: bool | None
    name: str


@dataclass(frozen=True)
class Case:
    """One record with its score for the threshold that is swept; score None: no value lets it pass."""

    judged: Judged
    known: Known | None
    score: float | None


@dataclass(frozen=True)
class Row:
    """One value of a sweep. kept, of: by kind. The figures are None where nothing is known of the records."""

    value: float
    kept: Mapping[str, int]
    of: Mapping[str, int]
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None

    @property
    def keep_rate(self) -> float:
        """The kept share of all records, 0..1."""
        return sum(self.kept.values()) / max(1, sum(self.of.values()))


@dataclass(frozen=True)
class Sweep:
    """One threshold over its values, rising. proposed: None where nothing is; why says how it came to that."""

    rules: Rules
    name: str
    cases: tuple[Case, ...]
    rows: tuple[Row, ...]
    proposed: float | None
    why: str

    @property
    def path(self) -> str:
        """Where the profile has it, e.g. `keypoints.people.min_joints`."""
        return f"{self.rules.name}.{self.name}"

    @property
    def present(self) -> float:
        return self.rules.thresholds[self.name].value

    def row(self, value: float) -> Row:
        """The row of a value that was tried."""
        return next(row for row in self.rows if row.value == value)


@dataclass(frozen=True)
class Wish:
    """How a value is to be chosen; see the module's text."""

    keep_rate: float | None = None
    min_recall: float | None = None


# --- what is known ------------------------------------------------------------------------------------------------


def known_of(profile: Profile, build: str) -> tuple[dict[str, dict[str, Known]], str]:
    """By section what is known of each record or pair that it judges, and where nothing is, a line that says why."""
    from pipeline import stages, verify

    if profile.oops.root is not None:
        return {}, f"{profile.oops.root} is real footage, of which nobody knows what should be kept"
    if Store(stages.build_dir(profile, build)).manifest("publish", "all") is None:
        return {}, "the build is not finished, so that nothing is known of what should be kept"
    people, structure, pairs = {}, {}, {}
    for case in verify.read_cases(profile, build):
        people[case.id] = Known(case.truth.visible, "somebody" if case.truth.visible else "nobody")
        if case.frame is None:
            bad = case.truth.bad
            structure[case.id] = Known(bad is None, bad.replace("_", " ") if bad else "sound")
        else:
            odd = case.frame.odd
            known = {None: Known(True, "real failure"), "static": Known(False, "static")}
            pairs[case.pair] = known.get(odd, Known(None, f"{odd} clip"))
    found = {"keypoints.people": people, "keypoints.structure": structure, "similarity": pairs}
    return {section: known for section, known in found.items() if known}, ""


# --- the sweep ----------------------------------------------------------------------------------------------------


def sweep(rules: Rules, name: str, judged: Sequence[Judged], known: Mapping[str, Known], wish: Wish) -> Sweep:
    """One threshold over the values worth trying. known: by id, empty where nothing is known.

    Raises UserError for a wish that cannot be granted without knowing what should be kept.
    """
    cases = tuple(Case(each, known.get(each.id), thresholds.score(rules, each.detail, name)) for each in judged)
    counts = bool(_sound(cases)[0].any())
    if wish.min_recall is not None and not counts:
        raise UserError("--min-recall: nothing is known of what should be kept; use --keep-rate")
    scores = [case.score for case in cases]
    each = rules.thresholds[name]
    values = thresholds.values_to_try(rules, name, scores, _STEERING_VALUES if each.steering else 100)
    bottom = None
    if not counts and wish.keep_rate is None and not each.steering:
        bottom = thresholds.valley([found for found in scores if found is not None], each.whole)
        bottom = bottom if bottom is not None and rules.allows(name, bottom) else None
        values = values if bottom is None else sorted({*values, bottom})
    kept = np.array([thresholds.kept_at(rules, case.judged.detail, name, values) for case in cases], dtype=bool)
    kept = kept.reshape(len(cases), len(values))
    rows = _counted(cases, kept, values)
    if wish.keep_rate is not None:
        proposed, why = _by_keep_rate(rows, wish.keep_rate)
    elif counts:
        proposed, why = _by_f1(rows, kept, cases, each.value, wish.min_recall)
    else:
        proposed, why = _by_valley(bottom, each.steering)
    return Sweep(rules, name, cases, tuple(rows), proposed, why)


def _by_valley(bottom: float | None, steering: bool) -> tuple[float | None, str]:
    if bottom is not None:
        return bottom, "the deepest valley of the scores"
    if steering:
        return None, "nothing is proposed: it steers other rules, for which a valley would say nothing"
    return None, "nothing is proposed: the scores have a single hill, so no valley"


def _sound(cases: Sequence[Case]) -> tuple[np.ndarray, np.ndarray]:
    """Of which cases it is known whether they should be kept, and which should: two bool (cases,)."""
    counts = [case.known is not None and case.known.sound is not None for case in cases]
    sound = [case.known is not None and bool(case.known.sound) for case in cases]
    return np.array(counts, dtype=bool), np.array(sound, dtype=bool)


def _counted(cases: Sequence[Case], kept: np.ndarray, values: Sequence[float]) -> list[Row]:
    """kept: bool (cases, values)."""
    kinds = np.array([case.judged.kind for case in cases])
    names = sorted(set(kinds.tolist()), key=_KIND_ORDER.index)
    of = {kind: int((kinds == kind).sum()) for kind in names}
    known, sound = _sound(cases)
    f1 = thresholds.f1_of(kept[known], sound[known])
    rows = []
    for column, value in enumerate(values):
        own = kept[:, column]
        by_kind = {kind: int(own[kinds == kind].sum()) for kind in names}
        if not known.any():
            rows.append(Row(value, by_kind, of))
            continue
        precision, recall = precision_recall(zip(own[known].tolist(), sound[known].tolist(), strict=True))
        rows.append(Row(value, by_kind, of, precision.value, recall.value, float(f1[column])))
    return rows


def _by_keep_rate(rows: Sequence[Row], wanted: float) -> tuple[float | None, str]:
    found = thresholds.nearest_keep_rate([row.value for row in rows], [row.keep_rate for row in rows], wanted)
    reached = next((row.keep_rate for row in rows if row.value == found), 0.0)
    missed = "" if abs(reached - wanted) < 0.02 else ", which no value reaches"
    return found, f"nearest to keeping {_percent(wanted)}{missed}"


def _by_f1(
    rows: Sequence[Row], kept: np.ndarray, cases: Sequence[Case], present: float, min_recall: float | None
) -> tuple[float | None, str]:
    figures = np.array([row.f1 or 0.0 for row in rows])
    may = np.array([min_recall is None or (row.recall or 0.0) >= min_recall for row in rows], dtype=bool)
    least = "" if min_recall is None else f" with a recall of {_percent(min_recall)} or more"
    if not may.any():
        return None, f"nothing is proposed: no value has{least.removeprefix(' with')}"
    best = int(np.argmax(np.where(may, figures, -1.0)))
    if figures[best] == 0:
        return None, "nothing is proposed: no value keeps a record that should be kept"
    known, sound = _sound(cases)
    good = may & thresholds.as_good(kept[known], sound[known], best)
    values = [row.value for row in rows]
    if good[values.index(present)]:
        return present, f"no value{least} is clearly better"
    return thresholds.middle_of_widest(values, good.tolist()), f"the best F1{least}, or not clearly worse"


def together(rules: Rules, cases: Sequence[Case], values: Mapping[str, float], label: float = math.nan) -> Row:
    """What the filter comes to with several values changed at once."""
    kept = [[rules.verdict(case.judged.detail, values) is None] for case in cases]
    return _counted(cases, np.array(kept, dtype=bool).reshape(len(cases), 1), [label])[0]


def chosen_values(sweeps: Sequence[Sweep], wish: Wish) -> tuple[dict[str, float], list[str], Row]:
    """The proposed values of one filter that are good together: (by name, names left out, what it comes to).

    Each was found with the others as they stand. Those chosen by F1 are taken up by their own gain, the greatest first,
    and one that beside those before it would lower F1, or recall below the least that is wished for, is left out.
    """
    rules, cases = sweeps[0].rules, sweeps[0].cases
    proposed = {
        each.name: each.proposed for each in sweeps if each.proposed is not None and each.proposed != each.present
    }
    best = together(rules, cases, {})
    if best.f1 is None or wish.keep_rate is not None:
        return proposed, [], together(rules, cases, proposed)

    def merit(row: Row) -> tuple[float, float]:
        recall = min(row.recall or 0.0, wish.min_recall or 0.0)
        return round(recall, 12), round(row.f1 or 0.0, 12)

    gains = {each.name: merit(each.row(each.proposed)) for each in sweeps if each.proposed is not None}
    values: dict[str, float] = {}
    left_out = []
    for name in sorted(sorted(proposed), key=lambda each: gains[each], reverse=True):
        row = together(rules, cases, {**values, name: proposed[name]})
        if merit(row) >= merit(best):
            values[name], best = proposed[name], row
        else:
            left_out.append(name)
    return values, left_out, best


# --- what a person reads ------------------------------------------------------------------------------------------


def format_sweep(found: Sweep) -> str:
    """The sweep as a table for a terminal; of many values the marked ones and some between them."""
    rule = "dropped above" if found.rules.thresholds[found.name].at_most else "dropped below"
    marked = {found.present: "present"}
    if found.proposed is not None:
        marked[found.proposed] = "present and proposed" if found.proposed == found.present else "proposed"
    kinds = list(found.rows[0].of) if found.rows else []
    known = any(row.f1 is not None for row in found.rows)
    head = ["value", *(f"{kind} kept" for kind in kinds), *(["precision", "recall", "F1"] if known else []), ""]
    lines = [head]
    for row in _some_rows(found.rows, set(marked)):
        figures = [_percent(row.precision), _percent(row.recall), _percent(row.f1)] if known else []
        shares = [_percent(row.kept[kind] / row.of[kind]) for kind in kinds]
        lines.append([f"{row.value:g}", *shares, *figures, marked.get(row.value, "")])
    if found.proposed is None:
        told = found.why
    elif found.proposed == found.present:
        told = f"{found.present:g} stands: {found.why}"
    else:
        told = f"proposed {found.proposed:g} in place of {found.present:g}: {found.why}"
        if known:
            told += f"; F1 {_percent(found.row(found.present).f1)} -> {_percent(found.row(found.proposed).f1)}"
    counts = ", ".join(f"{number} {kind}" for kind, number in (found.rows[0].of.items() if found.rows else ()))
    table = text_table(lines, set(range(len(head) - 1)))
    generated = kinds if found.rules.name == "keypoints.structure" else ()
    if paper := [f"{kind} {PAPER_KEEP_RATES[kind]:.0%}" for kind in generated if kind in PAPER_KEEP_RATES]:
        table += f"\nPAB kept {', '.join(paper).replace('%', ' %')}"
    return f"{found.path} ({rule}; {counts or 'no record'})\n{table}\n{told}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _some_rows(rows: Sequence[Row], marked: set[float]) -> list[Row]:
    """The marked rows and others between them, so that the kept share changes by about as much from row to row."""
    if len(rows) <= _ROWS:
        return list(rows)
    span = max(1e-9, max(row.keep_rate for row in rows) - min(row.keep_rate for row in rows))
    width = max(1e-9, rows[-1].value - rows[0].value)
    way = [0.0]
    for before, after in itertools.pairwise(rows):
        step = abs(after.keep_rate - before.keep_rate) / span + (after.value - before.value) / width
        way.append(way[-1] + step)
    wanted = {
        min(range(len(rows)), key=lambda at: abs(way[at] - way[-1] * part / (_ROWS - 3))) for part in range(_ROWS - 2)
    }
    return [row for index, row in enumerate(rows) if index in wanted or row.value in marked]


def draw_histogram(found: Sweep) -> Image.Image | None:
    """The scores that the threshold cuts, by what the records are known to be, else by the verdict as it stands; None
    where no record has a score.
    """
    from pipeline.core.sheet import Mark, Series, histogram

    threshold = found.rules.thresholds[found.name]
    groups: dict[tuple[bool | None, str], list[float | None]] = {}
    for case in found.cases:
        reason = found.rules.verdict(case.judged.detail) if case.known is None else None
        group = (case.known.sound, case.known.name) if case.known else (None, "dropped" if reason else "kept")
        groups.setdefault(group, []).append(case.score)
    order = sorted(groups, key=lambda group: ({True: 0, None: 1, False: 2}[group[0]], group[1] == "dropped", group[1]))
    series = []
    for good, name in order:
        scores = tuple(each for each in groups[good, name] if each is not None)
        series.append(Series(name, scores, good, len(groups[good, name]) - len(scores)))
    without = sum(each.without for each in series)
    if without == len(found.cases):
        return None
    marks = [Mark(found.present, f"present {found.present:g}")]
    if found.proposed is not None and found.proposed != found.present:
        marks.append(Mark(found.proposed, f"proposed {found.proposed:g}", dashed=True))
    side = "above" if threshold.at_most else "below"
    notes = [f"each record's score: the strictest value at which it passes this rule alone; dropped {side} the line"]
    if without:
        notes.append(f"{without} records have no score: no value lets them pass")
    return histogram(
        series,
        marks,
        found.path,
        f"{found.name.replace('_', ' ')} (bars: square root of the count, each row for itself)",
        dropped_above=threshold.at_most,
        whole=threshold.whole,
        notes=notes,
    )


def write_histogram(folder: Path, found: Sweep) -> Path | None:
    """Draw `<threshold>.png` into the folder. Returns its path, or None where there is nothing to draw."""
    page = draw_histogram(found)
    if page is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{found.path}.png"
    buffer = io.BytesIO()
    page.save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())
    return path


# --- the profile --------------------------------------------------------------------------------------------------


def edited_profile(text: str, values: Mapping[str, float], where: str) -> str:
    """A profile's YAML text with these values at these dotted paths and nothing else changed, comments and all.

    Raises UserError where the text has no such value, or where it shares one with another place.
    """
    import yaml

    spans = []
    for path, value in values.items():
        node: Any = yaml.compose(text, yaml.SafeLoader)
        for key in path.split("."):
            pairs = node.value if isinstance(node, yaml.MappingNode) else []
            node = next((own for name, own in pairs if name.value == key), None)
        if not isinstance(node, yaml.ScalarNode):
            raise UserError(f"{where} has no value at {path}: write it there first")
        spans.append((node.start_mark.index, node.end_mark.index, _as_yaml(value)))
    edited = text
    for start, end, written in sorted(spans, reverse=True):
        edited = edited[:start] + written + edited[end:]
    wanted = yaml.safe_load(text)
    for path, value in values.items():
        wanted = _replaced(wanted, path.split("."), value)
    if yaml.safe_load(edited) != wanted:
        raise UserError(f"{where} uses one value in several places (an alias): write it out before it is changed")
    return edited


def _replaced(data: Any, keys: Sequence[str], value: float) -> Any:
    """The mapping with the value at this place alone; an alias' other places keep the old one."""
    return {**data, keys[0]: _replaced(data[keys[0]], keys[1:], value)} if keys else value


def _as_yaml(value: float) -> str:
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.6f}".rstrip("0")


def profile_path(name: str) -> Path:
    """The file that `--profile` names."""
    return Path(name) if name.endswith((".yaml", ".yml")) else PROFILES_DIR / f"{name}.yaml"


def write_profile(source: str, target: Path, profile: Profile, values: Mapping[str, float], force: bool) -> None:
    """Write a copy of the profile with these values by dotted path, whole or not at all.

    Raises UserError where the target is there already and `force` is not given, or where it cannot be written.
    """
    if target.exists() and not force:
        raise UserError(f"{target} is there already: give another name, or --force to write over it")
    if not target.parent.is_dir():
        raise UserError(f"{target.parent} is not there: make the folder first")
    path = profile_path(source)
    edited = edited_profile(path.read_text("utf-8"), values, str(path))
    try:
        write_atomically(target, edited.encode())
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from None


# --- the command --------------------------------------------------------------------------------------------------


def wanted_thresholds(profile: Profile, stage: str, asked: str | None) -> list[tuple[Rules, str]]:
    """The thresholds of a stage, or the one asked for by its dotted path or the end of it.

    Raises UserError naming what there is.
    """
    if stage not in filters.SECTIONS:
        raise UserError(f"{stage} has no thresholds: the filters are {' and '.join(filters.SECTIONS)}")
    every = [(filters.rules_for(profile, section), section) for section in filters.SECTIONS[stage]]
    paths = {f"{section}.{name}": (rules, name) for rules, section in every for name in rules.thresholds}
    if asked is None:
        return list(paths.values())
    found = [path for path in paths if path == asked or path.endswith(f".{asked}")]
    off = [path for path in rules_off(profile, stage) if path == asked or path.endswith(f".{asked}")]
    if off and not found:
        raise UserError(f"--threshold {asked}: the rule is off; give it a value to start from with --set {off[0]}=...")
    if len(found) != 1:
        what = "no such threshold" if not found else f"it may be {' or '.join(found)}"
        raise UserError(f"--threshold {asked}: {what}; there are {', '.join(paths)}")
    return [paths[found[0]]]


def rules_off(profile: Profile, stage: str) -> list[str]:
    """The thresholds of a stage that the profile leaves off, by their dotted paths."""
    every = [(filters.rules_for(profile, section).section, section) for section in filters.SECTIONS[stage]]
    return [f"{section}.{name}" for own, section in every for name, value in own if value is None]


def judged_of(
    profile: Profile, store: Store, section: str, known: Mapping[str, Mapping[str, Known]], most: int | None
) -> list[Judged]:
    """What one filter judges. The people filter is tried on generated images too where it is known what they show."""
    shards = filters.section_shards(profile, section)
    if section == "keypoints.people" and "keypoints.structure" in known:
        shards = [*shards, *filters.section_shards(profile, "keypoints.structure")]
    found = filters.judged(profile, store, section, shards, most)
    own = set(filters.section_shards(profile, section))
    return [each if each.shard in own else replace(each, kind="generated") for each in found]


def calibrate(
    profile: Profile, build: str, stage: str, asked: str | None, wish: Wish, most: int | None = RECORDS
) -> tuple[list[Sweep], str]:
    """The sweeps of a stage's thresholds, and why nothing is known of what should be kept, or an empty text."""
    from pipeline import stages

    wanted = wanted_thresholds(profile, stage, asked)
    store = Store(stages.build_dir(profile, build))
    for rules, _ in wanted:
        filters.measured_ids(store, stage, filters.section_shards(profile, rules.name))  # before anything slow
    known, why = known_of(profile, build)
    found: list[Sweep] = []
    read: dict[str, list[Judged]] = {}
    for rules, name in wanted:
        if rules.name not in read:
            read[rules.name] = judged_of(profile, store, rules.name, known, most)
        found.append(sweep(rules, name, read[rules.name], known.get(rules.name, {}), wish))
    return found, why


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.calibrate STAGE`. Returns the exit code."""
    from pipeline import cli

    parser = cli.common_parser(
        "pipeline.calibrate",
        "Sweep a filter's thresholds over what it measured in a finished build, and propose values.",
    )
    parser.add_argument("stage", metavar="STAGE", help=f"a filter: {' or '.join(filters.SECTIONS)}")
    parser.add_argument("--threshold", metavar="PATH", help="one alone, e.g. keypoints.structure.min_person_score")
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--keep-rate", type=_share, metavar="SHARE", help="propose what keeps this share, e.g. 0.75")
    rule.add_argument("--min-recall", type=_share, metavar="SHARE", help="least share of the good records to keep")
    parser.add_argument(
        "--records", type=_count, default=RECORDS, metavar="N", help=f"look at N records at most (default: {RECORDS})"
    )
    parser.add_argument(
        "--write",
        nargs="?",
        const="",
        metavar="FILE.yaml",
        help="write a copy of the profile with the proposed values (default: into the build's folder)",
    )
    parser.add_argument("--force", action="store_true", help="let --write write over a file")
    options = parser.parse_args(argv)
    return cli.guarded(lambda: _run(options))


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a share above 0 and up to 1")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of records")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from pipeline import cli, stages

    profile, build = cli.profile_and_build(options)
    if options.write is not None and options.keep_rate is not None and options.threshold is None:
        raise UserError("--write: each threshold alone reaches the keep rate; name the one to change with --threshold")
    folder = stages.build_dir(profile, build) / "calibration"
    wish = Wish(options.keep_rate, options.min_recall)
    found, why = calibrate(profile, build, options.stage, options.threshold, wish, options.records)
    if why:
        print(f"note: {why}\n")
    for each in found:
        print(format_sweep(each))
        path = write_histogram(folder, each)
        print(f"look at {path}\n" if path else "no record has a score: no histogram\n")
    if (off := rules_off(profile, options.stage)) and options.threshold is None:
        print(f"off, and so not swept: {', '.join(off)}; --set {off[0]}=... gives one a value to start from\n")
    changed = _print_together(found, wish)
    if options.write is not None:
        if not changed:
            raise UserError("--write: no other value than those of the profile is proposed; nothing is written")
        target = Path(options.write) if options.write else folder / f"{Path(options.profile).stem}.yaml"
        # Values set on the command line took part in the sweep: the copy has to have them as well.
        own = {f"{each.rules.name}.{name}": value for each in found for name, value in each.rules.values.items()}
        stands = load_profile(options.profile)
        set_here = {path: value for path, value in own.items() if _standing(stands, path) != value}
        write_profile(options.profile, target, profile, {**set_here, **changed}, options.force)
        print(f"written to {target}")
    return cli.DONE


def _standing(profile: Profile, path: str) -> Any:
    """The value at a threshold's dotted path; None where the rule is off."""
    section, _, name = path.rpartition(".")
    return profile.section(section).get(name)


def _print_together(found: Sequence[Sweep], wish: Wish) -> dict[str, float]:
    """Print what the proposals of each filter come to together. Returns the values that are good together, by path."""
    changed: dict[str, float] = {}
    for section in dict.fromkeys(each.rules.name for each in found):
        own = [each for each in found if each.rules.name == section]
        stands = together(own[0].rules, own[0].cases, {})
        values, left_out, row = chosen_values(own, wish)
        changed |= {f"{section}.{name}": value for name, value in values.items()}
        named = ", ".join(f"{name} {value:g}" for name, value in values.items()) or "nothing changed"
        figures = "" if row.f1 is None else f"; F1 {_percent(stands.f1)} -> {_percent(row.f1)}"
        came = f"kept {_percent(stands.keep_rate)} -> {_percent(row.keep_rate)}{figures}"
        less = f"; left out, as it would spoil what the others gain: {', '.join(left_out)}" if left_out else ""
        print(f"{section} together: {named}: {came}{less}")
    return changed


if __name__ == "__main__":
    raise SystemExit(main())
