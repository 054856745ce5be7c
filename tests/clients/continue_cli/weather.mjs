// The tool, as an MCP server that speaks over its standard streams.

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { z } from 'zod';
import * as steps from './steps.mjs';

const server = new McpServer({ name: 'weather', version: '1.0.0' });
server.registerTool(
  'get_weather',
  { description: steps.description, inputSchema: { city: z.string().describe('Its name.') } },
  async (given) => ({ content: [{ type: 'text', text: steps.getWeather(given) }] }),
);
await server.connect(new StdioServerTransport());
