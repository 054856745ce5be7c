"""The front door: OpenAI-compatible HTTP and gRPC in, token updates from decode replicas out."""
