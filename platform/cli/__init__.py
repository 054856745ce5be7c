"""The command line: `baton serve`, `baton chat`, `baton status`."""
