"""What models write, read as it comes: reasoning, tool calls, channels."""
