"""Labels and scores: classify, score, rerank."""
