"""`python -m pipeline.publish --push REPO`: a finished dataset to a hub, off by default and shown before it is sent.

Frames of real videos, and images of unknown origin, stay here unless their licence is confirmed by an option. What goes
out is what this project wrote, nothing else that lies in the folder.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pipeline.cli import DONE, guarded
from pipeline.core.card import size_category
from pipeline.core.dataset_folder import (
    CARD,
    VOCABULARY,
    card_head,
    is_ours,
    may_show_real_people,
    read_split,
    split_files,
)
from pipeline.core.errors import UserError, one_line

DEFAULT_DATA = Path("out/pab")
LICENCE_OPTION = "--real-frames-licence-confirmed"
TOKEN = "HF_TOKEN"
MOST_FILE_BYTES = 50 * 10**9
MOST_FILES_IN_FOLDER = 10_000
"""A hub's limits for one file and one folder."""

HELP = (
    "With --push REPO nothing is built: the finished dataset goes to a hub instead. See python -m pipeline.publish "
    "--push REPO --help."
)

_SENT = re.compile(r"(data|rejected)/\w+-\d{5}-of-\d{5}\.parquet")
_SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
_TASKS = ("text-retrieval", "image-feature-extraction", "sentence-similarity", "image-to-text", "text-to-image",
          "image-classification", "zero-shot-image-classification", "visual-question-answering", "other")  # fmt: skip
_LICENCES = ("apache-2.0", "mit", "cc0-1.0", "cc-by-4.0", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nc-sa-4.0", "other",
             "unknown")  # fmt: skip
_CREATORS = ("found", "crowdsourced", "expert-generated", "machine-generated", "no-annotation", "other")
_KEYS = {
    *("language", "license", "license_name", "license_link", "license_details", "annotations_creators", "tags"),
    *("language_creators", "multilinguality", "size_categories", "source_datasets", "task_categories", "task_ids"),
    *("paperswithcode_id", "pretty_name", "configs", "dataset_info", "viewer", "modality", "extra_gated_prompt"),
}
"""What a hub knows in the head of a dataset's card."""


@dataclass(frozen=True)
class Parcel:
    """What would be sent: files by their path in the repository, the card, and the splits that stay, with why."""

    data: Path
    files: dict[str, Path]
    card: str
    staying: dict[str, str]
    problems: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes, the card among them."""
        return sum(path.stat().st_size for path in self.files.values()) + len(self.card.encode())


def make_parcel(data: Path, licence_confirmed: bool) -> Parcel:
    """What would be sent of a dataset. Raises UserError where none of this project is there, or nothing may go."""
    if not is_ours(data):
        raise UserError(f"--data {data}: no dataset of this project is there; build one with python -m pipeline.build")
    splits = split_files(data)
    staying = {} if licence_confirmed else dict(_splits_with_real_people(data))
    going = [split for split in splits if split not in staying]
    if not going:
        why = "; ".join(f"{split}: {reason}" for split, reason in staying.items()) or "it has no rows"
        raise UserError(f"--data {data}: nothing may be sent ({why}; {LICENCE_OPTION} if you have checked their terms)")
    paths = [path for split in going for path in splits[split]]
    paths += sorted((data / "rejected").glob("*.parquet"))
    files = {name: path for path in paths if _SENT.fullmatch(name := path.relative_to(data).as_posix())}
    if (data / VOCABULARY).is_file():
        files[VOCABULARY] = data / VOCABULARY
    if links := [name for name, path in files.items() if path.is_symlink()]:
        raise UserError(f"--data {data}: {links[0]} is a link; only files of the folder are sent")
    text = (data / CARD).read_text("utf-8")
    card = card_without(text, card_head(data), staying) if staying else text
    sizes = {name: path.stat().st_size for name, path in files.items()}
    return Parcel(data, files, card, staying, tuple(card_problems(card, files, sizes)))


def _splits_with_real_people(data: Path) -> Iterator[tuple[str, str]]:
    may_show = may_show_real_people(data)
    for split, files in split_files(data).items():
        count = sum(may_show(row) for row in read_split(files, ["generator"]))
        if count:
            yield split, f"{count:,} of its images are frames of real videos or of unknown origin"


def card_without(text: str, head: dict[str, Any], staying: dict[str, str]) -> str:
    """The card of a dataset whose splits of these names are not sent: its head names them no more, a line says so."""
    import yaml

    new = copy.deepcopy(head)
    for config in new.get("configs", []):
        config["data_files"] = [each for each in config["data_files"] if each["split"] not in staying]
    total = 0
    for info in new.get("dataset_info", []):
        info["splits"] = [each for each in info["splits"] if each["name"] not in staying]
        info["dataset_size"] = sum(each["num_bytes"] for each in info["splits"])
        info.pop("download_size", None)  # that of the files which are not sent is in it
        if info["config_name"] == "default":
            total = sum(each["num_examples"] for each in info["splits"])
    new["size_categories"] = [size_category(total)]
    body = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)[2].lstrip("\n")
    title, _, rest = body.partition("\n")
    names = " and ".join(sorted(staying))
    note = (
        f"> Not here: {names}. Their images are frames of real videos, or nobody wrote down where they are from, and "
        "their licence is not confirmed. What follows describes the dataset as it was built, with them."
    )
    return f"---\n{yaml.safe_dump(new, sort_keys=False, allow_unicode=True, width=120)}---\n\n{title}\n\n{note}\n{rest}"


def card_problems(text: str, files: dict[str, Path], sizes: dict[str, int]) -> Iterator[str]:
    """What a hub's rules for the card and the files would object to; asks nobody.

    files: what is sent, by path in the repository; sizes: bytes of each.
    """
    import yaml

    parts = re.split(r"^---\s*$", text, maxsplit=2, flags=re.MULTILINE)
    try:
        head = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0].strip() else None
    except yaml.YAMLError as error:
        yield f"the card's head is no YAML ({one_line(error)})"
        return
    if not isinstance(head, dict):
        yield "the card has no YAML head"
        return
    yield from _unreadable(text)
    yield from _values(head)
    yield from _matched_files(head, files)
    for name, size in sizes.items():
        if size > MOST_FILE_BYTES:
            yield f"{name} has {size:,} bytes, a hub takes {MOST_FILE_BYTES:,}"
    folders = [name.rpartition("/")[0] for name in files]
    for folder in sorted(set(folders)):
        if folders.count(folder) > MOST_FILES_IN_FOLDER:
            count = folders.count(folder)
            yield f"{folder or 'the top folder'} has {count:,} files, a hub takes {MOST_FILES_IN_FOLDER:,}"


def _unreadable(text: str) -> Iterator[str]:
    """Whether the hub's own library takes the head."""
    from huggingface_hub import DatasetCard

    try:
        DatasetCard(text)
    except Exception as error:  # it raises ValueError, TypeError and those of its YAML reader
        yield f"huggingface_hub does not take the card's head ({one_line(error)})"


def _values(head: dict[str, Any]) -> Iterator[str]:
    if unknown := sorted(set(map(str, head)) - _KEYS):
        yield f"the card has keys that a hub does not know: {', '.join(unknown)}"
    licence = head.get("license")
    if licence not in _LICENCES:
        yield f"license is {licence!r}; a hub wants one of {', '.join(_LICENCES)}"
    name = head.get("license_name")
    if licence == "other" and not (isinstance(name, str) and re.fullmatch(r"[a-z0-9.-]+", name)):
        yield f"license is other, so license_name must be a short name of a-z, 0-9, - and dots, not {name!r}"
    if not isinstance(head.get("pretty_name"), str):
        yield "pretty_name is no text"
    for key, allowed in (("size_categories", _SIZES), ("task_categories", _TASKS), ("annotations_creators", _CREATORS)):
        values = head.get(key, [])
        if not isinstance(values, list) or [each for each in values if each not in allowed]:
            yield f"{key} is {values!r}; a hub wants a list of {', '.join(allowed)}"
    languages = head.get("language", [])
    if not isinstance(languages, list) or not all(re.fullmatch("[a-z]{2,3}", str(each)) for each in languages):
        yield f"language is {languages!r}; a hub wants a list of ISO 639 codes"
    tags = head.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(each, str) and 0 < len(each) < 100 for each in tags):
        yield "tags is no list of short texts"


def _matched_files(head: dict[str, Any], files: dict[str, Path]) -> Iterator[str]:
    """Whether each split's pattern finds files, and each file is found; rows against what the files say."""
    import pyarrow.parquet as pq

    found: set[str] = set()
    rows: dict[tuple[str, str], int] = {}
    try:
        for config in head["configs"]:
            for each in config["data_files"]:
                matched = [name for name in files if fnmatch(name, each["path"])]
                if not matched:
                    yield f"{config['config_name']}, {each['split']}: no file is {each['path']}"
                found.update(matched)
                counts = [pq.read_metadata(files[name]).num_rows for name in matched]
                rows[config["config_name"], each["split"]] = sum(counts)
        said = {
            (info["config_name"], each["name"]): each["num_examples"]
            for info in head["dataset_info"]
            for each in info["splits"]
        }
    except (KeyError, TypeError) as error:
        yield f"configs or dataset_info is not as `datasets` writes it ({one_line(error)})"
        return
    except OSError as error:
        yield f"a data file cannot be read ({one_line(error)})"
        return
    if stray := sorted(name for name in files if name.endswith(".parquet") and name not in found):
        yield f"no config names {stray[0]}"
    for key, count in said.items():
        if rows.get(key) != count:
            yield f"{key[0]}, {key[1]}: the card says {count:,} rows, the files have {rows.get(key, 0):,}"


def told(parcel: Parcel, repo: str, private: bool) -> list[str]:
    """What would be sent, for a person."""
    files = {name: path.stat().st_size for name, path in parcel.files.items()} | {CARD: len(parcel.card.encode())}
    lines = [f"{name}  {size / 1e6:,.1f} MB" for name, size in sorted(files.items())]
    lines += [f"stays here: {split}: {reason} ({LICENCE_OPTION})" for split, reason in parcel.staying.items()]
    lines += [f"problem: {problem}" for problem in parcel.problems] or ["the card passes a hub's rules"]
    to = (
        f"{len(files):,} files, {parcel.size / 1e6:,.1f} MB, to the {'private' if private else 'public'} dataset {repo}"
    )
    return [*lines, to]


def send(parcel: Parcel, repo: str, private: bool, api: Any = None) -> str:
    """Send it. Returns the address. api: `huggingface_hub.HfApi`, made from the environment's token where it is None.

    Raises UserError without a token, where the card has problems, where the dataset there is public and should be
    private, and for what the hub answers.
    """
    if parcel.problems:
        raise UserError(f"{parcel.data}: {parcel.problems[0]}; nothing is sent")
    token = os.environ.get(TOKEN)
    if not token:
        raise UserError(f"no token: put one that may write into the environment, {TOKEN}=...")
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(token=token) if api is None else api
    try:
        address = str(api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True))
        if private and api.repo_info(repo, repo_type="dataset").private is False:
            raise UserError(f"{repo} is there and public; add --public if it should be, or choose another name")
        with staged(parcel) as folder:
            api.upload_folder(
                repo_id=repo,
                repo_type="dataset",
                folder_path=folder,
                commit_message="Dataset by pab-rebuild",
                # What an earlier push with other file numbers left would be read along with it.
                delete_patterns=["data/*.parquet", "rejected/*.parquet", VOCABULARY],
            )
    except OfflineModeIsEnabled:
        raise UserError("HF_HUB_OFFLINE is set, so no hub may be asked; unset it to send") from None
    except (HfHubHTTPError, HTTPError, OSError) as error:
        raise UserError(f"{repo}: the hub did not take it ({one_line(error)}); run the same command again") from None
    return address


@contextmanager
def staged(parcel: Parcel) -> Iterator[Path]:
    """A folder beside the dataset with just what is sent, by hard links where the disk has them."""
    folder = parcel.data.resolve().with_name(f".{parcel.data.resolve().name}.push")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        for name, path in parcel.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                (folder / name).hardlink_to(path)
            except OSError:
                shutil.copyfile(path, folder / name)
        (folder / CARD).write_text(parcel.card, "utf-8")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parser() -> argparse.ArgumentParser:
    """The options of a push."""
    made = argparse.ArgumentParser(
        prog="python -m pipeline.publish",
        description="Send a finished dataset to a hub of datasets. Shows what would be sent; --yes sends it. The token "
        f"comes from the environment ({TOKEN}), the hub's address too (HF_ENDPOINT).",
    )
    made.add_argument("--push", required=True, metavar="REPO", help="name of the dataset there: OWNER/NAME")
    made.add_argument("--data", type=Path, default=DEFAULT_DATA, metavar="FOLDER", help=f"default: ./{DEFAULT_DATA}")
    made.add_argument("--yes", action="store_true", help="send it (default: only show what would be sent)")
    made.add_argument("--dry-run", action="store_true", help="only show what would be sent, which is the default")
    made.add_argument("--public", action="store_true", help="let everybody see it (default: private)")
    made.add_argument(
        LICENCE_OPTION,
        action="store_true",
        dest="licence_confirmed",
        help="send frames of real videos, and images of unknown origin, too: you have checked their terms",
    )
    return made


def push_main(argv: Sequence[str] | None = None, api: Any = None) -> int:
    """`python -m pipeline.publish --push REPO`."""
    options = parser().parse_args(argv)

    def run() -> int:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(options.push)
        except HFValidationError as error:
            raise UserError(f"--push {options.push}: {one_line(error)}") from None
        parcel = make_parcel(options.data, options.licence_confirmed)
        print("\n".join(told(parcel, options.push, not options.public)))
        if options.dry_run or not options.yes:
            print("\nNothing is sent: this was a dry run. Add --yes to send it.")
            return DONE
        print(f"\nsent: {send(parcel, options.push, not options.public, api)}")
        return DONE

    return guarded(run)


def publish_main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.publish`: the stage, or with --push the hub."""
    words = list(sys.argv[1:] if argv is None else argv)
    if any(word == "--push" or word.startswith("--push=") for word in words):
        return push_main(words)
    from pipeline.run_stage import stage_main

    return stage_main("publish", words, epilog=HELP)
