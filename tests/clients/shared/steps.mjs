// What the programs of Node's clients share: as steps.py.

import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';

export const { BATON_URL: url, BATON_MODEL: model, BATON_KEY: key, BATON_CALLS: callsFile } = process.env;
export const question = 'Say something.';
export const weatherQuestion = 'How warm is it in Oslo, Rome, Lima and Cairo?';
export const description = 'Tell how warm it is in a city.';
export const schema = {
  type: 'object',
  properties: { city: { type: 'string', description: 'Its name.' } },
  required: ['city'],
};

export function getWeather({ city }) {
  const told = `${city}=${1000 + Math.floor(9000 * Math.random())}`;
  appendFileSync(callsFile, `${told}\n`);
  return told;
}

/** Each step returns the text that its client has, or the pieces of a stream. */
export async function run(steps) {
  for (const [step, go] of Object.entries(steps)) {
    writeFileSync(callsFile, '');
    let outcome;
    try {
      outcome = { said: await go() };
    } catch (error) {
      console.error(error);
      outcome = { error: String(error) };
    }
    const calls = readFileSync(callsFile, 'utf8').split('\n').filter(Boolean);
    console.log(JSON.stringify({ step, calls, ...outcome }));
  }
}
