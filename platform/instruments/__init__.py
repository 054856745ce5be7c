"""Instruments: what an engine could do on this machine, what it does, and where the time goes."""
