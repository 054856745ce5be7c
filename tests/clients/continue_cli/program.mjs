// Continue, as its command `cn`: with the tools that it brings, and one more of an MCP server.
// It always streams; its answers are printed whole.

import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import * as steps from './steps.mjs';

const command = fileURLToPath(new URL('node_modules/.bin/cn', import.meta.url));
const weather = fileURLToPath(new URL('weather.mjs', import.meta.url));
const config = {
  name: 'baton',
  version: '1.0.0',
  schema: 'v1',
  models: [
    {
      name: 'baton',
      provider: 'openai',
      model: steps.model,
      apiBase: `${steps.url}/v1`,
      apiKey: steps.key,
      roles: ['chat'],
    },
  ],
};
const mcpServers = [{ name: 'weather', command: process.execPath, args: [weather], env: process.env }];

function said(question, added = {}) {
  writeFileSync('config.yaml', JSON.stringify({ ...config, ...added })); // JSON is YAML
  const ran = spawnSync(command, ['--config', 'config.yaml', '--auto', '-p', question], {
    encoding: 'utf8',
    env: { ...process.env, CONTINUE_TELEMETRY_ENABLED: '0' },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  if (ran.status !== 0) throw new Error(ran.stdout + ran.stderr);
  return ran.stdout.trim();
}

await steps.run({
  answer: () => said(steps.question),
  stream: () => said(steps.question),
  tools: () => said(steps.weatherQuestion, { mcpServers }),
});
