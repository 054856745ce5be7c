"""An HTTP port: its connections, their time limits, and its shutdown."""
