"""What a build will take, from how much there is to do and how fast each engine is: arithmetic alone.

Times and shares come as a span from the least to the most that is known, and with where they are from: `measured`,
`published` or `estimate`. A figure is no better than the worst it is made from, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError

from pipeline.core.errors import UserError
from pipeline.core.profile import Section

SHIPPED = Path(__file__).resolve().parent.parent / "rates.yaml"
Origin = Literal["measured", "published", "estimate"]
MEASURED: Origin = "measured"
PUBLISHED: Origin = "published"
ESTIMATE: Origin = "estimate"
_WORST_LAST: tuple[Origin, ...] = (MEASURED, PUBLISHED, ESTIMATE)
CPU = "cpu"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Device(Section):
    """A GPU. speed: of an A100's, in whole-model work of these engines. called: what nvidia-smi's name of it holds."""

    memory_gib: Positive
    speed: Positive
    origin: Origin
    called: str | None = None


class Speed(Section):
    """How long one item of a stage takes one worker, or one GPU.

    engine and settings: whose; an entry without settings stands for all. device: `cpu` or a key of `devices`.
    seconds: least and most, for an item, or for one of its `steps` where `per` says so. pixels: the area of the images
    that it is for, where it grows with that. load_s: until an engine answers for the first time, once a process.
    """

    stage: str
    engine: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    device: str = CPU
    seconds: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]]
    per: Literal["item", "step"] = "item"
    pixels: Positive | None = None
    load_s: Annotated[float, Field(ge=0)] = 0.0
    origin: Origin


class Kept(Section):
    """The share of a stage's items that go on, by kind of record (goal, wentrong, full, test; all)."""

    stage: str
    engine: str | None = None
    shares: dict[str, Share]
    origin: Origin


class Size(Section):
    """Bytes on the disk: of one kept record, and of one pixel of its image."""

    stage: str
    engine: str | None = None
    record: Annotated[float, Field(ge=0)] = 0.0
    pixel: Annotated[float, Field(ge=0)] = 0.0
    origin: Origin


class Rates(Section):
    """A table of rates. counts: how much there is where no OOPS! folder says. reply_tokens: of one answer, by question.

    batch_sizes: the most images that fit the memory of a stage's GPU at once, where it was measured.
    """

    devices: dict[str, Device] = Field(default_factory=dict)
    speeds: tuple[Speed, ...] = ()
    kept: tuple[Kept, ...] = ()
    sizes: tuple[Size, ...] = ()
    counts: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    reply_tokens: dict[str, Positive] = Field(default_factory=dict)
    batch_sizes: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    tokens_per_character: Positive | None = None

    def over(self, other: Rates) -> Rates:
        """These rates, and where they say nothing the other's."""
        return Rates(
            devices={**other.devices, **self.devices},
            speeds=self.speeds + other.speeds,
            kept=self.kept + other.kept,
            sizes=self.sizes + other.sizes,
            counts={**other.counts, **self.counts},
            reply_tokens={**other.reply_tokens, **self.reply_tokens},
            batch_sizes={**other.batch_sizes, **self.batch_sizes},
            tokens_per_character=self.tokens_per_character or other.tokens_per_character,
        )


def load_rates(path: Path = SHIPPED) -> Rates:
    """The rates of a YAML file. Raises UserError in one line where it cannot be read or holds something else."""
    try:
        return Rates.model_validate(yaml.safe_load(path.read_text("utf-8")) or {})
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--rates {path}: cannot be read ({error})") from None
    except yaml.YAMLError as error:
        raise UserError(f"--rates {path}: is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"--rates {path}: '{where}': {first['msg'][0].lower()}{first['msg'][1:]}") from None


def worst(origins: Iterable[Origin]) -> Origin:
    """The least sure of some origins; `measured` of none."""
    return max(origins, key=_WORST_LAST.index, default=MEASURED)


@dataclass(frozen=True)
class Span:
    """From the least to the most."""

    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def __mul__(self, factor: float) -> Span:
        return Span(self.low * factor, self.high * factor)


NOTHING = Span(0.0, 0.0)


@dataclass(frozen=True)
class Work:
    """What one stage has to do.

    items: records in; kept: those that go on. shards: pieces that run apart. engine, settings: of the profile's
    section, defaults filled in where they matter. on_gpu: whether it works on a GPU (or on a server that does).
    steps: of an item. pixels: of an image it makes or reads. taken_over: items that were made before and are not made
    again. disk_bytes: what it will have written; place: to which folder. origins: where these counts are from.
    """

    stage: str
    items: float
    kept: float
    shards: int
    engine: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    on_gpu: bool = False
    steps: int = 1
    pixels: float | None = None
    taken_over: float = 0.0
    requests: float = 0.0
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    disk_bytes: float = 0.0
    place: Literal["work", "out"] = "work"
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class Step:
    """One stage of a plan. busy: seconds of all its workers or GPUs together; wall: seconds from start to end; both
    None where no rate is known. device: what it runs on.
    """

    work: Work
    device: str
    busy: Span | None
    wall: Span | None
    origin: Origin


def keep_share(rates: Rates, stage: str, kind: str, engine: str | None = None) -> tuple[float, Origin]:
    """The share of a stage's items of one kind that go on, and where it is from; all of them where nothing is known."""
    for entry in rates.kept:
        if entry.stage == stage and entry.engine in (None, engine):
            share = entry.shares.get(kind, entry.shares.get("all"))
            if share is not None:
                return share, entry.origin
    return 1.0, MEASURED


def size_of(rates: Rates, stage: str, pixels: float, engine: str | None = None) -> tuple[float, Origin]:
    """The bytes of one kept record whose image has so many pixels, and where the figure is from."""
    for entry in rates.sizes:
        if entry.stage == stage and entry.engine in (None, engine):
            return entry.record + entry.pixel * pixels, entry.origin
    return 0.0, ESTIMATE


def speed_of(rates: Rates, work: Work, device: str) -> tuple[Span, float, Origin] | None:
    """(seconds an item, seconds to load, origin) of a stage on a device, or None where nothing is known.

    Of the entries for the engine whose settings are the work's, those for the device come first, then those with most
    settings, then the earlier. A figure of another GPU is scaled by the two devices' speeds, one for another area by
    the area.
    """

    def fits(entry: Speed) -> bool:
        return (
            entry.stage == work.stage
            and entry.engine == work.engine
            and all(work.settings.get(key) == value for key, value in entry.settings.items())
            and (entry.device == device or (CPU not in (device, entry.device) and entry.device in rates.devices))
        )

    able = [entry for entry in rates.speeds if fits(entry)]
    if not able:
        return None
    entry = min(able, key=lambda each: (each.device != device, -len(each.settings)))
    origins = [entry.origin]
    seconds = Span(*entry.seconds) * (work.steps if entry.per == "step" else 1)
    if entry.device != device:
        seconds *= rates.devices[entry.device].speed / rates.devices[device].speed
        origins += [rates.devices[entry.device].origin, rates.devices[device].origin]
    if entry.pixels is not None and work.pixels is not None and work.pixels != entry.pixels:
        seconds *= work.pixels / entry.pixels
        origins.append(ESTIMATE)
    return seconds, entry.load_s, worst(origins)


def plan_steps(works: Sequence[Work], rates: Rates, gpu: str, gpus: int, workers: int) -> list[Step]:
    """The stages of a build one after the other, the shards of each over its workers or GPUs.

    Raises UserError for a GPU that the table does not know.
    """
    if gpu not in rates.devices:
        raise UserError(f"--gpu {gpu}: not in the table of rates, which has {', '.join(sorted(rates.devices))}")
    steps = []
    for work in works:
        device, hands = (gpu, gpus) if work.on_gpu else (CPU, workers)
        found = speed_of(rates, work, device)
        if found is None:
            steps.append(Step(work, device, None, None, worst((*work.origins, ESTIMATE))))
            continue
        seconds, load_s, origin = found
        busy = seconds * max(0.0, work.items - work.taken_over)
        used = min(hands, work.shards)
        loads = load_s * used if busy.high else 0.0
        # Shards are dealt out whole: with 10 over 8 GPUs the last two run while six GPUs wait.
        wall = busy * (math.ceil(work.shards / hands) / work.shards) + Span(load_s, load_s) * (1 if busy.high else 0)
        steps.append(Step(work, device, busy + Span(loads, loads), wall, worst((*work.origins, origin))))
    return steps


def total(spans: Iterable[Span | None]) -> Span:
    """The sum of those that are known."""
    return sum((span for span in spans if span is not None), NOTHING)


def disk_of(steps: Sequence[Step]) -> dict[str, float]:
    """Bytes by place: `work` and `out`."""
    return {place: sum(s.work.disk_bytes for s in steps if s.work.place == place) for place in ("work", "out")}
