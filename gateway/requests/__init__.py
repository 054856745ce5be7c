"""What a client asked for, whatever face it came by: checked, planned, run, streamed."""
