"""Facts about this machine: devices, links, memory, cores."""
