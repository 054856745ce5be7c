"""What this machine is, and how its devices are joined."""
