"""Chat with a server that speaks OpenAI's protocol: vLLM's, or any other.

A vLLM server is best started with `--generation-config vllm`: otherwise it takes what a request does not name, such as
the repetition penalty, from the model's own generation_config.json. Images go as PNG unless `image_format` says jpeg:
it is lossless, so the server's model sees the pixels that one in this process would; JPEG (quality 95) is a second
lossy step, but fewer bytes where the server is far away.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from pipeline.backends.chat import images
from pipeline.backends.chat.request_cache import RequestCache, content_key
from pipeline.backends.chat.settings import Rule, read_settings, required_model
from pipeline.backends.protocols import ChatReply, ChatRequest
from pipeline.core.errors import UserError, one_line
from pipeline.core.images import encode_jpeg, encode_png

DEFAULTS = {
    "model": Rule(None, str),
    "revision": Rule(None, str),
    "base_url": Rule("http://127.0.0.1:8000/v1", str),
    "api_key_env": Rule(None, str),
    "concurrency": Rule(16, int, least=1),
    "timeout_s": Rule(120.0, float, least=0.01),
    "retries": Rule(5, int, least=0),
    "backoff_s": Rule(0.5, float, least=0),
    "longest_wait_s": Rule(120.0, float, least=0),
    "max_pixels": Rule(images.DEFAULT_MAX_PIXELS, int, least=images.GRID_PIXELS**2),
    "image_format": Rule("png", str, choices=("png", "jpeg")),
    "thinking": Rule("off", str, choices=("off", "unsaid")),
}
"""model: the name that the server serves. revision: the commit of its weights, which no server tells: it stands in what
identifies the answers. api_key_env: the environment variable with the key, none for a server that wants none.
concurrency: questions at once. timeout_s: of one try. retries: further tries after 408, 409, 429, 5xx, a timeout, a
lost connection or a reply that is none; the first after backoff_s, each next after twice as long, or when Retry-After
says. longest_wait_s: between two tries; a server that says longer has failed. max_pixels: of an image. thinking: `off`
sends chat_template_kwargs, which vLLM knows; `unsaid` leaves it to a server that refuses the field."""
SHAPING = ("max_pixels", "image_format", "thinking")

REQUEST_CACHE = "chat-replies.sqlite"
"""The file of a build's folder that keeps the replies."""
_PROBE_S = 3.0
_RETRIED = frozenset({408, 409, 429})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class _ServerGoneError(Exception):
    """The server answers nobody any more; holds the one line that says so."""


class OpenAIServer:
    """ChatModel over HTTP; replies are kept in the build's folder by the content of the question."""

    name = "openai"

    def __init__(self, settings: Mapping[str, Any], build_dir: Path | None = None) -> None:
        self._settings = read_settings(self.name, DEFAULTS, settings)
        self._model = required_model(self.name, self._settings["model"])
        parts = urlsplit(self._settings["base_url"])
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise UserError("'openai' setting base_url: write it as http://host:port/v1, without a password in it")
        self._host = parts.hostname
        self.revision = f"1+{self._model}@{self._settings['revision'] or 'unstated'}"
        self._cache = None if build_dir is None else RequestCache(build_dir / REQUEST_CACHE)
        self._client: Any = None
        self._client_pid = 0
        self._checked = False
        self.requests_sent = 0
        """Requests that went to the server, further tries included."""
        self._counting = threading.Lock()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """One reply a request, in order. A question asked before in this build is not sent again.

        Raises UserError where the server cannot be reached (also when it goes away meanwhile: what it answered is kept,
        and the next run asks only for the rest) or does not serve the model.
        """
        ready, replies = images.prepared(requests, self._settings["max_pixels"])
        by_key: dict[str, list[int]] = {}
        for position, key in enumerate(self._keys(ready, replies)):
            if key is not None:
                by_key.setdefault(key, []).append(position)
        missing = []
        for key, positions in by_key.items():
            kept = self._cache.get(key) if self._cache else None
            if kept is None:
                missing.append(key)
            else:
                replies.update(dict.fromkeys(positions, kept))
        if missing:
            self._check_once()
            answered = self._ask_all({key: ready[by_key[key][0]] for key in missing})
            for key, reply in answered.items():
                replies.update(dict.fromkeys(by_key[key], reply))
        return [replies[position] for position in range(len(requests))]

    def problems(self) -> list[str]:
        """What stands in the way of asking: no answer within three seconds, the key, the model. One line each."""
        where = f"the chat server {self._settings['base_url']}"
        openai = _openai()
        try:
            listed = self._started().with_options(timeout=_PROBE_S, max_retries=0).models.list()
            served = [str(model.id) for model in listed.data]
        except UserError as error:
            return [str(error)]
        except openai.APIConnectionError:
            return [f"{where} does not answer; start it, e.g. vllm serve {self._model} --generation-config vllm"]
        except openai.AuthenticationError:
            variable = self._settings["api_key_env"]
            hint = f"the key in {variable}" if variable else "no key: name its variable with the setting api_key_env"
            return [f"{where} refuses {hint}"]
        except openai.APIStatusError as error:
            return [f"{where} answers {error.status_code} when asked which models it serves"]
        except (openai.OpenAIError, ValueError, TypeError, AttributeError):
            return [
                f"{where} does not speak OpenAI's protocol: {self._settings['base_url']}/models is no list of models"
            ]
        if self._model not in served:
            return [f"{where} serves {', '.join(served) or 'nothing'}, not {self._model}"]
        return []

    def close(self) -> None:
        """Give connections and the file of replies back; the next question opens them again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._cache is not None:
            self._cache.close()

    def _check_once(self) -> None:
        if not self._checked:
            if found := self.problems():
                raise UserError(found[0])
            self._checked = True

    def _keys(self, requests: Sequence[ChatRequest], refused: Mapping[int, ChatReply]) -> list[str | None]:
        digests: dict[int, str] = {}
        keys: list[str | None] = []
        for position, request in enumerate(requests):
            if position in refused:
                keys.append(None)
                continue
            seen = None
            if request.image is not None:
                if id(request.image) not in digests:
                    pixels = np.ascontiguousarray(request.image)
                    digests[id(request.image)] = hashlib.sha256(f"{pixels.shape}".encode() + pixels.data).hexdigest()
                seen = {"sha256": digests[id(request.image)], "format": self._settings["image_format"]}
            body = self._body(request, "") | {"model": self.revision, "image": seen}
            keys.append(content_key(body))
        return keys

    def _body(self, request: ChatRequest, data_url: str) -> dict[str, Any]:
        """The request as it is sent; `data_url` stands for the image."""
        content: Any = request.text
        if request.image is not None:
            # Before the text: questions about one image then begin alike, and the server's caches are hit.
            content = [{"type": "image_url", "image_url": {"url": data_url}}, {"type": "text", "text": request.text}]
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
            "seed": request.seed,
        }
        if request.schema is not None:
            answer = {"name": "answer", "schema": dict(request.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": answer}
        if self._settings["thinking"] == "off":
            body["extra_body"] = {"chat_template_kwargs": {"enable_thinking": False}}
        return body

    def _data_url(self, image: np.ndarray) -> str:
        kind = self._settings["image_format"]
        data = encode_png(image) if kind == "png" else encode_jpeg(image)
        return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"

    def _ask_all(self, questions: Mapping[str, ChatRequest]) -> dict[str, ChatReply]:
        gone = threading.Event()
        with ThreadPoolExecutor(min(self._settings["concurrency"], len(questions)), "chat") as threads:
            running = {
                key: threads.submit(self._ask_and_keep, key, request, gone) for key, request in questions.items()
            }
            try:
                return {key: answer.result() for key, answer in running.items()}
            except BaseException as error:
                gone.set()
                threads.shutdown(wait=True, cancel_futures=True)
                if isinstance(error, _ServerGoneError):
                    kept = "; what it answered so far is kept, run this again" if self._cache else ""
                    raise UserError(f"{error}{kept}") from None
                raise

    def _ask_and_keep(self, key: str, request: ChatRequest, gone: threading.Event) -> ChatReply:
        reply = self._ask(request, gone)
        if self._cache is not None and reply.error is None:
            self._cache.put(key, self._model, request.id, reply)
        return reply

    def _ask(self, request: ChatRequest, gone: threading.Event) -> ChatReply:
        openai = _openai()
        body = self._body(request, "" if request.image is None else self._data_url(request.image))
        client = self._started()
        trouble = ""
        for attempt in range(self._settings["retries"] + 1):
            if gone.is_set():
                raise _ServerGoneError("the chat server is gone")
            with self._counting:
                self.requests_sent += 1
            # Doubled from the number of the try alone: two runs wait alike.
            wait = min(self._settings["backoff_s"] * 2**attempt, self._settings["longest_wait_s"])
            try:
                return _reply_of(client.chat.completions.create(**body))
            except openai.APIConnectionError as error:
                late = isinstance(error, openai.APITimeoutError)
                trouble = f"no answer in {self._settings['timeout_s']:g} s" if late else "the connection was lost"
            except openai.APIStatusError as error:
                trouble = f"the server answered {error.status_code}: {one_line(error)}"
                if error.status_code not in _RETRIED and error.status_code < 500:
                    return ChatReply(None, error=trouble)
                asked = retry_after_s(error.response.headers.get("retry-after"))
                if asked is not None:
                    if asked > self._settings["longest_wait_s"]:
                        return ChatReply(None, error=f"{trouble}; it asks to wait {asked:.0f} s")
                    wait = asked
            except (openai.OpenAIError, _NoReplyError, ValueError) as error:
                trouble = f"the server's answer is none: {one_line(error)}"
            if attempt < self._settings["retries"]:
                gone.wait(wait)
        # A request that failed is one thing, a server that is gone another: then each of the others would fail as well.
        if found := self.problems():
            gone.set()
            raise _ServerGoneError(found[0])
        return ChatReply(None, error=f"{trouble} (tried {self._settings['retries'] + 1} times)")

    def _started(self) -> Any:
        with self._counting:
            if self._client is None or self._client_pid != os.getpid():
                self._client, self._client_pid = self._new_client(), os.getpid()
            return self._client

    def _new_client(self) -> Any:
        openai = _openai()
        variable = self._settings["api_key_env"]
        if variable is not None and not os.environ.get(variable):
            raise UserError(f"'openai' setting api_key_env: the environment variable {variable} is not set")
        timeout = self._settings["timeout_s"]
        # A server on this machine is never reached through a proxy.
        return openai.OpenAI(
            api_key=os.environ[variable] if variable else "none",
            base_url=self._settings["base_url"],
            max_retries=0,
            http_client=openai.DefaultHttpxClient(timeout=timeout, trust_env=self._host not in _LOOPBACK),
            timeout=timeout,
        )


class _NoReplyError(Exception):
    """What came is no chat completion."""


def create(settings: Mapping[str, Any], build_dir: Path | None) -> OpenAIServer:
    """The engine of these settings; raises UserError for wrong ones."""
    return OpenAIServer(settings, build_dir)


def _openai() -> Any:
    try:
        import openai
    except ImportError:
        raise UserError("'openai' needs the package openai: pip install openai") from None
    return openai


def retry_after_s(header: str | None) -> float | None:
    """The seconds that a Retry-After header asks to wait, given as such or as a date; None where it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _reply_of(completion: Any) -> ChatReply:
    choices = getattr(completion, "choices", None) or [None]
    message = getattr(choices[0], "message", None)
    if message is None:
        raise _NoReplyError("it holds no message")
    usage, reason = getattr(completion, "usage", None), getattr(choices[0], "finish_reason", None)
    return ChatReply(
        # Half a surrogate pair is valid in JSON and in no file.
        text=_text_of(message).encode("utf-8", "replace").decode(),
        finish_reason=reason if isinstance(reason, str) else None,
        prompt_tokens=_count(getattr(usage, "prompt_tokens", None)),
        completion_tokens=_count(getattr(usage, "completion_tokens", None)),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _text_of(message: Any) -> str:
    """The answer wherever it landed: a server's reasoning parser may take an answer without thinking for thinking."""
    for field in ("content", "reasoning", "reasoning_content", "refusal"):
        text = getattr(message, field, None)
        if isinstance(text, str) and text.strip():
            return text
    return ""
