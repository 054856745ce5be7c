// Agents of Vercel's AI SDK.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ToolLoopAgent, tool } from 'ai';
import { z } from 'zod';
import * as steps from './steps.mjs';

const baton = createOpenAICompatible({ name: 'baton', baseURL: `${steps.url}/v1`, apiKey: steps.key });
const model = baton(steps.model);
const plain = new ToolLoopAgent({ model, instructions: 'You are terse.' });
const agent = new ToolLoopAgent({
  model,
  instructions: 'You know the weather.',
  tools: {
    get_weather: tool({
      description: steps.description,
      inputSchema: z.object({ city: z.string().describe('Its name.') }),
      execute: steps.getWeather,
    }),
  },
});

async function piecesOf(result) {
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  return pieces;
}

async function toolsStreamed() {
  const result = await agent.stream({ prompt: steps.weatherQuestion });
  await piecesOf(result);
  return await result.text;
}

await steps.run({
  answer: async () => (await plain.generate({ prompt: steps.question })).text,
  stream: async () => piecesOf(await plain.stream({ prompt: steps.question })),
  tools: async () => (await agent.generate({ prompt: steps.weatherQuestion })).text,
  tools_streamed: toolsStreamed,
});
