"""The cost of constraining tool calls to their schemas, for each format of calls.

Milliseconds on one thread, with a random vocabulary of a large model's size:

    check         compile the grammar, once at a gateway and once at a replica
    start         start from the compiled grammar, for each request
    text, call    accept a token of text or of a call, and compute the mask of the next one

    python -m bench.engine.tool_call_grammars [--vocab-size N] [--tools N] [--tokens N]
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import GrammarChecker, next_tokens
from baton.gateway.chat.call_grammars import optional_calls
from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from bench.harness.command_line import benchmark_parser

FORMATS = ("hermes", "qwen3_coder", "mistral", "llama3", "llama4", "deepseek_v32", "gemma")
BEGINS = {
    "hermes": '<tool_call>\n{"name": "tool_1", "arguments": {"path": "',
    "qwen3_coder": "<tool_call>\n<function=tool_1>\n<parameter=path>\n",
    "mistral": '[TOOL_CALLS][{"name": "tool_1", "arguments": {"path": "',
    "llama3": '{"name": "tool_1", "parameters": {"path": "',
    "llama4": '[tool_1(path="',
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="tool_1">\n'  # noqa: RUF001
    '<｜DSML｜parameter name="path" string="true">',  # noqa: RUF001
    "gemma": "<start_function_call>call:tool_1{path:<escape>",
}
TEXT = "I will read the file first, and then say what is wrong with it. "
EOS = "<end>"


def main(vocab_size: int, num_tools: int, num_tokens: int) -> None:
    source = tokenizer_json(vocab_size)
    ids = json.loads(source)["model"]["vocab"]
    checker = GrammarChecker(lambda: source, [ids[EOS]])
    checker.start(Grammar(GrammarKind.REGEX, "a"))  # reads the tokenizer
    tools = ToolUse(functions=tuple(functions(num_tools)), mode=ToolMode.AUTO)
    print(f"{vocab_size} tokens, {num_tools} tools")
    print(f"{'format':<14}{'KiB':>6}{'check':>9}{'start':>9}{'text':>8}{'call':>8}")
    for name in FORMATS:
        calls = optional_calls(name, tools)
        assert calls is not None
        grammar = Grammar(GrammarKind.LARK, f"start: calls\n{calls}")
        size = f"{len(grammar.source) / 1024:6.1f}"
        try:
            check_s, _ = timed(partial(checker.check, grammar))
        except InvalidRequest as error:
            print(f"{name:<14}{size}  the model is trusted: {error}")
            continue
        read_s = median(timed(partial(checker.start, grammar))[0] for _ in range(5))
        text = token_times(checker, grammar, ids, "", num_tokens)
        call = token_times(checker, grammar, ids, BEGINS[name], num_tokens)
        row = (check_s, read_s, median(text), median(call))
        print(
            f"{name:<14}{size}{row[0] * 1e3:>9.1f}{row[1] * 1e3:>9.2f}"
            + "".join(f"{seconds * 1e3:>8.3f}" for seconds in row[2:])
        )


def token_times(
    checker: GrammarChecker, grammar: Grammar, ids: dict[str, int], begin: str, num_tokens: int
) -> list[float]:
    matcher = checker.start(grammar)
    for char in spelled(begin):
        assert matcher.consume_token(ids[char]), begin
    seconds = []
    for number in range(num_tokens):
        token = ids[spelled(TEXT[number % len(TEXT)])[0]]

        def step(token: int = token) -> None:
            assert matcher.consume_token(token)
            next_tokens(matcher)

        seconds.append(timed(step)[0])
    return seconds


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = act()
    return time.perf_counter() - begun, result


def functions(num_tools: int) -> Iterator[Function]:
    """Functions as an agent offers them: a page of description, and a few arguments each."""
    words = "Reads from, or writes to, the place that it is told; see the manual for more. " * 12
    for number in range(num_tools):
        properties = {
            "path": {"type": "string", "description": words},
            "limit": {"type": "integer", "description": words},
            "mode": {"type": "string", "enum": ["read", "write", "append"]},
            "recursive": {"type": "boolean", "description": words},
            "globs": {"type": "array", "items": {"type": "string"}},
        }
        yield Function(
            name=f"tool_{number}",
            description=words,
            parameters={"type": "object", "properties": properties, "required": ["path"]},
        )


def tokenizer_json(vocab_size: int) -> str:
    """A tokenizer of all bytes, the marks of calls, and random words."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    chance = random.Random(7)
    words: dict[str, None] = dict.fromkeys(BYTES)
    while len(words) < vocab_size - 1:
        word = "".join(chance.choices(letters, range(26, 0, -1), k=chance.randint(2, 9)))
        words[chance.choice(("", BYTES[32])) + word] = None
    vocab = {word: index for index, word in enumerate([*words, EOS])}
    added = [
        {
            "id": vocab[EOS],
            "content": EOS,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    whole = {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level}
    return json.dumps({**whole, "model": model})


def _bytes() -> list[str]:
    """The character by which byte-level tokenizers write each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


BYTES = _bytes()


def spelled(text: str) -> list[str]:
    return [BYTES[byte] for byte in text.encode()]


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("--vocab-size", type=int, default=151_936)
    parser.add_argument("--tools", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200, help="of text, and of a call")
    given = parser.parse_args()
    main(given.vocab_size, given.tools, given.tokens)
