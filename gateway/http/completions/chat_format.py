"""A chat's answer as OpenAI writes it, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from baton.gateway.chat.choice_reader import ChoiceReader
from baton.gateway.chat.plan import ChatPlan
from baton.gateway.http.completions.answers import (
    ChatAnswer,
    ChatChoice,
    ChatMessage,
    CustomCall,
    FunctionCall,
    OutputTokens,
    ToolCall,
    UsageAnswer,
    usage_answer,
)
from baton.gateway.http.completions.legacy_functions import with_function_call
from baton.gateway.http.completions.logprobs import chat_logprobs, prompt_logprobs, token_names
from baton.gateway.http.completions.schemas import ChatBody
from baton.gateway.output.pieces import CallArguments, CallStart, Content, Piece, Reasoning
from baton.gateway.output.reasoning import ReasoningStart
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.generations.choices import ChoiceDelta
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.text.tokenizer import TextTokenizer


class ChatFormat:
    """The chat answer to one request, whole or in chunks."""

    def __init__(  # noqa: PLR0913 - one parameter a part
        self,
        *,
        id: str,
        created: int,
        tokenizer: TextTokenizer,
        model: str,
        body: ChatBody,
        plan: ChatPlan,
        prompt: Prompt,
    ) -> None:
        """`model`: its name, or the adapter's. `prompt` is the prompt as computed, which may be
        shorter than planned."""
        self._id = id
        self._created = created
        self._model = model
        self._body = body
        self._names = token_names(tokenizer, by_id=body.return_tokens_as_token_ids)
        self._plan = plan
        self._prompt = prompt
        self._reader_by_index: dict[int, ChoiceReader] = {}
        self._is_opened = False
        """Whether each choice has had its opening chunk, with the role."""

    def whole(self, choices: Sequence[ChoiceDelta]) -> ChatAnswer:
        answer = self._answer("chat.completion", choices[0])
        answer.choices = [self._whole_choice(part) for part in choices]
        return answer

    def opening(self, num_choices: int) -> Iterable[ChatAnswer]:
        """Opening chunks of several choices, in order: OpenAI's client numbers choices by
        arrival."""
        self._is_opened = num_choices > 1
        for index in range(num_choices if self._is_opened else 0):
            message = ChatMessage(role="assistant", content="")
            answer = self.closing()
            answer.choices = (
                ChatChoice(index=index, delta=message, logprobs=None, finish_reason=None),
            )
            yield answer

    def chunk(self, part: ChoiceDelta) -> ChatAnswer | None:
        delta = part.delta
        pieces = self._read(part)
        has_tokens = self._body.return_token_ids and delta.tokens
        has_news = pieces or delta.logprobs or has_tokens or delta.finish_reason is not None
        if not has_news and not part.is_first:
            return None
        choice = self._choice(part)
        choice.delta = self._worded(_message(pieces))
        if part.is_first and not self._is_opened:
            choice.delta.role = "assistant"
            choice.delta.content = choice.delta.content or ""
        answer = self._answer("chat.completion.chunk", part)
        answer.choices = (choice,)
        return answer

    def usage(self, usage: Usage) -> UsageAnswer:
        answer = usage_answer(usage)
        if self._plan.reasoning is not ReasoningStart.NOWHERE:
            readers = self._reader_by_index.values()
            answer.completion_tokens_details = OutputTokens(
                sum(reader.num_reasoning_tokens for reader in readers)
            )
        return answer

    def waiting(self) -> ChatAnswer:
        answer = self.closing()
        message = ChatMessage(role="assistant", content=None)
        answer.choices = (ChatChoice(delta=message, logprobs=None, finish_reason=None),)
        return answer

    def closing(self) -> ChatAnswer:
        return self._answer("chat.completion.chunk", None)

    def _read(self, part: ChoiceDelta) -> list[Piece]:
        reader = self._reader_by_index.get(part.index)
        if reader is None:
            reader = ChoiceReader(self._plan.new_parser(part.index))
            self._reader_by_index[part.index] = reader
        pieces = reader.read(part.delta)
        if self._body.hides_reasoning:
            return [piece for piece in pieces if not isinstance(piece, Reasoning)]
        return pieces

    def _whole_choice(self, part: ChoiceDelta) -> ChatChoice:
        message = _message(self._read(part))
        message.role = "assistant"
        if message.content is UNSET:
            has_others = message.tool_calls is not UNSET or message.reasoning is not UNSET
            message.content = None if has_others else ""
        if message.tool_calls is not UNSET:
            for call in message.tool_calls:
                call.index = UNSET
        choice = self._choice(part)
        choice.message = self._worded(message)
        return choice

    def _choice(self, part: ChoiceDelta) -> ChatChoice:
        """The choice so far, without its message."""
        delta, body = part.delta, self._body
        finish_reason: str | None = self._reader_by_index[part.index].finish_reason(delta)
        if finish_reason == "tool_calls" and body.functions:
            finish_reason = "function_call"
        return ChatChoice(
            index=part.index,
            logprobs=chat_logprobs(delta, self._names) if body.logprobs else None,
            finish_reason=finish_reason,
            token_ids=delta.tokens if body.return_token_ids else UNSET,
        )

    def _worded(self, message: ChatMessage) -> ChatMessage:
        return with_function_call(message) if self._body.functions else message

    def _answer(self, kind: str, part: ChoiceDelta | None) -> ChatAnswer:
        """A chunk or answer; the first one of the first choice also has the prompt's fields."""
        answer = ChatAnswer(id=self._id, object=kind, created=self._created, model=self._model)
        if part is not None and part.is_first and part.index == 0:
            if self._body.return_token_ids:
                answer.prompt_token_ids = self._prompt.tokens
            if (num_top := self._body.prompt_logprobs) is not None:
                answer.prompt_logprobs = prompt_logprobs(part.delta, self._names, num_top)
        return answer


def _begun_call(start: CallStart) -> ToolCall:
    call = ToolCall(
        index=start.index, id=start.id, type="custom" if start.is_custom else "function"
    )
    if start.is_custom:
        call.custom = CustomCall(name=start.name, input="")
    else:
        call.function = FunctionCall(name=start.name, arguments="")
    return call


def _add_arguments(call: ToolCall, piece: CallArguments) -> None:
    if piece.is_text:
        call.custom = call.custom or CustomCall(input="")
        call.custom.input += piece.text
    else:
        call.function = call.function or FunctionCall(arguments="")
        call.function.arguments += piece.text


def _message(pieces: Iterable[Piece]) -> ChatMessage:
    message = ChatMessage()
    content = reasoning = ""
    calls: dict[int, ToolCall] = {}
    for piece in pieces:
        if isinstance(piece, Content):
            content += piece.text
        elif isinstance(piece, Reasoning):
            reasoning += piece.text
        elif isinstance(piece, CallStart):
            calls[piece.index] = _begun_call(piece)
        else:
            call = calls.setdefault(piece.index, ToolCall(index=piece.index))
            _add_arguments(call, piece)
    if content:
        message.content = content
    if reasoning:
        message.reasoning_content = message.reasoning = reasoning
    if calls:
        message.tool_calls = list(calls.values())
    return message
