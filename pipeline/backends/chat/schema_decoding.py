"""Holds what a transformers model writes to a JSON schema, token by token (llguidance, which vLLM also has)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.core.errors import one_line


class SchemaError(Exception):
    """A schema that cannot be followed."""


class SchemaDecoding:
    """Grammars over one tokenizer. Making it takes seconds for a large vocabulary; one a model is enough."""

    def __init__(self, tokenizer: Any, logits_width: int, end_tokens: Sequence[int]) -> None:
        """logits_width: of the model's output, which may have more places than the tokenizer has tokens. end_tokens:
        those that end an answer; the first one is the tokenizer's own.
        """
        import llguidance.hf

        self._tokenizer = llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=max(logits_width, len(tokenizer)), eos_token=list(end_tokens)
        )
        self._end = end_tokens[0]

    def processor(self, schemas: Sequence[Mapping[str, Any] | None], prompt_length: int) -> Any:
        """A logits processor for one call of `generate`: row i keeps to schemas[i], or to nothing where that is None.

        prompt_length: of the padded prompts, tokens. Raises SchemaError for a schema that cannot be followed.
        """
        return _processor(self._tokenizer, [self._matcher(schema) for schema in schemas], prompt_length, self._end)

    def _matcher(self, schema: Mapping[str, Any] | None) -> Any:
        import llguidance

        if schema is None:
            return None
        # No blank outside of texts: an untrained model would write nothing else.
        compact = {**schema, "x-guidance": {"whitespace_flexible": False}}
        matcher = llguidance.LLMatcher(
            self._tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(compact)), log_level=0
        )
        if matcher.is_error():
            raise SchemaError(one_line(matcher.get_error()))
        return matcher


def _processor(tokenizer: Any, matchers: Sequence[Any], prompt_length: int, end: int) -> Any:
    import llguidance.numpy
    import torch
    from transformers import LogitsProcessor

    bits = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)

    class SchemaLogits(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            for row, matcher in enumerate(matchers):
                if matcher is None:
                    continue
                if input_ids.shape[1] > prompt_length and not matcher.is_stopped():
                    matcher.consume_token(int(input_ids[row, -1]))
                if matcher.is_stopped():
                    # Whole: nothing but the end may follow.
                    scores[row] = float("-inf")
                    scores[row, end] = 0
                else:
                    # Not by llguidance.torch, whose mask is compiled when first used and so wants a C++ compiler.
                    llguidance.numpy.fill_next_token_bitmask(matcher, bits)
                    barred = np.unpackbits(bits.view(np.uint8), bitorder="little", count=scores.shape[1]) == 0
                    scores[row, torch.from_numpy(barred).to(scores.device)] = float("-inf")
            return scores

    return SchemaLogits()
