"""Reasoning, and answers that the caller begins, over HTTP."""

from __future__ import annotations

import pytest
from tests.gateway.chat_models import (
    THINKING,
    USER,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import (
    MODEL,
    serving,
    text_of,
    tokens_of,
)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_reasoning_is_kept_apart(is_streamed: bool) -> None:
    text = "Hm, easy.\n</think>\n\nYes."
    scripted = dispatcher(said(text))
    async with serving(dispatcher=scripted, model=chat_model(THINKING)) as gateway:
        answer = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=USER,
            stream=is_streamed,
            extra_body={"chat_template_kwargs": {"thinks": True}},
            **({"stream_options": {"include_usage": True}} if is_streamed else {}),
        )
        parts = [chunk async for chunk in answer] if is_streamed else [answer]

    messages = [
        choice.delta if is_streamed else choice.message for part in parts for choice in part.choices
    ]
    assert "".join(message.content or "" for message in messages) == "Yes."
    for name in ("reasoning_content", "reasoning"):
        assert "".join(getattr(message, name, "") for message in messages) == "Hm, easy."
    reasoning = text[: text.index("</think>") + len("</think>")]
    details = parts[-1].usage.completion_tokens_details
    assert details.reasoning_tokens == len(tokens_of(reasoning))


async def test_reasoning_can_be_left_out() -> None:
    async with serving(
        dispatcher=dispatcher(said("<think>Hm.</think>Yes.")), model=chat_model(THINKING)
    ) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, extra_body={"include_reasoning": False}
        )

    message = chat.choices[0].message
    assert message.content == "Yes."
    assert "reasoning" not in message.model_extra


async def test_an_answer_can_be_begun_by_the_caller() -> None:
    scripted = dispatcher(said("blue."))
    messages = [*USER, {"role": "assistant", "content": "The sky is "}]
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=messages,
            extra_body={"continue_final_message": True, "add_generation_prompt": False},
        )

    assert text_of(scripted.generations[0].prompt).endswith("<|assistant|>The sky is ")
