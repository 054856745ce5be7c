"""What the families are built on: the decoder, its feed-forwards, the MTP head."""
