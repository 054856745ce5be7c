// Causal attention over a KV cache in blocks; see kernels/attention/paged_attention.py.
#include "attending.h"
#include "attention_kv.h"

OPERATOR(paged_attention_f32, KvArgs<float>) { attend<KvProblem<float>>(args, pass, work); }
OPERATOR(paged_attention_bf16, KvArgs<bf16>) { attend<KvProblem<bf16>>(args, pass, work); }
