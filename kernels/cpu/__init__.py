"""The CPU runtime: building, loading and calling C++ operators, and tapes that replay a pass."""
