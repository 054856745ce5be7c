"""How pieces of KV travel between processes: one small interface, one file for each transport."""
