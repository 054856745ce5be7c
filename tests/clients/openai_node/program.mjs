// The `openai` package for Node.

import OpenAI from 'openai';
import * as steps from './steps.mjs';

const client = new OpenAI({ baseURL: `${steps.url}/v1`, apiKey: steps.key });
const { model, description, schema } = steps;
const messages = [{ role: 'user', content: steps.question }];

async function answer() {
  const chat = await client.chat.completions.create({ model, messages });
  return chat.choices[0].message.content;
}

async function stream() {
  const pieces = [];
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
  }
  return pieces;
}

const weather = {
  name: 'get_weather',
  description,
  parameters: schema,
  parse: JSON.parse,
  function: steps.getWeather,
};
const asked = {
  model,
  messages: [{ role: 'user', content: steps.weatherQuestion }],
  tools: [{ type: 'function', function: weather }],
};

await steps.run({
  answer,
  stream,
  tools: () => client.chat.completions.runTools(asked).finalContent(),
  tools_streamed: () => client.chat.completions.runTools({ ...asked, stream: true }).finalContent(),
});
