"""The gRPC face, `baton.v1.Inference`."""
