// Causal attention over a KV cache whose full blocks have 4 bits; see kernels/paging/sealed_arena.py.
#include "attending.h"
#include "attention_sealed.h"

OPERATOR(sealed_attention_f32, SealedArgs<float>) { attend<SealedProblem<float>>(args, pass, work); }
OPERATOR(sealed_attention_bf16, SealedArgs<bf16>) { attend<SealedProblem<bf16>>(args, pass, work); }
