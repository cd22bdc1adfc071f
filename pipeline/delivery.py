"""The dataset folder: rows put together from the shards of all stages, Parquet files, card, and the swap into place."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, TypeAdapter

from pipeline.backends import registry
from pipeline.core import card as card_module
from pipeline.core import census as census_module
from pipeline.core import dataset_folder
from pipeline.core import vocabulary as vocabulary_module
from pipeline.core.card import (
    CardFacts,
    ConfigFiles,
    EngineUsed,
    HardCount,
    KindCount,
    Measured,
    PromptText,
    ReplyCount,
    SplitFiles,
    StageCount,
    card,
    read_measured,
)
from pipeline.core.dataset_folder import (
    CARD,
    VOCABULARY,
    Place,
    check_out,
    content_digest,
    features_of,
    files_in,
    published_image,
    shown_folder,
)
from pipeline.core.profile import Profile, PublishSection
from pipeline.core.prompts import load_prompt
from pipeline.core.records import image_stage
from pipeline.core.stage import shard_kind
from pipeline.core.store import Store, file_digest, write_atomically
from pipeline.core.vocabulary import QUESTIONS, LabelClass
from schemas.arrow import arrow_schema
from schemas.records import KINDS, ClassedRow, PublishedRejection, PublishedRow

if TYPE_CHECKING:
    pass

Shards = Sequence[tuple[str, str]]
"""(stage, shard) of everything that was read, in the order of the stages."""

SPLITS = ("train", "test")
REPLYING = ("recaption", "attributes", "decompose")
"""The stages whose engines reply with text."""
READ_ROWS = 256
"""Images held in memory at once while they are copied."""

Classes = Mapping[str, Sequence[LabelClass]]
"""The classes of each column that has a vocabulary."""

_WRITERS = (card_module, census_module, vocabulary_module, dataset_folder)
"""Modules whose code decides, besides this one, what a delivered folder holds."""


@dataclass
class _Tally:
    """What the rows that were written had in them."""

    videos: dict[str, set[str]] = field(default_factory=lambda: {split: set() for split in SPLITS})
    reviewed: int = 0
    corrected: int = 0


def delivery_note(store: Store) -> Path:
    """Where a build remembers what it delivered: key, folder, files with sizes, warnings, and the card's facts."""
    return store.build_dir / "publish" / "delivered.json"


def deliver(profile: Profile, store: Store, manifest: Mapping[str, Any], shards: Shards) -> None:
    """Write the dataset to the profile's `out`, unless what is there is already it; of that only a card that says
    something else than is known by now is written again.

    The folder is built beside its place and swapped in whole; files of others in it are kept. Raises UserError where
    `out` is something else than a dataset of this project.
    """
    out = profile.out.resolve()
    place = Place(out, store.build_dir)
    place.recover()
    check_out(out)
    if refresh_card(profile, store):
        return
    delivery_note(store).unlink(missing_ok=True)
    folder = place.building()
    facts = write_dataset(profile, store, manifest, shards, folder)
    write_atomically(folder / CARD, _card(facts, read_measured(store.build_dir, manifest["key"])))
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files_in(folder) if path.name != CARD}
    place.swap()
    note = {
        "key": delivery_key(profile, manifest),
        "out": str(out),
        "files": files,
        "warnings": list(facts.warnings),
        "facts": _facts_adapter().dump_python(facts, mode="json"),
    }
    write_atomically(delivery_note(store), json.dumps(note, indent=1, ensure_ascii=False).encode())


def delivery_stands(profile: Profile, store: Store) -> bool:
    """Whether the dataset in the profile's `out` is what the finished publish shard delivers, and its card says what
    is known of it. Reads no data.
    """
    expected = _expected_card(profile, store)
    return expected is not None and _card_there(profile) == expected


def refresh_card(profile: Profile, store: Store) -> bool:
    """Let the card of the delivered dataset say what was measured on it by now; one that says so is not written.

    Returns False, and writes nothing, where the folder does not hold what the finished publish shard delivers.
    """
    expected = _expected_card(profile, store)
    if expected is None:
        return False
    if _card_there(profile) != expected:
        write_atomically(profile.out.resolve() / CARD, expected)
    return True


def card_message(profile: Profile, refreshed: bool) -> str:
    """What to tell a person after `refresh_card`."""
    if refreshed:
        return f"in the card of the dataset too: {profile.out / CARD}"
    return f"{profile.out} does not hold this build's dataset, so its card stays: run python -m pipeline.publish"


def _expected_card(profile: Profile, store: Store) -> bytes | None:
    """The card of what is delivered, as it should be now; None where the finished publish shard is not delivered."""
    manifest = store.manifest("publish", "all")
    note = _note(store)
    if manifest is None or note is None or not _data_stands(profile, manifest, note):
        return None
    return _card(_facts_adapter().validate_python(note["facts"]), read_measured(store.build_dir, manifest["key"]))


def _card(facts: CardFacts, known: Measured) -> bytes:
    return card(facts, known).encode()


def _card_there(profile: Profile) -> bytes | None:
    try:
        return (profile.out.resolve() / CARD).read_bytes()
    except OSError:
        return None


def _facts_adapter() -> TypeAdapter[CardFacts]:
    return TypeAdapter(CardFacts)


def delivery_key(profile: Profile, manifest: Mapping[str, Any]) -> str:
    """What decides whether a delivered dataset still stands: the records, the profile, the columns, and this code."""
    basis = {
        "publish": manifest["key"],
        "profile": profile.model_dump(mode="json", exclude={"out": True, "work": True, "workers": True, "audit": True}),
        "folder": shown_folder(profile.out),
        "columns": [str(arrow_schema(model)) for model in (row_model(profile), PublishedRejection)],
        "code": [file_digest(Path(str(each))) for each in (__file__, *(made.__file__ for made in _WRITERS))],
    }
    return hashlib.sha256(json.dumps(basis, sort_keys=True, default=str).encode()).hexdigest()


def row_model(profile: Profile) -> type[PublishedRow]:
    """The columns of the dataset's rows: with classes of the labels where the profile asks for a vocabulary."""
    return ClassedRow if profile.publish.vocabulary else PublishedRow


def _note(store: Store) -> dict[str, Any] | None:
    try:
        known = json.loads(delivery_note(store).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return known if isinstance(known, dict) and known.keys() >= {"key", "out", "files", "facts"} else None


def _data_stands(profile: Profile, manifest: Mapping[str, Any], note: Mapping[str, Any]) -> bool:
    """Whether all files but the card are those that were delivered, by name and size."""
    out = profile.out.resolve()
    if note["key"] != delivery_key(profile, manifest) or note["out"] != str(out):
        return False
    sizes = {name: (out / name).stat().st_size for name in note["files"] if (out / name).is_file()}
    return sizes == note["files"] and (out / CARD).is_file()


def write_dataset(
    profile: Profile, store: Store, manifest: Mapping[str, Any], shards: Shards, folder: Path
) -> CardFacts:
    """Write all files of the dataset but its card into an empty folder. Returns what the card says."""
    tally = _Tally()
    publications = read_publications(store)
    model = row_model(profile)
    classes = label_classes(store, publications) if profile.publish.vocabulary else None
    if classes is not None:
        write_atomically(folder / VOCABULARY, vocabulary_bytes(classes))
    default: list[SplitFiles] = []
    for split in SPLITS:
        chosen = [each for each in publications if each["split"] == split]
        rows = _rows(store, chosen, tally)
        if classes is not None:
            rows = _with_classes(rows, classes)
        default += _write_split(folder, "data", split, rows, len(chosen), model, profile.publish)
    everywhere = [*shards, ("publish", "all")]
    manifests = {each: store.manifest(*each) or {} for each in shards} | {("publish", "all"): dict(manifest)}
    count = sum(each["counts"]["rejected"] + each["counts"]["failed"] for each in manifests.values())
    dropped = _rejections(store, everywhere)
    rejected = _write_split(folder, "rejected", "rejected", dropped, count, PublishedRejection, profile.publish)
    return CardFacts(
        title=_title(profile),
        folder=shown_folder(profile.out),
        simulated_footage=profile.oops.root is None,
        simulated_images=profile.generate.backend == "simulator",
        configs=[
            ConfigFiles(name, splits, features_of(columns)._to_yaml_list())
            for name, splits, columns in (("default", default, model), ("rejected", rejected, PublishedRejection))
            if splits
        ],
        stages=stage_counts(store, everywhere),
        kinds=kind_counts(store, [shard for stage, shard in shards if stage == "generate"]),
        hard=hard_counts(publications),
        engines=engines_used(profile, manifests.values()),
        prompts=_prompts(manifests.values()),
        thresholds=_thresholds(profile),
        train_videos=len(tally.videos["train"]),
        test_videos=len(tally.videos["test"]),
        shared_videos=len(tally.videos["train"] & tally.videos["test"]),
        reviewed_rows=tally.reviewed,
        corrected_rows=tally.corrected,
        content_digest=content_digest(folder),
        replies=reply_counts(store, everywhere),
        classes={name: len(made) for name, made in (classes or {}).items()},
        warnings=_warnings(default, rejected, manifests.values()),
    )


def label_classes(store: Store, publications: Sequence[Mapping[str, Any]]) -> Classes:
    """The classes of the published rows' labels, counted over both splits."""
    counts: dict[str, Counter[str]] = {question: Counter() for question in QUESTIONS}
    for shard, group in itertools.groupby(publications, key=lambda row: row["shard"]):
        labels = store.rows("attributes", shard, QUESTIONS, [each["id"] for each in group])
        for question, count in counts.items():
            count.update(vocabulary_module.counted(row[question] for row in labels.values()))
    return {question: vocabulary_module.classes(question, count) for question, count in counts.items()}


def vocabulary_bytes(classes: Classes) -> bytes:
    """`vocabulary.json`: for each column its classes, most frequent first, with the labels they are made of."""
    told = {
        question: [{"class": each.name, "count": each.count, "labels": each.variants} for each in made]
        for question, made in classes.items()
    }
    return json.dumps(told, indent=1, ensure_ascii=False).encode()


def _with_classes(rows: Iterable[PublishedRow], classes: Classes) -> Iterator[ClassedRow]:
    names = {question: vocabulary_module.class_of(made) for question, made in classes.items()}
    for row in rows:
        own: dict[str, Any] = {
            f"{name}_class": names[name][label] if (label := getattr(row, name)) else None for name in QUESTIONS
        }
        yield ClassedRow(**dict(row), **own)


def read_publications(store: Store) -> list[dict[str, Any]]:
    """What a finished publish shard decided, as rows of `Publication`, by shard and id."""
    columns = ["id", "split", "shard", "hard_image_id", "hard_shard"]
    return sorted(store.table("publish", "all", columns).to_pylist(), key=lambda row: (row["shard"], row["id"]))


def _rows(store: Store, publications: Sequence[Mapping[str, Any]], tally: _Tally) -> Iterator[PublishedRow]:
    """The rows of one split, shard by shard, in id order; images are read `READ_ROWS` at a time."""
    for shard, group in itertools.groupby(publications, key=lambda row: row["shard"]):
        yield from _shard_rows(store, shard, list(group), tally)


def _shard_rows(
    store: Store, shard: str, publications: Sequence[Mapping[str, Any]], tally: _Tally
) -> Iterator[PublishedRow]:
    split = shard_kind(shard)
    texts = store.rows("decompose", shard, ["caption", "factors", "decomposer"])
    captioners = store.rows("recaption", shard, ["captioner"])
    labels = store.rows("attributes", shard, ["action", "anomaly", "scene", "labeller"])
    reviews = store.rows("review", shard, ["reviewed", "corrected"]) if split == "test" else {}
    hard_texts = _hard_texts(store, publications)
    columns = ["source_id", "pair_id", "video", "kind", "behavior", "source_caption", "image", "width", "height",
               "sha256", "transition_time_s", "seed", "generator"]  # fmt: skip
    for start in range(0, len(publications), READ_ROWS):
        part = publications[start : start + READ_ROWS]
        ids = [each["id"] for each in part]
        images = store.rows(image_stage(shard), shard, columns, ids)
        poses = store.rows("keypoints", shard, ["persons", "pose_map"], ids)
        sources = {}
        if split == "test":
            sources = store.rows("sources", "test-000", ["caption"], [row["source_id"] for row in images.values()])
        for each in part:
            record_id = each["id"]
            image, pose, text = images[record_id], poses[record_id], texts[record_id]
            source = sources.get(image["source_id"], {}).get("caption") if split == "test" else image["source_caption"]
            hard = hard_texts[each["hard_image_id"]] if each["hard_image_id"] else {"caption": None, "factors": None}
            review = reviews.get(record_id, {"reviewed": False, "corrected": False})
            tally.videos[split].add(image["video"])
            tally.reviewed += review["reviewed"]
            tally.corrected += review["corrected"]
            yield PublishedRow(
                image=published_image(record_id, image["image"]),
                pose=published_image(f"{record_id}_pose", pose["pose_map"]),
                caption=text["caption"],
                image_id=record_id,
                source_id=image["source_id"],
                source_caption=source,
                kind=image["kind"],
                behavior=image["behavior"],
                action=labels[record_id]["action"],
                anomaly=labels[record_id]["anomaly"],
                scene=labels[record_id]["scene"],
                factors=text["factors"],
                hard_image_id=each["hard_image_id"],
                hard_caption=hard["caption"],
                hard_factors=hard["factors"],
                pair_id=image["pair_id"],
                video=image["video"],
                transition_time_s=image["transition_time_s"],
                keypoints=pose["persons"],
                width=image["width"],
                height=image["height"],
                sha256=image["sha256"],
                seed=image["seed"],
                generator=image["generator"],
                captioner=captioners[record_id]["captioner"],
                labeller=labels[record_id]["labeller"],
                decomposer=text["decomposer"],
                reviewed=review["reviewed"],
            )


def _hard_texts(store: Store, publications: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Caption and factors of the hard negatives of one shard's rows; they may lie in other shards."""
    wanted: dict[str, list[str]] = {}
    for each in publications:
        if each["hard_image_id"]:
            wanted.setdefault(each["hard_shard"], []).append(each["hard_image_id"])
    found: dict[str, dict[str, Any]] = {}
    for shard, ids in wanted.items():
        found |= store.rows("decompose", shard, ["caption", "factors"], ids)
    return found


def _rejections(store: Store, shards: Shards) -> Iterator[PublishedRejection]:
    for stage, shard in shards:
        for row in store.dropped(stage, shard):
            yield PublishedRejection(stage=stage, shard=shard, **row)


def _write_split(
    folder: Path,
    subfolder: str,
    split: str,
    rows: Iterator[BaseModel],
    count: int,
    model: type[BaseModel],
    section: PublishSection,
) -> list[SplitFiles]:
    """Write `count` rows as numbered files; nothing where there are none. Holds one row group in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not count:
        return []
    schema = features_of(model).arrow_schema
    (folder / subfolder).mkdir(exist_ok=True)
    files = math.ceil(count / section.rows_per_file)
    written = memory = disk = 0
    for number in range(files):
        path = folder / subfolder / f"{split}-{number:05d}-of-{files:05d}.parquet"
        in_file = itertools.islice(rows, section.rows_per_file)
        with path.open("wb") as file:
            with pq.ParquetWriter(file, schema, compression="zstd") as writer:
                while group := list(itertools.islice(in_file, section.rows_per_group)):
                    table = pa.Table.from_pylist([row.model_dump() for row in group], schema=schema)
                    writer.write_table(table, row_group_size=len(group))
                    written += len(group)
                    memory += table.nbytes
            file.flush()
            os.fsync(file.fileno())
        disk += path.stat().st_size
    if written != count or next(rows, None) is not None:
        raise RuntimeError(f"{split}: {count} rows were to be written, {written} were: the shards changed meanwhile")
    return [SplitFiles(split, f"{subfolder}/{split}-*-of-{files:05d}.parquet", count, memory, disk)]


# What the card and the report count.


def stage_counts(store: Store, shards: Shards) -> list[StageCount]:
    """In, kept, rejected and failed of each stage and split, over the shards that are finished."""
    groups: dict[tuple[str, str], list[str]] = {}
    for stage, shard in shards:
        if store.manifest(stage, shard) is not None:
            groups.setdefault((stage, shard_kind(shard)), []).append(shard)
    counts = []
    for (stage, split), names in groups.items():
        rejected: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        went_in = kept = 0
        for shard in names:
            count = (store.manifest(stage, shard) or {})["counts"]
            went_in += count["in"]
            kept += count["kept"]
            for row in store.dropped(stage, shard):
                (rejected if row["outcome"] == "rejected" else failed)[row["reason"]] += 1
        counts.append(StageCount(stage, split, went_in, kept, dict(rejected), dict(failed)))
    return counts


def reply_counts(store: Store, shards: Shards) -> list[ReplyCount]:
    """What the engines that write text replied to each stage and split, over the shards that are finished."""
    groups: dict[tuple[str, str], Counter[str]] = {}
    for stage, shard in shards:
        manifest = store.manifest(stage, shard)
        if stage not in REPLYING or manifest is None:
            continue
        count = groups.setdefault((stage, shard_kind(shard)), Counter())
        count.update(store.table(stage, shard, ["id", "answered"])["answered"].to_pylist())
        count.update({reason: number for reason, number in manifest["reasons"].items() if reason in _OWN_COLUMN})
        count.update({name: manifest["counts"][name] for name in ("rejected", "failed")})
    return [
        ReplyCount(
            stage=stage,
            split=split,
            first_try=count["first try"],
            retried=count["retried"],
            in_part=count["in part"],
            refused=count["refusal"],
            cut=count["reply_cut"],
            errors=count["failed"] - count["reply_cut"],
            useless=count["rejected"] - count["refusal"],
        )
        for (stage, split), count in groups.items()
    ]


_OWN_COLUMN = ("refusal", "reply_cut")
"""Reasons that `reply_counts` tells apart."""


def kind_counts(store: Store, shards: Sequence[str]) -> list[KindCount]:
    """Generated images by kind on their way through these training shards; a stage that is not finished counts none."""
    ways: dict[str, Counter[str]] = {stage: Counter() for stage in ("generate", "keypoints", "publish")}
    for shard in shards:
        for stage in ("generate", "keypoints"):
            if store.manifest(stage, shard) is not None:
                ways[stage].update(kind_of(record_id) for record_id in store.kept_ids(stage, shard))
        if store.manifest("generate", shard) is not None:
            ways["generate"].update(kind_of(row["id"]) for row in store.dropped("generate", shard))
    if store.manifest("publish", "all") is not None:
        ways["publish"].update(kind_of(row["id"]) for row in read_publications(store) if row["split"] == "train")
    return [KindCount(kind, *(ways[stage][kind] for stage in ("generate", "keypoints", "publish"))) for kind in KINDS]


def kind_of(record_id: str) -> str:
    """The kind in a record's id, `<video key>_<kind>[...]`."""
    return record_id.split("_")[1]


def hard_counts(publications: Sequence[Mapping[str, Any]]) -> list[HardCount]:
    """Published rows by split, kind and where their hard negative is."""
    places: dict[tuple[str, str], Counter[str]] = {}
    for each in publications:
        where = "none" if each["hard_shard"] is None else "same" if each["hard_shard"] == each["shard"] else "other"
        places.setdefault((each["split"], kind_of(each["id"])), Counter())[where] += 1
    return [
        HardCount(split, kind, places[split, kind]["same"], places[split, kind]["other"], places[split, kind]["none"])
        for split in SPLITS
        for kind in KINDS
        if (split, kind) in places
    ]


def engines_used(profile: Profile, manifests: Iterable[Mapping[str, Any]]) -> list[EngineUsed]:
    """The engines that the finished shards name, in the order of the stages. Paths in their settings are shortened."""
    known: dict[str, Mapping[str, Any]] = {}
    for manifest in manifests:
        known |= manifest.get("engines", {})
    used = []
    for section, job in registry.SECTION_JOBS.items():
        if section in known:
            backend = getattr(profile, section).backend
            settings = {name: _no_path(value) for name, value in known[section].get("settings", {}).items()}
            revision = f"{known[section]['name']} {known[section]['revision']}"
            embedded = registry.entry(section, backend).embedded
            used.append(EngineUsed(job, backend, revision, json.dumps(settings, sort_keys=True), embedded))
    return used


def _no_path(value: Any) -> Any:
    return f".../{Path(value).name}" if isinstance(value, str) and Path(value).is_absolute() else value


def _prompts(manifests: Iterable[Mapping[str, Any]]) -> list[PromptText]:
    used: dict[str, str] = {}
    for manifest in manifests:
        used |= manifest.get("prompts", {})
    prompts = []
    for prompt_id, sha256 in sorted(used.items()):
        prompt = load_prompt(prompt_id)
        text = prompt.text if prompt.sha256 == sha256 else "(the prompt's file is another by now)"
        prompts.append(PromptText(prompt_id, sha256, prompt.source, text))
    return prompts


def _title(profile: Profile) -> str:
    """The profile's title, unless that speaks of footage that a real OOPS! folder has taken the place of."""
    return profile.title if profile.oops.root is None or profile.footage is None else "PAB rebuilt on an OOPS! folder"


def _thresholds(profile: Profile) -> dict[str, Any]:
    paths = ("seed", "sources.splits", "frames.splits", "frames.transition", "frames.quality_rule",
             "generate.images_per_caption", "keypoints.people", "keypoints.structure", "similarity.max_cosine",
             "review.reviewers")  # fmt: skip
    flat: dict[str, Any] = {}
    for path in paths:
        value = profile.section(path)
        if isinstance(value, dict):
            flat |= {f"{path}.{name}": each for name, each in value.items()}
        else:
            flat[path] = ", ".join(value) if isinstance(value, list) else value
    return flat


def _warnings(
    default: Sequence[SplitFiles], rejected: Sequence[SplitFiles], manifests: Iterable[Mapping[str, Any]]
) -> list[str]:
    there = {each.name for each in (*default, *rejected)}
    warnings = [
        f"no {split} image came through, so the split {split} is left out" for split in SPLITS if split not in there
    ]
    if "rejected" not in there:
        warnings.append("nothing was dropped, so the config rejected is left out")
    failed = sum(manifest["counts"]["failed"] for manifest in manifests)
    if failed:
        warnings.append(f"{failed} records failed on the way; the config rejected says where and why")
    return warnings
