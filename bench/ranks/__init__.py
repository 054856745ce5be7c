"""One model on several ranks: context and pipeline parallelism, and the balance of experts."""
