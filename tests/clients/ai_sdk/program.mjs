// Vercel's AI SDK: `ai` with `@ai-sdk/openai-compatible`.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';
import * as steps from './steps.mjs';

const baton = createOpenAICompatible({
  name: 'baton',
  baseURL: `${steps.url}/v1`,
  apiKey: steps.key,
  includeUsage: true,
});
const model = baton(steps.model);

async function piecesOf(result) {
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  return pieces;
}

const asked = {
  model,
  prompt: steps.weatherQuestion,
  stopWhen: isStepCount(10),
  tools: {
    get_weather: tool({
      description: steps.description,
      inputSchema: z.object({ city: z.string().describe('Its name.') }),
      execute: steps.getWeather,
    }),
  },
};

async function toolsStreamed() {
  const result = streamText({ ...asked, onError: ({ error }) => { throw error; } });
  await piecesOf(result);
  return await result.text;
}

await steps.run({
  answer: async () => (await generateText({ model, prompt: steps.question })).text,
  stream: () => piecesOf(streamText({ model, prompt: steps.question })),
  tools: async () => (await generateText(asked)).text,
  tools_streamed: toolsStreamed,
});
