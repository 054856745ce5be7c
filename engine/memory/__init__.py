"""Where KV blocks lie: the arenas of a device, and how large they are."""
