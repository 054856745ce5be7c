"""KV over torch.distributed: Gloo and NCCL pairs without a world."""
