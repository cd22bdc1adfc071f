"""Captioner, Labeller and Decomposer over a chat model, and the replies of any engine of these jobs as they came.

Only what needs the model is here: asking, and asking again where a reply was cut, did not parse or was not faithful.
What a reply says is read by `core.replies`, which the stages call again on what was stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from pipeline.backends import chat
from pipeline.backends.chat.settings import Rule, read_settings
from pipeline.backends.protocols import (
    BackendContext,
    Captioner,
    CaptionRequest,
    ChatModel,
    ChatReply,
    ChatRequest,
    Decomposer,
    FactorTexts,
    Labeller,
    LabelRequest,
    Labels,
    Reply,
)
from pipeline.core.replies import FACTORS, judge_factors, last_replies, read_answer, read_caption, was_cut, writable
from pipeline.core.seeds import seed_of
from schemas.records import Factors, FrozenReply

MORE_ROOM = 2
"""A reply that was cut is asked for once more with so many times the tokens."""

Replies = list[tuple[FrozenReply, ...]]
"""What each request was replied, in the order asked; the last reply to a question stands."""


@runtime_checkable
class AsksCaptions(Protocol):
    """A captioner that gives its replies as they came."""

    def ask_captions(self, requests: Sequence[CaptionRequest]) -> Replies: ...


@runtime_checkable
class AsksLabels(Protocol):
    """A labeller that gives its replies as they came."""

    def ask_labels(self, requests: Sequence[LabelRequest]) -> Replies: ...


@runtime_checkable
class AsksFactors(Protocol):
    """A decomposer that gives its replies as they came."""

    def ask_factors(self, captions: Sequence[str], prompt: str) -> Replies: ...


def caption_replies(captioner: Captioner, requests: Sequence[CaptionRequest]) -> Replies:
    """The replies of any captioner: of one that gives none, its answers are its replies."""
    if isinstance(captioner, AsksCaptions):
        return captioner.ask_captions(requests)
    return [(plain_reply("caption", reply.text, reply.error),) for reply in captioner.caption(requests)]


def label_replies(labeller: Labeller, requests: Sequence[LabelRequest]) -> Replies:
    """The replies of any labeller, one a question at least, in the order of the request's prompts."""
    if isinstance(labeller, AsksLabels):
        return labeller.ask_labels(requests)
    found: Replies = []
    for request, labels in zip(requests, labeller.label(requests), strict=True):
        values = {question: labels.scene if question == "scene" else labels.behavior for question in request.prompts}
        texts = {question: labels.raw.get(question, value) for question, value in values.items()}
        found.append(tuple(plain_reply(question, text, None) for question, text in texts.items()))
    return found


def factor_replies(decomposer: Decomposer, captions: Sequence[str], prompt: str) -> Replies:
    """The replies of any decomposer, one a caption at least."""
    if isinstance(decomposer, AsksFactors):
        return decomposer.ask_factors(captions, prompt)
    texts = [
        json.dumps({name: getattr(split, name) for name in FACTORS}, ensure_ascii=False)
        for split in decomposer.decompose(captions, prompt)
    ]
    return [(plain_reply("factors", text, None),) for text in texts]


def plain_reply(question: str, text: str | None, error: str | None) -> FrozenReply:
    """The answer of an engine that knows no tokens, seeds or attempts, as a reply."""
    return FrozenReply(
        question=question,
        attempt=0,
        seed=None,
        temperature=None,
        max_tokens=None,
        text=writable(text),
        finish_reason=None,
        prompt_tokens=None,
        completion_tokens=None,
        error=writable(error),
    )


@dataclass(frozen=True)
class _Question:
    """A request and which question it asks."""

    question: str
    request: ChatRequest
    attempt: int = 0


class _ChatRole:
    """A job done by a chat model. Settings of its own, besides the engine's:

    max_tokens: room of a reply (captions 256, labels 48, factors 512). temperature (0: the likeliest token). seed (0):
    of what is drawn; above temperature 0 each request has its own, made from this one and from what is asked about.
    """

    engine: ClassVar[str]
    role_revision: ClassVar[str] = "1"
    rules: ClassVar[Mapping[str, Rule]]

    def __init__(self, context: BackendContext) -> None:
        """Loads no model. Raises UserError for a setting that neither job nor engine knows, or a wrong value."""
        own, engines = _divided(self.rules, context.settings)
        self._settings = read_settings(self.engine, self.rules, own)
        self._chat: ChatModel = chat.chat_model(self.engine, engines, context.build_dir)
        self.name = self._chat.name
        self.revision = f"{self.role_revision}+{self._chat.revision}"

    @classmethod
    def identity(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What identifies the answers: name, revision, and those settings that shape an answer."""
        own, engines = _divided(cls.rules, settings)
        read_settings(cls.engine, cls.rules, own)
        known = chat.identity(cls.engine, engines)
        return {
            "name": known["name"],
            "revision": f"{cls.role_revision}+{known['revision']}",
            "settings": {**known["settings"], **own},
        }

    def _request(self, record_id: str, text: str, **more: Any) -> ChatRequest:
        sampling = {name: self._settings[name] for name in ("max_tokens", "seed", "temperature")}
        return ChatRequest(id=record_id, text=text, **{**sampling, **more})

    def _seed(self, about: str, question: str, attempt: int = 0) -> int:
        """The seed of one request. Of one seed for all, images without much to tell apart would get the same answer."""
        if attempt == 0 and not self._settings["temperature"]:
            return self._settings["seed"]
        return seed_of(about, question, self._settings["seed"], attempt) % 2**31

    def _ask(self, questions: Sequence[_Question]) -> list[list[FrozenReply]]:
        """The replies to each question: one, and a second with more room where the first was cut."""
        found = [[reply] for reply in self._ask_once(questions)]
        cut = [number for number, replies in enumerate(found) if was_cut(replies[-1])]
        again = [_with_more_room(questions[number]) for number in cut]
        for number, reply in zip(cut, self._ask_once(again), strict=True):
            found[number].append(reply)
        return found

    def _ask_once(self, questions: Sequence[_Question]) -> list[FrozenReply]:
        if not questions:
            return []
        replies = self._chat.chat([each.request for each in questions])
        return [_frozen(each, reply) for each, reply in zip(questions, replies, strict=True)]


class ChatCaptioner(_ChatRole):
    """`Captioner` by a chat model with eyes: the image, then the instruction."""

    rules: ClassVar[Mapping[str, Rule]] = {
        "max_tokens": Rule(256, int, least=1),
        "seed": Rule(0, int, least=0),
        "temperature": Rule(0.0, float, least=0),
    }

    def ask_captions(self, requests: Sequence[CaptionRequest]) -> Replies:
        """The replies to each request."""
        asked = [
            _Question(
                "caption",
                self._request(each.id, each.prompt, image=each.image, seed=self._seed(each.id, "caption")),
            )
            for each in requests
        ]
        return [tuple(replies) for replies in self._ask(asked)]

    def caption(self, requests: Sequence[CaptionRequest]) -> list[Reply]:
        """One reply a request, in order: the caption alone, or an error, which a cut reply is too."""
        found = []
        for replies in self.ask_captions(requests):
            reply = replies[-1]
            error = reply.error or ("the reply was cut" if was_cut(reply) else None)
            found.append(Reply(None, error) if error else Reply(read_caption(reply.text or "").value or ""))
        return found


class ChatLabeller(_ChatRole):
    """`Labeller` by a chat model with eyes: both questions about an image next to each other, image first."""

    rules: ClassVar[Mapping[str, Rule]] = {
        "max_tokens": Rule(48, int, least=1),
        "seed": Rule(0, int, least=0),
        "temperature": Rule(0.0, float, least=0),
    }

    def ask_labels(self, requests: Sequence[LabelRequest]) -> Replies:
        """The replies to each request, those to its first question first."""
        asked = [
            _Question(question, self._request(each.id, text, image=each.image, seed=self._seed(each.id, question)))
            for each in requests
            for question, text in each.prompts.items()
        ]
        replies = iter(self._ask(asked))
        return [tuple(reply for _ in each.prompts for reply in next(replies)) for each in requests]

    def label(self, requests: Sequence[LabelRequest]) -> list[Labels]:
        """One answer a request, in order; None where a reply holds no label, was cut or is an error."""
        found = []
        for replies in self.ask_labels(requests):
            last = last_replies(replies)
            values = {
                name: None if was_cut(reply) else read_answer(name, reply.text or "").value
                for name, reply in last.items()
            }
            behavior = next((value for name, value in values.items() if name != "scene"), None)
            raw = {name: reply.text or "" for name, reply in last.items()}
            found.append(Labels(behavior, values.get("scene"), raw))
        return found


class ChatDecomposer(_ChatRole):
    """`Decomposer` by a chat model held to the schema of `Factors`. Settings of its own besides those of all jobs:

    resample (2): how often a caption is asked about again, each time with another seed, whose reply does not parse or
    says what the caption does not. resample_temperature (0.7): of those; at 0 the same would come again.
    """

    rules: ClassVar[Mapping[str, Rule]] = {
        "max_tokens": Rule(512, int, least=1),
        "seed": Rule(0, int, least=0),
        "temperature": Rule(0.0, float, least=0),
        "resample": Rule(2, int, least=0),
        "resample_temperature": Rule(0.7, float, least=0.01),
    }

    def ask_factors(self, captions: Sequence[str], prompt: str) -> Replies:
        """The replies to each caption. `prompt` holds `{caption}`. An error or a reply cut twice is not asked
        again: the engine has tried, or the text will not end.
        """
        schema = Factors.model_json_schema()
        found: list[list[FrozenReply]] = [[] for _ in captions]
        open_ = list(range(len(captions)))
        for attempt in range(1 + self._settings["resample"]):
            asked = []
            for number in open_:
                caption = captions[number]
                sampling: dict[str, Any] = {"seed": self._seed(caption, "decompose", attempt)}
                if attempt:
                    sampling["temperature"] = self._settings["resample_temperature"]
                text = prompt.replace("{caption}", caption)
                request = self._request(f"caption {number}", text, schema=schema, **sampling)
                asked.append(_Question("factors", request, attempt=len(found[number])))
            for number, replies in zip(open_, self._ask(asked), strict=True):
                found[number] += replies
            open_ = [number for number in open_ if _ask_again(captions[number], found[number][-1])]
            if not open_:
                break
        return [tuple(replies) for replies in found]

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        """One split a caption, in order: of the most faithful reply, without what the caption does not say."""
        found = []
        for caption, replies in zip(captions, self.ask_factors(captions, prompt), strict=True):
            factors = best_factors(caption, replies)
            found.append(FactorTexts(*((getattr(factors, name) if factors else None) for name in FACTORS)))
        return found


def best_factors(caption: str, replies: Sequence[FrozenReply]) -> Factors | None:
    """The factors of the first good reply, else of the one with most faithful factors; None where none parses."""
    judged = [judge_factors(caption, each.text) for each in replies if each.error is None and not was_cut(each)]
    best = max(judged, key=lambda each: (each.good, each.found), default=None)
    return best.factors if best is not None else None


def _ask_again(caption: str, reply: FrozenReply) -> bool:
    return reply.error is None and not was_cut(reply) and not judge_factors(caption, reply.text).good


def _with_more_room(asked: _Question) -> _Question:
    request = replace(asked.request, max_tokens=asked.request.max_tokens * MORE_ROOM)
    return replace(asked, request=request, attempt=asked.attempt + 1)


def _frozen(asked: _Question, reply: ChatReply) -> FrozenReply:
    return FrozenReply(
        question=asked.question,
        attempt=asked.attempt,
        seed=asked.request.seed,
        temperature=asked.request.temperature,
        max_tokens=asked.request.max_tokens,
        text=writable(reply.text),
        finish_reason=reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        error=writable(reply.error),
    )


def _divided(rules: Mapping[str, Rule], settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the job, and those of its engine."""
    own = {key: value for key, value in settings.items() if key in rules}
    return own, {key: value for key, value in settings.items() if key not in rules}


class VllmCaptioner(ChatCaptioner):
    """Captions by vLLM in this process."""

    engine = "vllm"


class VllmLabeller(ChatLabeller):
    """Labels by vLLM in this process."""

    engine = "vllm"


class VllmDecomposer(ChatDecomposer):
    """Factors by vLLM in this process."""

    engine = "vllm"


class OpenaiCaptioner(ChatCaptioner):
    """Captions by an OpenAI-compatible server."""

    engine = "openai"


class OpenaiLabeller(ChatLabeller):
    """Labels by an OpenAI-compatible server."""

    engine = "openai"


class OpenaiDecomposer(ChatDecomposer):
    """Factors by an OpenAI-compatible server."""

    engine = "openai"


class TransformersCaptioner(ChatCaptioner):
    """Captions by transformers in this process."""

    engine = "transformers"


class TransformersLabeller(ChatLabeller):
    """Labels by transformers in this process."""

    engine = "transformers"


class TransformersDecomposer(ChatDecomposer):
    """Factors by transformers in this process."""

    engine = "transformers"
