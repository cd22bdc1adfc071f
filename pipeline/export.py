"""`python -m pipeline.export --format pab|webdataset|jsonl DIR`: a dataset of this project in the layouts of others.

pab: the released folder, as the published CMP, SeDA and LightAIR loaders read it. webdataset: tar shards. jsonl:
pictures and `metadata.jsonl`, the image folder of `datasets`. Pictures are copied byte for byte, in a stream.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pipeline.cli import DONE, Bar, guarded
from pipeline.core.dataset_folder import (
    CARD,
    Place,
    is_ours,
    may_show_real_people,
    published_image,
    read_split,
    split_files,
)
from pipeline.core.errors import UserError
from pipeline.core.store import file_digest, write_atomically
from schemas.records import KINDS

DEFAULT_DATA = Path("out/pab")
FORMATS = ("pab", "webdataset", "jsonl")
NOTE = "export.json"
MAKER = "pab-rebuild export"
LICENCE_OPTION = "--real-frames-licence-confirmed"

FILES_PER_FOLDER = 5000
"""Of the image folder; the hub takes at most 10,000 files a folder."""
SHARD_SAMPLES, SHARD_BYTES = 1000, 300 << 20

REASONS = {
    "may_show_real_people": f"a frame of a real video, or of unknown origin: needs {LICENCE_OPTION}",
    "no_behavior": "neither normal nor anomaly, and the loaders want one of them",
    "no_pose": "no pose map, where other images of the split have one",
    "no_hard_negative": "no hard negative among what goes out, and the loaders want one (--keep-without-hard)",
}

_OURS = {
    "pab": re.compile(rf"(train|test|ucc|pose|annotation|[^/]*multi-weather[^/]*)/.*|README\.md|{re.escape(NOTE)}"),
    "webdataset": re.compile(rf"\w+-\d{{6}}\.tar|README\.md|{re.escape(NOTE)}"),
    "jsonl": re.compile(rf"\w+/(metadata\.jsonl|images/.*)|README\.md|{re.escape(NOTE)}"),
}
_PLAN_COLUMNS = ("image_id", "kind", "behavior", "video", "pair_id", "source_id", "hard_image_id", "image.path",
                 "pose.path", "generator")  # fmt: skip


@dataclass(frozen=True)
class Export:
    """What is wanted."""

    data: Path
    out: Path
    format: str
    splits: tuple[str, ...]
    licence_confirmed: bool = False
    keep_without_hard: bool = False


@dataclass
class Told:
    """What went out, by split, and what was left out, by split and reason."""

    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept_names: dict[str, bool] = field(default_factory=dict)


class Plan:
    """What each image is called on the other side: worked out from the texts alone, before a picture is copied.

    Lies in a file; a million rows take no memory to speak of.
    """

    def __init__(self, path: Path | None) -> None:
        self._known = sqlite3.connect("" if path is None else str(path), isolation_level=None)
        self._known.execute("PRAGMA journal_mode=OFF")
        self._known.execute("PRAGMA synchronous=OFF")
        self._known.execute("BEGIN")
        self._known.execute(
            "CREATE TABLE rows (split TEXT, id TEXT, match TEXT, person TEXT, kind INTEGER, folder INTEGER, hard TEXT,"
            " path TEXT, source TEXT, number INTEGER, name TEXT, new_id TEXT, PRIMARY KEY (split, id)) WITHOUT ROWID"
        )
        self._known.execute("CREATE TABLE lines (file TEXT, number INTEGER, line TEXT)")

    def add(self, **values: Any) -> None:
        """Note a row that goes out."""
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        self._known.execute(f"INSERT INTO rows ({names}) VALUES ({marks})", tuple(values.values()))

    def ask(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        """The rows that a query gives, as they come."""
        yield from self._known.cursor().execute(query, values)

    def tell(self, query: str, *values: Any) -> int:
        """Change something; how many rows it changed."""
        return self._known.execute(query, values).rowcount

    def tell_many(self, query: str, values: Sequence[tuple[Any, ...]]) -> None:
        """The same change with many values."""
        self._known.executemany(query, values)

    def named(self, split: str, image_id: str) -> tuple[str, str, str] | None:
        """(path, new id, new source id) of an image that goes out, else None."""
        query = "SELECT name, new_id, source FROM rows WHERE split = ? AND id = ?"
        return self._known.execute(query, (split, image_id)).fetchone()

    def close(self) -> None:
        self._known.close()


def make_plan(wanted: Export, plan: Plan, told: Told) -> None:
    """Decide which rows go out, and for `pab` what they are called there."""
    may_show = may_show_real_people(wanted.data)
    files = split_files(wanted.data)
    posed = _posed_splits(wanted)
    for split in wanted.splits:
        for row in read_split(files[split], _there(files[split], _PLAN_COLUMNS)):
            reason = None
            if may_show(row) and not wanted.licence_confirmed:
                reason = "may_show_real_people"
            elif wanted.format == "pab" and split == "train" and _kind(row) is None:
                reason = "no_behavior"
            elif wanted.format == "pab" and posed[split] and not row["pose"]:
                reason = "no_pose"
            if reason:
                told.left_out[split, reason] += 1
                continue
            kind = _kind(row)
            plan.add(
                split=split,
                id=row["image_id"],
                match=row.get("match_id") or row["image_id"],
                person=row["video"] or row["pair_id"] or row["image_id"],
                kind=None if kind is None else KINDS.index(kind),  # type: ignore[arg-type]
                folder=_folder(row),
                hard=row["hard_image_id"],
                path=row["image"]["path"],
                source=row["source_id"],
            )
    if wanted.format == "pab":
        if "train" in wanted.splits and not wanted.keep_without_hard:
            _drop_without_hard(plan, told)
        persons = "SELECT DISTINCT person FROM rows ORDER BY person"
        plan.tell("CREATE TABLE persons (person TEXT PRIMARY KEY, number INTEGER)")
        plan.tell_many("INSERT INTO persons VALUES (?, ?)", [(row[0], n) for n, row in enumerate(plan.ask(persons))])
        plan.tell("UPDATE rows SET number = (SELECT number FROM persons p WHERE p.person = rows.person)")
        shared: dict[str, int] = {}
        for split in wanted.splits:
            if split == "train":
                _name_train(plan, told)
            else:
                _name_others(plan, told, split, {} if split == "ucc" else shared)
    for split in wanted.splits:
        told.rows[split] = next(plan.ask("SELECT count(*) FROM rows WHERE split = ?", split))[0]


def _posed_splits(wanted: Export) -> dict[str, bool]:
    """Whether a split has any pose map."""
    files = split_files(wanted.data)
    return {split: any(row["pose"] for row in read_split(files[split], ["pose.path"])) for split in wanted.splits}


def _there(files: Sequence[Path], columns: Sequence[str]) -> list[str]:
    """Of these columns those that the files have, and `match_id` where they have it."""
    import pyarrow.parquet as pq

    names = set(pq.read_schema(files[0]).names)
    return [each for each in (*columns, "match_id") if each.split(".")[0] in names]


def _kind(row: Mapping[str, Any]) -> str | None:
    """The row's kind, else the folder that its behaviour belongs in."""
    return row["kind"] or {"normal": "goal", "anomaly": "wentrong"}.get(row["behavior"])


_RELEASED = re.compile(r"train/imgs_(\d{1,6})/(goal|wentrong|full)/[\w-]+\.[\w-]+")


def _folder(row: Mapping[str, Any]) -> int | None:
    """The number of the row's `imgs_` folder: of the one it came from, else the image number at the end of its id."""
    if match := _RELEASED.fullmatch(row["image"]["path"] or ""):
        return int(match[1])
    tail = row["image_id"].removeprefix(f"{row['source_id']}_")
    return int(tail) if tail != row["image_id"] and re.fullmatch(r"\d{1,6}", tail) else None


def _drop_without_hard(plan: Plan, told: Told) -> None:
    """Leave out rows whose hard negative does not go out, until all that are left have one."""
    query = (
        "DELETE FROM rows WHERE split = 'train' AND"
        " (hard IS NULL OR hard NOT IN (SELECT id FROM rows WHERE split = 'train'))"
    )
    while dropped := plan.tell(query):
        told.left_out["train", "no_hard_negative"] += dropped


def _name_train(plan: Plan, told: Told) -> None:
    """`train/imgs_k/{goal,wentrong,full}/n.jpg`, ids `k_running number`, sources `n_{0,1,2}`; n is the video's number.

    Rows that come from a released folder keep the names they had there.
    """
    released = True
    seen: set[str] = set()
    for folder, kind, path in plan.ask("SELECT folder, kind, path FROM rows WHERE split = 'train' ORDER BY path"):
        match = _RELEASED.fullmatch(path or "")
        released = released and match is not None and match[2] == KINDS[kind] and int(match[1]) == folder
        released = released and path not in seen
        seen = {path}
    told.kept_names["train"] = released
    if released:
        plan.tell("UPDATE rows SET name = path, new_id = id WHERE split = 'train'")
        return
    _part_folders(plan)
    running: Counter[int] = Counter()
    new = []
    query = "SELECT id, folder, kind, number FROM rows WHERE split = 'train' ORDER BY folder, kind, number, id"
    for image_id, folder, kind, number in plan.ask(query):
        path = f"train/imgs_{folder}/{KINDS[kind]}/{number}.jpg"
        new.append((path, f"{folder}_{running[folder]}", f"{number}_{kind}", image_id))
        running[folder] += 1
        if len(new) == 10_000:
            _put_names(plan, new)
    _put_names(plan, new)


def _put_names(plan: Plan, new: list[tuple[str, str, str, str]]) -> None:
    plan.tell_many("UPDATE rows SET name = ?, new_id = ?, source = ? WHERE split = 'train' AND id = ?", new)
    new.clear()


def _part_folders(plan: Plan) -> None:
    """One image of a kind and video in a folder: the second and those without a folder go where there is room."""
    changed: list[tuple[int, str]] = []
    before: tuple[Any, ...] = ()
    taken: set[int] = set()
    query = ("SELECT id, number, kind, folder FROM rows WHERE split = 'train' ORDER BY number, kind, folder IS NULL,"
             " folder, id")  # fmt: skip
    for image_id, number, kind, folder in plan.ask(query):
        if (number, kind) != before:
            before, taken = (number, kind), set()
        place = folder
        if place is None or place in taken:
            place = next(free for free in range(len(taken) + 1) if free not in taken)
            changed.append((place, image_id))
        taken.add(place)
    plan.tell_many("UPDATE rows SET folder = ? WHERE split = 'train' AND id = ?", changed)


_RELEASED_TEST = re.compile(r"(test|ucc|([\w-]+/)*[\w-]*multi-weather[\w-]*(/[\w-]+)*)/[\w-]+\.[\w-]+")


def _name_others(plan: Plan, told: Told, split: str, numbers: dict[str, int]) -> None:
    """`test/n.jpg` with whole numbers as ids, as `torch.tensor` wants them; names and ids that are so already stay.

    numbers: those given so far, to the images that a picture of other weather shares its number with.
    """
    found = list(plan.ask("SELECT id, match, path, kind, source, number FROM rows WHERE split = ? ORDER BY id", split))
    matches = {match for _, match, *_ in found}
    numbered = all(re.fullmatch(r"0|[1-9]\d{0,17}", match) for match in matches)
    paths = [path or "" for _, _, path, *_ in found]
    released = numbered and len(set(paths)) == len(paths) and all(_RELEASED_TEST.fullmatch(path) for path in paths)
    told.kept_names[split] = released
    if numbered:
        numbers |= {match: int(match) for match in matches}
    free = max(numbers.values(), default=-1)
    folder = split if split in ("test", "ucc") else f"multi-weather/{split.removeprefix('weather_')}"
    for place, (image_id, match, path, kind, source, person) in enumerate(found):
        if match not in numbers:
            free += 1
            numbers[match] = free
        name = path if released else f"{folder}/{place if split == 'ucc' else numbers[match]}.jpg"
        new_source = source if released else None if kind is None else f"{person}_{kind}"
        query = "UPDATE rows SET name = ?, new_id = ?, source = ? WHERE split = ? AND id = ?"
        plan.tell(query, name, str(numbers[match]), new_source, split, image_id)


# Writers.


def write_pab(wanted: Export, plan: Plan, folder: Path, bar: Callable[[], None]) -> None:
    """Write the released layout into an empty folder."""
    made: set[Path] = set()

    def put(name: str, data: bytes) -> None:
        path = folder / name
        if path.parent not in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            made.add(path.parent)
        path.write_bytes(data)

    factors = False
    sources: dict[str, str] = {}
    for split, row in _rows(wanted, plan):
        named = plan.named(split, row["image_id"])
        assert named is not None
        name, new_id, source = named
        put(name, row["image"]["bytes"])
        if row["pose"] is not None and not (split.startswith("weather_") and "test" in wanted.splits):
            put(_pose_name(name), row["pose"]["bytes"])
        line = _released_row(plan, split, row, name, new_id, source)
        if source and row["source_caption"]:
            sources.setdefault(source, row["source_caption"])
        decoupled = [[_parts(row["factors"]), _parts(row["hard_factors"])]]
        factors = factors or bool(row["factors"])
        file, number = _annotation(split, name, new_id)
        text = json.dumps(line, ensure_ascii=False)
        with_factors = json.dumps({**line, "decoupled_caption": decoupled}, ensure_ascii=False)
        if split != "train" and row["factors"]:
            text = with_factors
        plan.tell("INSERT INTO lines VALUES (?, ?, ?)", file, number, text)
        if split == "train":
            plan.tell(
                "INSERT INTO lines VALUES (?, ?, ?)", file.replace("/train/", "/train_decouple/"), number, with_factors
            )
        bar()
    if not factors:
        plan.tell("DELETE FROM lines WHERE file LIKE 'annotation/train_decouple/%'")
    _write_lines(plan, folder)
    told = "".join(
        json.dumps({"source_id": name, "source_caption": sources[name]}, ensure_ascii=False) + "\n"
        for name in sorted(sources)
    )
    (folder / "annotation").mkdir(exist_ok=True)
    (folder / "annotation/source_caption.json").write_text(told, "utf-8")
    with (folder / "annotation/image_ids.jsonl").open("w", encoding="utf-8") as listed:
        for split, image_id, new_id, name in plan.ask("SELECT split, id, new_id, name FROM rows ORDER BY split, id"):
            known = {"split": split, "dataset_image_id": image_id, "image_id": new_id, "image": name}
            listed.write(json.dumps(known, ensure_ascii=False) + "\n")


def _rows(wanted: Export, plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows that go out, with their pictures, one by one."""
    files = split_files(wanted.data)
    for split in wanted.splits:
        for row in read_split(files[split]):
            if next(plan.ask("SELECT 1 FROM rows WHERE split = ? AND id = ?", split, row["image_id"]), None):
                yield split, row


def _released_row(
    plan: Plan, split: str, row: Mapping[str, Any], name: str, new_id: str, source: str | None
) -> dict[str, Any]:
    """A row with the keys of the release; a text that nobody knows is empty."""
    train = split == "train"
    line: dict[str, Any] = {"image": name}
    if train:
        line |= {"caption": row["caption"], "image_id": new_id}
        partner = plan.named(split, row["hard_image_id"]) if row["hard_image_id"] else None
        if partner is not None:
            line |= {
                "hard_i": partner[0].removeprefix("train/"),
                "hard_c": row["hard_caption"],
                "hard_i_id": partner[1],
            }
    else:
        line |= {"image_id": int(new_id), "caption": row.get("captions") or [row["caption"]]}
    if source:
        line["source_id"] = source
    if train or row["source_caption"]:
        line["source_caption"] = row["source_caption"] or ""
    behavior = row["behavior"] or {"goal": "normal", "wentrong": "anomaly", "full": "anomaly"}.get(row["kind"])
    if behavior:
        line[behavior] = row["action" if behavior == "normal" else "anomaly"] or ""
    if train or row["scene"]:
        line["scene"] = row["scene"] or ""
    return line


def _parts(factors: Mapping[str, str | None] | None) -> dict[str, str]:
    return {name: (factors or {}).get(name) or "" for name in ("appearance", "action", "background")}


def _annotation(split: str, name: str, new_id: str) -> tuple[str, int]:
    """The annotation file of a row, and its place there."""
    if split == "train":
        folder = name.split("/")[1].removeprefix("imgs_")
        tail = new_id.rpartition("_")[2]
        return f"annotation/train/attr_{folder}.json", int(tail) if tail.isdecimal() else 0
    if split.startswith("weather_"):
        return f"annotation/multi-weather/multi-weather_{split.removeprefix('weather_')}.json", int(new_id)
    return f"annotation/test/{'attr' if split == 'test' else split}.json", int(new_id)


def _pose_name(name: str) -> str:
    return f"pose/test/{Path(name).name}" if "multi-weather" in name else f"pose/{name}"


def _write_lines(plan: Plan, folder: Path) -> None:
    open_as: str | None = None
    file: Any = None
    for name, line in plan.ask("SELECT file, line FROM lines ORDER BY file, number, rowid"):
        if name != open_as:
            if file is not None:
                file.close()
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            open_as, file = name, path.open("w", encoding="utf-8", newline="\n")
        file.write(f"{line}\n")
    if file is not None:
        file.close()


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its pictures."""
    return {name: value for name, value in row.items() if name not in ("image", "pose")}


_TEXTS = ("caption", "image_id", "match_id", "source_id", "source_caption", "kind", "behavior", "action", "anomaly",
          "scene", "hard_image_id", "hard_caption", "pair_id", "video", "sha256")  # fmt: skip


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in columns whose types do not depend on what is in it."""
    return {
        **{name: row.get(name) or "" for name in _TEXTS},
        "captions": row.get("captions") or [row["caption"]],
        "factors": _parts(row["factors"]),
        "hard_factors": _parts(row["hard_factors"]),
        "width": row["width"],
        "height": row["height"],
        "record": json.dumps(_plain(row), ensure_ascii=False),
    }


def write_webdataset(wanted: Export, plan: Plan, folder: Path, bar: Callable[[], None]) -> None:
    """Write tar shards into an empty folder: `.jpg`, `.pose.jpg` and `.json` a sample, the same bytes each time."""
    shards: Counter[str] = Counter()
    samples = size = 0
    tar: tarfile.TarFile | None = None
    file: BinaryIO | None = None
    current = ""
    written: Counter[str] = Counter()
    for split, row in _rows(wanted, plan):
        if tar is None or split != current or samples >= SHARD_SAMPLES or size >= SHARD_BYTES:
            _close(tar, file)
            file = (folder / f"{split}-{shards[split]:06d}.tar").open("wb")
            tar = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            shards[split] += 1
            samples = size = 0
            current = split
        key = f"{split}_{written[split]:09d}"
        parts = [("jpg", row["image"]["bytes"])]
        if row["pose"] is not None:
            parts.append(("pose.jpg", row["pose"]["bytes"]))
        parts.append(("json", json.dumps(_plain(row), ensure_ascii=False, sort_keys=True).encode()))
        for ending, data in parts:
            member = tarfile.TarInfo(f"{key}.{ending}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
            size += len(data)
        samples += 1
        written[split] += 1
        bar()
    _close(tar, file)


def _close(tar: tarfile.TarFile | None, file: BinaryIO | None) -> None:
    if tar is not None and file is not None:
        tar.close()
        file.close()


def write_jsonl(wanted: Export, plan: Plan, folder: Path, bar: Callable[[], None]) -> None:
    """Write `SPLIT/metadata.jsonl` and `SPLIT/images/` into an empty folder.

    The columns have the same types in every split and row, since `datasets` reads the types off the first rows: a text
    that nobody knows is empty. `record` is the row as it is, as JSON.
    """
    posed = _posed_splits(wanted)
    with_poses = all(posed.values())
    for split in wanted.splits:
        (folder / split).mkdir()
    files = {split: (folder / split / "metadata.jsonl").open("w", encoding="utf-8", newline="\n")
             for split in wanted.splits}  # fmt: skip
    written: Counter[str] = Counter()
    try:
        for split, row in _rows(wanted, plan):
            number = written[split]
            stem = f"images/{number // (FILES_PER_FOLDER // 2):05d}/{number:09d}"
            line: dict[str, Any] = {}
            for column, mark in (("image", ""), ("pose", "_pose"))[: 2 if with_poses else 1]:
                name = None
                if row[column] is not None:
                    data = row[column]["bytes"]
                    name = published_image(f"{stem}{mark}", data).path
                    (folder / split / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / split / name).write_bytes(data)
                line["file_name" if column == "image" else "pose_file_name"] = name
            files[split].write(json.dumps({**line, **_flat(row)}, ensure_ascii=False) + "\n")
            written[split] += 1
            bar()
    finally:
        for file in files.values():
            file.close()


_WRITERS: dict[str, Callable[[Export, Plan, Path, Callable[[], None]], None]] = {
    "pab": write_pab,
    "webdataset": write_webdataset,
    "jsonl": write_jsonl,
}


def run_export(wanted: Export, dry: bool = False, force: bool = False) -> bool:
    """Export, and say what went out. Returns False where the folder holds just this already and nothing was done."""
    out = wanted.out.resolve()
    _check_place(out)
    key = _key(wanted)
    if not dry and not force and _known_key(out) == key:
        print(f"{wanted.out} is already what {wanted.data} gives; nothing to do (--force: again)")
        return False
    told = Told()
    place = Place(out, out, "another DIR", _check_place, _OURS[wanted.format])
    if dry:
        plan = Plan(None)
        make_plan(wanted, plan, told)
        plan.close()
        print("\n".join(summary(wanted, told)))
        print("\nNothing is written: this was a dry run.")
        return True
    place.recover()
    folder = place.building()
    plan = Plan(folder / ".plan.sqlite")
    try:
        make_plan(wanted, plan, told)
        total = sum(told.rows.values())
        if not total:
            raise UserError(_nothing(wanted, told))
        shown = Bar(f"export {wanted.format}", "rows")
        done = 0

        def bar() -> None:
            nonlocal done
            done += 1
            shown(done, total)

        _WRITERS[wanted.format](wanted, plan, folder, bar)
        shown.close()
        plan.close()
        (folder / ".plan.sqlite").unlink()
        write_atomically(folder / CARD, _readme(wanted, told).encode())
        note = {"made_by": MAKER, "key": key, "format": wanted.format, "rows": dict(told.rows)}
        write_atomically(folder / NOTE, json.dumps(note, indent=1).encode())
        place.swap()
    except BaseException:
        plan.close()
        place.abandon()
        raise
    print("\n".join(summary(wanted, told)))
    print(f"\n{wanted.out}: {', '.join(f'{split} {count:,}' for split, count in told.rows.items())}")
    return True


def summary(wanted: Export, told: Told) -> list[str]:
    """What goes out and what does not, for a person."""
    lines = [f"{split}: {count:,} rows go out" for split, count in told.rows.items()]
    lines += [
        f"{split}: {count:,} left out, {reason}: {REASONS[reason]}"
        for (split, reason), count in sorted(told.left_out.items())
    ]
    if wanted.format == "pab":
        for split, kept in told.kept_names.items():
            names = "as they came" if kept else "new; annotation/image_ids.jsonl says which image is which"
            lines.append(f"{split}: names and ids are {names}")
    return lines


def _nothing(wanted: Export, told: Told) -> str:
    reasons = Counter({reason: 0 for _, reason in told.left_out})
    for (_, reason), count in told.left_out.items():
        reasons[reason] += count
    why = "; ".join(f"{count:,}: {REASONS[reason]}" for reason, count in reasons.most_common())
    return f"{wanted.data}: no row can go out ({why or 'it has none'})"


def _readme(wanted: Export, told: Told) -> str:
    how = {
        "pab": "The layout of the released PAB folder, as the published CMP, SeDA and LightAIR loaders read it. All "
        "pictures are named `.jpg` as there and copied byte for byte: a pose map that was a PNG is one still, and "
        "readers that go by content (Pillow) do not mind. Where nobody knows a label or scene it is empty.",
        "webdataset": "Tar shards (WebDataset): `.jpg`, `.pose.jpg` and `.json` a sample. Pictures are copied byte for "
        "byte: a pose map that was a PNG is one still under its fixed name; Pillow-based decoders go by content.",
        "jsonl": "An image folder of `datasets`: `SPLIT/metadata.jsonl` and pictures; `load_dataset` on this folder "
        "reads it. A text that nobody knows is empty; `record` holds each row as it is, as JSON. Pose maps are a "
        "column where every split has some.",
    }[wanted.format]
    head = ""
    if wanted.format == "jsonl":
        import yaml

        files = [{"split": split, "path": f"{split}/**"} for split in told.rows if told.rows[split]]
        config = {"configs": [{"config_name": "default", "data_files": files}]}
        head = f"---\n{yaml.safe_dump(config, sort_keys=False)}---\n\n"
    rows = "\n".join(f"* {line}" for line in summary(wanted, told))
    return f"{head}# Export of a dataset\n\n{how}\n\n{rows}\n"


def _key(wanted: Export) -> str:
    """What an export depends on: the data files by size and time, the options, and the code."""
    files = [
        (path.name, path.stat().st_size, path.stat().st_mtime_ns)
        for split in wanted.splits
        for path in split_files(wanted.data)[split]
    ]
    options = [wanted.format, list(wanted.splits), wanted.licence_confirmed, wanted.keep_without_hard]
    basis = [files, options, file_digest(Path(__file__))]
    return hashlib.sha256(json.dumps(basis).encode()).hexdigest()


def _known_note(out: Path) -> dict[str, Any]:
    try:
        known = json.loads((out / NOTE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) and known.get("made_by") == MAKER else {}


def _known_key(out: Path) -> str | None:
    return _known_note(out).get("key")


def _check_place(out: Path, _option: str = "") -> None:
    """Raises UserError unless the folder is absent, empty, or an earlier export."""
    if not out.exists() and not out.is_symlink():
        return
    if not out.is_dir():
        raise UserError(f"{out} is not a folder; choose another")
    if any(out.iterdir()) and not _known_note(out):
        raise UserError(f"{out} holds something else than an export of this project and stays as it is; choose another")


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        prog="python -m pipeline.export",
        description="Write a dataset of this project in a layout that others read. Pictures are copied byte for byte.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="formats:\n"
        "  pab         the released folder: what the published CMP, SeDA and LightAIR loaders read\n"
        "  webdataset  tar shards with .jpg, .pose.jpg and .json a sample\n"
        "  jsonl       pictures and metadata.jsonl, the image folder of datasets",
    )
    made.add_argument("folder", type=Path, metavar="DIR", help="where to; an earlier export there is replaced")
    made.add_argument("--format", required=True, choices=FORMATS)
    made.add_argument("--data", type=Path, default=DEFAULT_DATA, metavar="FOLDER", help=f"default: ./{DEFAULT_DATA}")
    made.add_argument("--splits", metavar="NAMES", help="separated by commas (default: all that are there)")
    made.add_argument(
        LICENCE_OPTION,
        action="store_true",
        dest="licence_confirmed",
        help="let frames of real videos, and images of unknown origin, go out too: you have checked their terms",
    )
    made.add_argument(
        "--keep-without-hard",
        action="store_true",
        help="pab: write training rows that have no hard negative, too; the published loaders do not take them",
    )
    made.add_argument("--dry-run", action="store_true", help="say what would go out and write nothing")
    made.add_argument("--force", action="store_true", help="write again even where nothing has changed")
    return made


def wanted_export(options: argparse.Namespace) -> Export:
    """What the options ask for. Raises UserError where it is not there."""
    data = options.data
    if not is_ours(data):
        raise UserError(
            f"--data {data}: no dataset of this project is there; build one with python -m pipeline.build, or bring "
            "one in with python -m pipeline.import_pab"
        )
    there = split_files(data)
    if options.splits is None:
        splits = list(there)
    else:
        splits = list(dict.fromkeys(name.strip() for name in options.splits.split(",") if name.strip()))
        if unknown := [name for name in splits if name not in there]:
            raise UserError(f"--splits {unknown[0]}: {data} has no such split; it has {', '.join(there)}")
    if not splits:
        raise UserError(f"--data {data}: it has no rows")
    out, root = options.folder.resolve(), data.resolve()
    if out.is_relative_to(root) or root.is_relative_to(out):
        raise UserError(f"{options.folder} and {data} lie in each other; choose another DIR")
    return Export(
        data, options.folder, options.format, tuple(splits), options.licence_confirmed, options.keep_without_hard
    )


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.export`."""
    options = parser().parse_args(argv)

    def run() -> int:
        run_export(wanted_export(options), options.dry_run, options.force)
        return DONE

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
