"""How answers go out: awaited or streamed, given up with their client, taken up again."""
