"""Writes the models that a profile's `tiny_models` names, and a reviewers' file beside them. Not a stage: they stand in
for weights that somebody trained and for people who looked, so that the paper's engines run where neither is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pipeline.backends.tiny import make
from pipeline.cli import DONE, Bar, common_parser, guarded, profile_and_build
from pipeline.core.profile import Profile
from pipeline.core.prompts import load_prompt
from pipeline.core.runner import Progress
from pipeline.core.store import write_atomically
from pipeline.core.workers import use_one_thread

PROMPTS = ("caption", "action", "anomaly", "scene", "decompose")
"""What the models are fitted to answer."""
REVIEWS = "reviews.jsonl"
"""In the models' folder; read where `review.file` of the profile says so."""


def wanting(profile: Profile) -> bool:
    """Whether the profile names tiny models that are not there yet."""
    if profile.tiny_models is None:
        return False
    return not make.is_made(profile.tiny_models.folder, profile.tiny_models.seed, _prompts())


def will_be_written(profile: Profile, model: str) -> bool:
    """Whether a model that an engine of the profile names is one that `write` makes and has not made yet."""
    if profile.tiny_models is None or Path(model).name not in make.MODELS:
        return False
    return Path(model).parent.absolute() == profile.tiny_models.folder.absolute() and wanting(profile)


def write(profile: Profile, progress: Progress | None = None) -> int:
    """Write the models where they are wanting, half a minute of a CPU. Returns how many the profile has."""
    if profile.tiny_models is None:
        return 0
    if wanting(profile):
        make.write_tiny_models(profile.tiny_models.folder, profile.tiny_models.seed, _prompts(), progress)
    return len(make.MODELS)


def write_reviews(profile: Profile) -> None:
    """Write the decisions of as many reviewers as the profile asks for: every third pair of the test clips is dropped.

    Nothing is written for a profile whose `review.file` is another one. The clips must be there.
    """
    from pipeline import stages
    from pipeline.formats.oops import video_key
    from pipeline.formats.oops_shards import frame_videos

    if profile.tiny_models is None or profile.review.file is None:
        return
    place = profile.tiny_models.folder / REVIEWS
    if profile.review.file.absolute() != place.absolute():
        return
    shards = stages.shard_names(stages.stage("frames"), profile)
    pairs = sorted(video_key(video.name) for shard in shards for video in frame_videos(profile, shard))
    decisions = [
        {"pair_id": pair, "reviewer": f"reviewer {reviewer}", "keep": number % 3 != 2}
        for number, pair in enumerate(pairs)
        for reviewer in range(1, profile.review.reviewers + 1)
    ]
    text = "".join(json.dumps(decision) + "\n" for decision in decisions)
    if not place.is_file() or place.read_text("utf-8") != text:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, text.encode())


def _prompts() -> dict[str, str]:
    return {name: load_prompt(name).text for name in PROMPTS}


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m pipeline.tiny_models`."""
    use_one_thread()
    parser = common_parser("pipeline.tiny_models", "Write the tiny models of a profile that names some.")
    options = parser.parse_args(argv)

    def run() -> int:
        profile, _ = profile_and_build(options)
        if profile.tiny_models is None:
            print(f"nothing to write: the profile {options.profile} has no tiny_models")
        elif wanting(profile):
            write(profile, Bar("tiny models", "models"))
            print(f"written: {profile.tiny_models.folder}")
        else:
            print(f"up to date: {profile.tiny_models.folder}")
        return DONE

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
