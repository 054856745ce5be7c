// Causal attention over latents in blocks; see kernels/attention/mla_attention.py.
#include "attending.h"
#include "attention_latents.h"

OPERATOR(mla_attention_f32) { attend<LatentProblem<float>>(args, pass, work); }
OPERATOR(mla_attention_bf16) { attend<LatentProblem<bf16>>(args, pass, work); }
