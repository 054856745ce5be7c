"""What can keep a block: host memory, a disk, a store."""
