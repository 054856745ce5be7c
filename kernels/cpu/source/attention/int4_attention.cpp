// Causal attention over a KV cache whose full blocks are int4; see kernels/paging/int4_arena.py.
#include "attending.h"
#include "attention_int4.h"

OPERATOR(int4_attention_f32, Int4Args<float>) { attend<Int4Problem<float>>(args, pass, work); }
OPERATOR(int4_attention_bf16, Int4Args<bf16>) { attend<Int4Problem<bf16>>(args, pass, work); }
