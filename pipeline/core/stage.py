"""What a stage is: a declaration, a loader of its inputs and a pure core from a batch of inputs to outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.core.errors import UserError
from pipeline.core.profile import Profile
from pipeline.core.prompts import Prompt, load_prompt
from schemas.records import Record

if TYPE_CHECKING:
    from pipeline.core.store import Store


@dataclass(frozen=True)
class Kept:
    """The record goes on to the next stage."""

    record: Record

    @property
    def id(self) -> str:
        return self.record.id


@dataclass(frozen=True)
class Rejected:
    """The stage judged the record and dropped it, for a reason of its fixed list."""

    id: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Failed:
    """The record could not be judged: its input is missing or unreadable, or the engine raised."""

    id: str
    reason: str
    detail: str = ""


Outcome = Kept | Rejected | Failed


class Item(Protocol):
    """One input of a stage. Items of one group (a pair) are never parted between batches."""

    @property
    def id(self) -> str: ...

    @property
    def group(self) -> str: ...


@dataclass(frozen=True)
class Ref:
    """The plainest item: an id; what else is known of it is read when its batch comes."""

    id: str
    group: str = ""


@dataclass(frozen=True)
class Measured:
    """An item of a stage that measures, with what was measured of it; record is None where nothing could be."""

    item: Item
    record: Any

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def group(self) -> str:
        return self.item.group


@dataclass(frozen=True)
class StageContext:
    """Where a stage runs: the profile, the shard, the store it reads, and the engines its profile names."""

    profile: Profile
    store: Store
    shard: str
    engines: Callable[[str], Any]
    """Gives the engine that a section of the profile names, e.g. engines("generate"); loaded at its first use."""

    def prompt(self, prompt_id: str) -> Prompt:
        return load_prompt(prompt_id)


@dataclass(frozen=True)
class Measuring:
    """The half of a stage that asks its engine. What it measures (the people in an image, a model's replies) is stored
    beside the records as it came and does not depend on any threshold or parser, so that a changed one decides again
    without the engine.

    version: of this half alone. writes: the record of what is measured. upstream: the shards that the measurement
    depends on. run: a batch in, one record an id out; the items of a group are measured together. measurable:
    those items of a batch that can be measured at all (a frame whose partner is gone has nothing to be compared with).
    stands: of what was measured of a batch before, under the same key, by id, that which need not be measured again;
    None: all of it.
    """

    version: int
    writes: type[Record]
    upstream: Callable[[Profile, str], list[tuple[str, str]]]
    run: Callable[[StageContext, Sequence[Any]], Sequence[Record]]
    measurable: Callable[[Sequence[Any]], Sequence[Any]] = list
    stands: Callable[[StageContext, Sequence[Any], Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Stage:
    """A stage's declaration.

    shard_kinds: which of train and test it has shards of; both empty means the one shard `all`.
    reads: stage name -> columns read, for the list of stages and for the reader. upstream: which shards of which stages
    one shard reads. external: digests of what it reads from outside the store, e.g. files of the OOPS! folder.
    config: dotted profile paths its output depends on; config_by_kind: those that only its train or its test shards
    depend on. engines: profile sections that name its backends.
    measures: its measuring half, where it has one; `run` then decides over a batch of `Measured` and asks no engine.
    inputs_of: for each item of a batch, by id, plain data of all that its outcome depends on besides the stage's
    version, schema, prompts and engines. Where it is given, outcomes made before from the same are taken over.
    deliver: called with the finished manifest after every run, also of a shard that was up to date; puts what the stage
    makes outside the store (the dataset folder) in its place.
    """

    name: str
    version: int
    summary: str
    shard_kinds: tuple[str, ...]
    reads: dict[str, tuple[str, ...]]
    writes: type[Record]
    reasons: tuple[str, ...]
    upstream: Callable[[Profile, str], list[tuple[str, str]]]
    items: Callable[[StageContext], Sequence[Item]]
    run: Callable[[StageContext, Sequence[Any]], Sequence[Outcome]]
    config: tuple[str, ...] = ()
    config_by_kind: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engines: tuple[str, ...] = ()
    measures: Measuring | None = None
    inputs_of: Callable[[StageContext, Sequence[Any]], Mapping[str, Any]] | None = None
    prompts: tuple[str, ...] = ()
    external: Callable[[Profile, str], dict[str, str]] | None = None
    deliver: Callable[[StageContext, dict[str, Any]], None] | None = None


def shard_name(kind: str, number: int) -> str:
    """`train-003` for ("train", 3)."""
    return f"{kind}-{number:03d}"


def shard_kind(shard: str) -> str:
    """`train` for `train-003`."""
    return shard.partition("-")[0]


def shard_number(shard: str) -> int:
    """3 for `train-003`."""
    return int(shard.partition("-")[2])


def parse_shard(text: str, known: Sequence[str], stage: str) -> str:
    """The shard a person means: `3` is train-003, `test-0` is test-000.

    Raises UserError naming the shards there are.
    """
    kind, dash, number = text.rpartition("-")
    kind = kind if dash else "train"
    if number.isdecimal() and shard_name(kind, int(number)) in known:
        return shard_name(kind, int(number))
    if text in known:
        return text
    ranges = []
    for each in sorted({shard_kind(shard) for shard in known}):
        own = [shard for shard in known if shard_kind(shard) == each]
        ranges.append(own[0] if len(own) == 1 else f"{own[0]} .. {own[-1]}")
    raise UserError(f"--shard {text}: stage {stage} has {' and '.join(ranges) or 'no shards in this build'}")
