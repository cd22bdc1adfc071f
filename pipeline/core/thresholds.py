"""What one threshold of a filter does to what was measured: scores, margins, and values to propose.

The score that a threshold cuts is the strictest value at which a record still passes, all other rules left out. It is
found by asking the filter's own decision, so that it cannot differ from it. Histograms, borderline sheets and the
values that a sweep tries all rest on this number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from pipeline.core.pose import PeopleThresholds, StructureThresholds, decide_people, decide_structure
from pipeline.core.profile import PeopleSection, Section, StructureSection

PRECISION = 1e-4
"""How exactly a score is found: as finely as what was measured is kept."""
_FARTHEST = 1e6
_STEERING = {"min_joint_score": ("min_joints",), "border_share": ("max_cut_share", "min_joint_score")}
"""Thresholds that no rule compares with a measurement of its own: they decide what the rules named here count, which
therefore stay as they are when the score of one of these is looked for.
"""


@dataclass(frozen=True)
class Threshold:
    """One value of a filter. lowest, highest: what the profile allows. at_most: what lies above is dropped, else what
    lies below. whole: an integer. companions: the thresholds without which it judges nothing. steering: it has no rule
    of its own, but decides what others count.
    """

    name: str
    value: float
    lowest: float
    highest: float
    at_most: bool
    whole: bool
    companions: tuple[str, ...]
    steering: bool

    @property
    def lax(self) -> float:
        """A value that drops nothing."""
        return math.inf if self.at_most else self.lowest if self.steering else -math.inf

    def stricter(self, first: float, second: float) -> float:
        """The value of the two that drops more."""
        return min(first, second) if self.at_most else max(first, second)


@dataclass(frozen=True)
class Rules:
    """A filter as its thresholds and its decision.

    name: the section of the profile. decide: what was measured and the values by name -> the reason to drop, or None.
    views: the parts of what was measured of which one that passes is enough (the people of a frame); most filters judge
    the whole.
    """

    name: str
    section: Section
    thresholds: Mapping[str, Threshold]
    decide: Callable[[Any, Mapping[str, float]], str | None]
    views: Callable[[Any], Sequence[Any]] = lambda detail: (detail,)

    @property
    def values(self) -> dict[str, float]:
        """The thresholds as they stand."""
        return {name: each.value for name, each in self.thresholds.items()}

    def verdict(self, detail: Any, changed: Mapping[str, float] | None = None) -> str | None:
        """The reason to drop, or None, with some of the values changed."""
        return self.decide(detail, {**self.values, **(changed or {})})

    def alone(self, name: str) -> dict[str, float]:
        """The values that leave one threshold, and what it cannot judge without, and make all others drop nothing."""
        stay = {name, *self.thresholds[name].companions}
        return {each: found.value if each in stay else found.lax for each, found in self.thresholds.items()}

    def allows(self, name: str, value: float) -> bool:
        """Whether the profile takes this value."""
        try:
            type(self.section).model_validate({**self.section.model_dump(), name: value})
        except ValueError:
            return False
        return True


def rules_of(
    name: str,
    section: Section,
    decide: Callable[[Any, Mapping[str, float]], str | None],
    views: Callable[[Any], Sequence[Any]] = lambda detail: (detail,),
) -> Rules:
    """A filter whose thresholds are the numbers of a section of the profile.

    A threshold called min_... drops what is below it, one called max_... what is above; one that is None is off, and is
    none of them. Raises ValueError for a number that is called otherwise and of which nothing is known.
    """
    numbers = {
        each: value
        for each, value in section
        if isinstance(value, int | float) and not isinstance(value, bool) and each in type(section).model_fields
    }
    steering = [each for each in numbers if each in _STEERING]
    found = {}
    for each, value in numbers.items():
        if not each.startswith(("min_", "max_")) and each not in _STEERING:
            raise ValueError(f"{name}.{each}: is it the least or the most? A threshold is called min_... or max_...")
        info = type(section).model_fields[each]
        bounds = {
            kind: getattr(part, kind)
            for part in info.metadata
            for kind in ("ge", "gt", "le", "lt")
            if hasattr(part, kind)
        }
        companions = _STEERING.get(each, steering)
        found[each] = Threshold(
            name=each,
            value=value,
            lowest=bounds.get("ge", bounds.get("gt", 0)),
            highest=bounds.get("le", bounds.get("lt", math.inf)),
            at_most=each.startswith("max_"),
            whole=int in (info.annotation, *get_args(info.annotation)),
            companions=tuple(other for other in companions if other in numbers),
            steering=each in _STEERING,
        )
    return Rules(name, section, found, decide, views)


def people_rules(section: PeopleSection) -> Rules:
    """The people filter over details of `core.pose.measure_people`; one good person is enough."""
    base = PeopleThresholds(**section.model_dump())

    def decide(detail: Any, values: Mapping[str, Any]) -> str | None:
        return decide_people(detail, dataclasses.replace(base, **values))

    return rules_of("keypoints.people", section, decide, _each_person)


def structure_rules(section: StructureSection) -> Rules:
    """The structure filter over details of `core.pose.measure_people`; it judges the surest person."""
    base = StructureThresholds(**section.model_dump())

    def decide(detail: Any, values: Mapping[str, Any]) -> str | None:
        return decide_structure(detail, dataclasses.replace(base, **values))

    return rules_of("keypoints.structure", section, decide)


def _each_person(detail: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**detail, "people": [person]} for person in detail["people"]]


# --- scores and margins -------------------------------------------------------------------------------------------


def score(rules: Rules, detail: Any, name: str) -> float | None:
    """The strictest value of one threshold at which the record still passes it alone, to within PRECISION.

    At the score it passes; a PRECISION stricter it does not, unless the score is the strictest value there is. None
    where no value lets it pass: there is nobody to judge.
    """
    each = rules.thresholds[name]
    values = rules.alone(name)

    def passes(value: float) -> bool:
        return rules.decide(detail, {**values, name: value}) is None

    lax, strict = (each.highest, each.lowest) if each.at_most else (each.lowest, each.highest)
    if math.isinf(lax):
        lax = max(2 * abs(strict), 1.0)
        while not passes(lax) and lax < _FARTHEST:
            lax *= 2
    if not passes(lax):
        return None
    if passes(strict):
        return float(strict)
    step = 1 if each.whole else PRECISION
    while abs(strict - lax) > step:
        middle = (lax + strict) / 2
        middle = math.floor(middle) if each.whole else middle
        lax, strict = (middle, strict) if passes(middle) else (lax, middle)
    if each.whole:
        return float(lax)
    # What was measured has four digits: where such a number lies between, it is the score itself.
    exact = [round(end, 4) for end in (strict, lax)]
    return float(next((at for at in exact if min(lax, strict) <= at <= max(lax, strict) and passes(at)), lax))


def own_scores(rules: Rules, detail: Any) -> list[dict[str, float]]:
    """The scores of each view of a record for every threshold that has a rule of its own; without the views that no
    value lets pass.
    """
    names = [name for name, each in rules.thresholds.items() if not each.steering]
    found = []
    for view in rules.views(detail):
        scores = {name: score(rules, view, name) for name in names}
        known = {name: own for name, own in scores.items() if own is not None}
        if len(known) == len(names):
            found.append(known)
    return found


def spreads_of(scores: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """By threshold the standard deviation of the scores, the unit in which margins are told.

    Where all scores are alike it is PRECISION: a threshold that tells no records apart is near to none of them.
    """
    by_name: dict[str, list[float]] = {}
    for each in scores:
        for name, value in each.items():
            by_name.setdefault(name, []).append(value)
    return {name: max(float(np.std(values)), PRECISION) for name, values in by_name.items()}


@dataclass(frozen=True)
class Margin:
    """How near a record's verdict is to the other one.

    distance: in spreads of the scores, how far thresholds would have to move (0 and above); infinite where none can
    help. threshold: the one that decided: for a kept record the nearest, for a dropped one that of its reason; None
    where nobody was there to judge. score: the record's for it. others: thresholds that drop it as well.
    """

    distance: float
    threshold: str | None = None
    score: float | None = None
    others: tuple[str, ...] = ()


def margin(rules: Rules, detail: Any, scores: Sequence[Mapping[str, float]], spreads: Mapping[str, float]) -> Margin:
    """The margin of a record under the thresholds as they stand. scores: its `own_scores`; spreads: of all records."""
    reason = rules.verdict(detail)
    if not scores:
        return Margin(math.inf)
    # One view that passes is enough, so the view that is nearest to passing, or passes most surely, is the record's.
    inside = [{name: _inside(rules, name, own) / spreads[name] for name, own in each.items()} for each in scores]
    best = max(range(len(scores)), key=lambda number: min(inside[number].values()))
    own, distances = scores[best], inside[best]
    if reason is None:
        name = min(distances, key=lambda each: distances[each])
        return Margin(max(0.0, distances[name]), name, own[name])
    failing = [name for name, distance in distances.items() if distance < 0] or list(distances)
    blamed = [name for name in failing if rules.decide(detail, rules.alone(name)) == reason] or failing
    name = min(blamed, key=lambda each: distances[each])
    farthest = max(0.0, -min(distances[each] for each in failing))
    return Margin(farthest, name, own[name], tuple(sorted(set(failing) - {name})))


def _inside(rules: Rules, name: str, own: float) -> float:
    """How far inside its threshold a score is; below zero outside."""
    each = rules.thresholds[name]
    return each.value - own if each.at_most else own - each.value


# --- sweeps and proposals -----------------------------------------------------------------------------------------


def values_to_try(rules: Rules, name: str, scores: Sequence[float | None], most: int = 100) -> list[float]:
    """Values of a threshold worth trying, rising: evenly over the range of the scores and by their ranks, with the
    value as it stands among them; of an integer, all there are.
    """
    each = rules.thresholds[name]
    if each.whole:
        return [float(value) for value in range(int(each.lowest), int(each.highest) + 1)]
    known = np.array(sorted(found for found in scores if found is not None))
    tried = {float(each.value)}
    if len(known):
        low, high = np.percentile(known, [0, 99.5] if each.at_most else [0.5, 100])
        step = _round_step((high - low) * 2 / most)
        tried |= {number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)}
        tried |= set(np.quantile(known, np.linspace(0, 1, most // 2)).tolist())
        ends = [end for end in (each.lowest, each.highest) if math.isfinite(end)]
        # Beyond the scores nothing changes, but how far nothing does tells how much room there is.
        tried |= set(np.linspace(min(low, *ends), max(high, *ends), 21).tolist())
    rounded = {round(value, 4) if value != each.value else value for value in tried}
    return sorted(value for value in rounded if rules.allows(name, value))


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten, `least` at least."""
    if least <= 0:
        return PRECISION
    size = 10.0 ** math.floor(math.log10(least))
    return max(PRECISION, next(times * size for times in (1, 2, 5, 10) if times * size >= least))


def kept_at(rules: Rules, detail: Any, name: str, values: Sequence[float]) -> list[bool]:
    """Whether the record is kept at each of the rising values of one threshold, the others as they stand."""
    each = rules.thresholds[name]

    def kept(value: float) -> bool:
        return rules.verdict(detail, {name: value}) is None

    if each.steering:  # what it steers may count for the record as well as against it
        return [kept(value) for value in values]
    # A rule of its own only grows stricter: there is one turn, and it is found by halving.
    order = list(reversed(values)) if each.at_most else list(values)  # from lax to strict
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if kept(order[middle]) else (low, middle)
    found = [True] * low + [False] * (len(order) - low)
    return list(reversed(found)) if each.at_most else found


def f1_of(kept: np.ndarray, sound: np.ndarray) -> np.ndarray:
    """F1 of "should be kept" at each value. kept: bool (records, values); sound: bool (records,). 0 where none is."""
    right = (kept & sound[:, None]).sum(axis=0)
    wrong = (kept != sound[:, None]).sum(axis=0)
    return np.where(right > 0, 2 * right / np.maximum(2 * right + wrong, 1), 0.0)


def as_good(kept: np.ndarray, sound: np.ndarray, best: int) -> np.ndarray:
    """Which values are not clearly worse than the one numbered `best`: bool (values,).

    kept: bool (records, values); sound: bool (records,). Of the records on which two values differ, each is right on
    some; a value is clearly worse where the other is right on more of them than chance would make it: by above twice
    the square root of their number (McNemar's test, two standard deviations).
    """
    differ = (kept != kept[:, [best]]).sum(axis=0)
    wrong = (kept != sound[:, None]).sum(axis=0)
    return wrong - wrong[best] <= 2 * np.sqrt(differ)


def middle_of_widest(values: Sequence[float], good: Sequence[bool]) -> float | None:
    """The middle of the widest run of neighbouring values that are good; None where none is.

    Of the values in the middle half of that run the roundest is taken, of equally round ones the nearest to its middle.
    """
    runs: list[list[float]] = [[]]
    for value, own in zip(values, good, strict=True):
        if own:
            runs[-1].append(value)
        elif runs[-1]:
            runs.append([])
    if not runs[0]:
        return None
    runs = [run for run in runs if run]
    widest = max(runs, key=lambda each: (each[-1] - each[0], len(each)))
    middle = (widest[0] + widest[-1]) / 2
    inner = [value for value in widest if abs(value - middle) <= (widest[-1] - widest[0]) / 4] or widest
    return min(inner, key=lambda value: (_decimals(value), abs(value - middle), value))


def _decimals(value: float) -> int:
    """How many digits after the point it takes to write the value, at most 6."""
    return next((digits for digits in range(6) if math.isclose(round(value, digits), value, abs_tol=1e-9)), 6)


def nearest_keep_rate(values: Sequence[float], rates: Sequence[float], wanted: float) -> float | None:
    """The value whose kept share is nearest the wanted one, of equally near ones the middle; None for no values."""
    least = min((abs(rate - wanted) for rate in rates), default=0.0)
    return middle_of_widest(values, [abs(rate - wanted) <= least + 1e-12 for rate in rates])


def valley(scores: Sequence[float], whole: bool = False) -> float | None:
    """The bottom of the deepest valley of the scores' smoothed histogram; None where it has a single hill.

    A valley counts where it is less than half as high as the lower of the hills beside it, each of which holds a
    fiftieth of the scores at least; fewer than twenty scores have none.
    """
    known = np.array(scores, dtype=np.float64)
    if len(known) < 20:
        return None
    low, high = (known.min(), known.max()) if whole else np.percentile(known, [0.5, 99.5])
    if high <= low:
        return None
    bins = round(high - low) + 1 if whole else 64
    edges = np.linspace(low - 0.5, high + 0.5, bins + 1) if whole else np.linspace(low, high, bins + 1)
    counts = np.histogram(np.clip(known, edges[0], edges[-1]), edges)[0].astype(np.float64)
    reach = 1.0 if whole else 2.0
    offsets = np.arange(-math.ceil(3 * reach), math.ceil(3 * reach) + 1)
    weights = np.exp(-0.5 * (offsets / reach) ** 2)
    padded = np.pad(counts, len(offsets) // 2, mode="reflect" if bins > len(offsets) else "edge")
    smooth = np.convolve(padded, weights / weights.sum(), mode="valid")
    left, right = np.maximum.accumulate(smooth), np.maximum.accumulate(smooth[::-1])[::-1]
    lower_hill = np.minimum(left, right)
    below, above = np.cumsum(counts) - counts, np.cumsum(counts[::-1])[::-1] - counts
    deep = (smooth < lower_hill / 2) & (np.minimum(below, above) >= len(known) / 50)
    if not deep.any():
        return None
    depth = np.where(deep, lower_hill - smooth, -np.inf)
    bottom = int(np.median(np.flatnonzero(np.isclose(depth, depth.max(), rtol=0, atol=1e-9 * len(known)))))
    middle = float((edges[bottom] + edges[bottom + 1]) / 2)
    near = [
        round(middle, digits) for digits in range(1, 5) if abs(round(middle, digits) - middle) <= edges[1] - edges[0]
    ]
    return float(round(middle)) if whole else near[0] if near else middle
