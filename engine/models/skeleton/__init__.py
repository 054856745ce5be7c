"""The shared parts of families: decoder, feed-forwards, MTP head."""
