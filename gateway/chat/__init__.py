"""From messages to a prompt, and from output to content, reasoning and tool calls."""
