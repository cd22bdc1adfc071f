"""Stage 2, sources: OOPS! sentences whose subject is a person, and the joined `full` captions (PAB, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.core.profile import Profile
from pipeline.core.stage import Kept, Outcome, Rejected, Stage, StageContext
from pipeline.formats.oops import OopsVideo, video_key
from pipeline.formats.oops_shards import annotations_digest, caption_videos
from schemas.records import KINDS, Engine, Kind, SourceCaption, behavior_of

NO_CAPTION, EMPTY, NOT_A_PERSON, HALF_MISSING = (
    "no_caption",
    "empty_caption",
    "subject_not_a_person",
    "goal_or_wentrong_missing",
)


@dataclass(frozen=True)
class CaptionItem:
    """One kind of caption of one video; a video's three kinds are one group."""

    video: OopsVideo
    kind: Kind

    @property
    def id(self) -> str:
        return f"{self.group}_{self.kind}"

    @property
    def group(self) -> str:
        return video_key(self.video.name)


def choose_captions(
    records: Sequence[tuple[str, str]], are_people: Sequence[tuple[bool, bool]]
) -> dict[Kind, tuple[str, int] | str]:
    """The caption and its worker for each kind of one video, or the reason why there is none.

    records: a worker's (goal, wentwrong) sentences; are_people: whether each one's subject is a person. The first
    worker whose subject is a person gives the caption; `full` joins both sentences of the first worker where both
    survive.
    """
    chosen: dict[Kind, tuple[str, int] | str] = {}
    for position, kind in enumerate(KINDS[:2]):
        sentences = [record[position].strip() for record in records]
        keep = next((worker for worker, ok in enumerate(are_people) if ok[position] and sentences[worker]), None)
        if keep is not None:
            chosen[kind] = (sentences[keep], keep)
        else:
            chosen[kind] = NO_CAPTION if not records else NOT_A_PERSON if any(sentences) else EMPTY
    both = next(
        (worker for worker, ok in enumerate(are_people) if all(ok) and all(map(str.strip, records[worker]))), None
    )
    if both is not None:
        goal, wentwrong = (sentence.strip() for sentence in records[both])
        chosen["full"] = (f"{goal} {wentwrong}" if goal[-1] in "!?" else f"{goal.rstrip('. ')}. {wentwrong}", both)
    else:
        chosen["full"] = HALF_MISSING if records else NO_CAPTION
    return chosen


def items(context: StageContext) -> list[CaptionItem]:
    return [CaptionItem(video, kind) for video in caption_videos(context.profile, context.shard) for kind in KINDS]


def run(context: StageContext, batch: Sequence[CaptionItem]) -> list[Outcome]:
    reader = context.engines("sources")
    engine = Engine(name=reader.name, revision=reader.revision)
    videos = {item.group: item.video for item in batch}
    texts = {
        key: [(caption.goal.strip(), caption.wentwrong.strip()) for caption in video.captions]
        for key, video in videos.items()
    }
    flat = [sentence for pairs in texts.values() for pair in pairs for sentence in pair]
    answers = iter(reader.subjects_are_people(flat))
    chosen = {
        key: choose_captions(pairs, [(next(answers), next(answers)) for _ in pairs]) for key, pairs in texts.items()
    }
    outcomes: list[Outcome] = []
    for item in batch:
        choice = chosen[item.group][item.kind]
        if isinstance(choice, str):
            said = "; ".join(" / ".join(pair) for pair in texts[item.group])
            outcomes.append(Rejected(item.id, choice, f"{item.video.name}: {said}" if said else item.video.name))
            continue
        caption, worker = choice
        outcomes.append(
            Kept(
                SourceCaption(
                    id=item.id,
                    video=item.video.name,
                    video_key=item.group,
                    oops_split=item.video.split,
                    kind=item.kind,
                    behavior=behavior_of(item.kind),
                    caption=caption,
                    worker=worker,
                    subject_reader=engine,
                )
            )
        )
    return outcomes


def upstream(_profile: Profile, _shard: str) -> list[tuple[str, str]]:
    return []


STAGE = Stage(
    name="sources",
    version=1,
    summary="OOPS! captions whose subject is a person, and the joined ones",
    shard_kinds=("train", "test"),
    reads={"OOPS! folder": ("captions",)},
    writes=SourceCaption,
    reasons=(NO_CAPTION, EMPTY, NOT_A_PERSON, HALF_MISSING),
    upstream=upstream,
    items=items,
    run=run,
    config_by_kind={"train": ("sources.splits",), "test": ("frames.splits",)},
    engines=("sources",),
    external=annotations_digest,
)


if __name__ == "__main__":
    from pipeline.run_stage import stage_main

    raise SystemExit(stage_main("sources"))
