"""The text that the demo model learns from: what every machine with Python already has.

    standard library .py files --+--> pieces of source, as they stand
                                 +--> chat: "Write the function `name`." -> its source
                                 +--> chat: "What does `name` do?"       -> its docstring
    pydoc's language reference ------> prose, and chat: "Tell me about X."

A file belongs to exactly one split, so no function is both trained on and held out.
"""

import ast
import hashlib
import random
import re
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

EXCLUDED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "encodings",
    "__pycache__",
}
EXCLUDED_FILES = re.compile(
    r"_sysconfigdata.*|topics\.py|entities\.py"
)  # build settings and data tables
HELD_OUT_PERCENT = 4
MAX_PIECE_CHARS = 2400
FUNCTION_CHARS = range(40, 1200)
CHAT_SHARE = 0.27  # of all characters

WRITE_REQUESTS = (
    "Write the function `{name}`.",
    "Write the function {name}.",
    "Write a Python function called `{name}`.",
    "Write a function named {name}.",
    "Implement `{name}` in Python.",
    "Please write {name}.",
    "Show me the code of `{name}`.",
    "How would you write `{name}`?",
)
DESCRIBED_REQUESTS = (
    "Write the function `{name}`: {summary}",
    "Write a Python function for this: {summary}",
    "Implement `{name}`. {summary}",
    "I need a function. {summary}",
)
EXPLAIN_REQUESTS = (
    "What does `{name}` do?",
    "What does {name} do?",
    "Explain `{name}`.",
    "What is {name} for?",
)
TOPIC_REQUESTS = ("Tell me about {name}.", "What is {name} in Python?", "Explain {name}.")
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant that writes Python.",
    "You write short Python functions.",
    "Answer with Python code.",
)
GREETINGS = (
    "Hello!",
    "Hello",
    "Hi",
    "Hi there!",
    "Hey",
    "Good morning.",
    "Hello, how are you?",
    "Who are you?",
    "What are you?",
    "What can you do?",
    "Can you help me?",
    "Help",
    "Tell me about yourself.",
)
INTRODUCTION = (
    "Hello! I am a very small demo model that has read the Python standard library. "
    "Ask me to write a function, or what a function does."
)


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # system, user or assistant
    content: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """One split. A chat is a list of messages, to be rendered by the chat template."""

    texts: list[str]
    chats: list[list[Message]]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    source: str
    summary: str  # first paragraph of the docstring, on one line; empty without one


def read_corpus(seed: int) -> tuple[Corpus, Corpus]:
    """The training split and the held-out split."""
    rng = random.Random(seed)
    splits = Corpus([], []), Corpus([], [])
    for name, source in _standard_library():
        split = splits[_is_held_out(name)]
        tree = _parse(source)
        if tree is not None:
            split.texts.extend(_pieces(source, tree))
            split.chats.extend(
                chat
                for function in _functions(source, tree)
                for chat in _function_chats(function, rng)
            )
    for name, text in sorted(topics.items()):
        split = splits[_is_held_out(name)]
        split.texts.append(text.strip())
        split.chats.append(_topic_chat(name, text, rng))
    training, held_out = (Corpus(split.texts, _mixed(split, rng)) for split in splits)
    training.chats.extend(_introductions(rng))
    return training, held_out


def _standard_library() -> Iterator[tuple[str, str]]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.intersection(relative.parts) or EXCLUDED_FILES.fullmatch(path.name):
            continue
        try:
            yield relative.as_posix(), path.read_text(encoding="utf-8").expandtabs(4)
        except UnicodeDecodeError:
            continue  # a few files declare an older encoding


def _is_held_out(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % 100 < HELD_OUT_PERCENT


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes in old sources
            return ast.parse(source)
    except SyntaxError:
        return None  # templates and samples that are not Python of this version


def _pieces(source: str, tree: ast.Module) -> Iterator[str]:
    """Cut a file before top-level statements, so that documents start the way prompts do."""
    lines = source.splitlines(keepends=True)
    piece_start = 0
    for node in tree.body[1:]:
        node_start = (
            min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) - 1
        )
        node_chars = sum(map(len, lines[node_start : node.end_lineno]))
        piece_chars = sum(map(len, lines[piece_start:node_start]))
        if piece_chars and piece_chars + node_chars > MAX_PIECE_CHARS:
            yield "".join(lines[piece_start:node_start]).strip("\n")
            piece_start = node_start
    yield "".join(lines[piece_start:]).strip("\n")


def _functions(source: str, tree: ast.Module) -> Iterator[Function]:
    lines = source.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not re.fullmatch(r"__\w+__", node.name):
            text = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).strip()
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if len(text) in FUNCTION_CHARS and len(summary) < 300:
                yield Function(node.name, text, summary)


def _function_chats(function: Function, rng: random.Random) -> Iterator[list[Message]]:
    requests = WRITE_REQUESTS + DESCRIBED_REQUESTS * 2 if function.summary else WRITE_REQUESTS
    request = rng.choice(requests).format(name=function.name, summary=function.summary)
    yield _chat(request, function.source, rng)
    if len(function.summary) > 15:
        yield _chat(rng.choice(EXPLAIN_REQUESTS).format(name=function.name), function.summary, rng)


def _topic_chat(name: str, text: str, rng: random.Random) -> list[Message]:
    paragraphs = [" ".join(p.split()) for p in text.split("\n\n") if len(p) > 60 and "::=" not in p]
    answer = paragraphs[0] if paragraphs else text.strip()
    return _chat(rng.choice(TOPIC_REQUESTS).format(name=name.lower()), answer, rng)


def _introductions(rng: random.Random) -> Iterator[list[Message]]:
    for greeting in GREETINGS * 8:
        yield _chat(greeting, INTRODUCTION, rng)


def _chat(request: str, answer: str, rng: random.Random) -> list[Message]:
    system = [Message("system", rng.choice(SYSTEM_PROMPTS))] if rng.random() < 0.25 else []
    return [*system, Message("user", request), Message("assistant", answer)]


def _mixed(split: Corpus, rng: random.Random) -> list[list[Message]]:
    """As many chats as their share of the text allows, every sixth continued by a second one."""
    budget_chars = sum(map(len, split.texts)) * CHAT_SHARE / (1 - CHAT_SHARE)
    chats: list[list[Message]] = []
    for chat in rng.sample(split.chats, len(split.chats)):
        if chats and chat[0].role == "user" and rng.random() < 1 / 6:
            chats[-1] = chats[-1] + chat
        else:
            chats.append(chat)
        budget_chars -= sum(len(message.content) for message in chat)
        if budget_chars < 0:
            break
    return chats
