// MoE products with int4 weights; see moe.h for the division of work and the arguments.
#include "moe_quantized.h"
#include "int4_product.h"

OPERATOR(moe_int4_gate_up_f32, GateUpArgs<float>) { quantized_gate_up<Int4Product, float>(args, work); }
OPERATOR(moe_int4_gate_up_bf16, GateUpArgs<bf16>) { quantized_gate_up<Int4Product, bf16>(args, work); }
OPERATOR(moe_int4_down_f32, DownArgs<float>) { quantized_down<Int4Product, float>(args, pass, work); }
OPERATOR(moe_int4_down_bf16, DownArgs<bf16>) { quantized_down<Int4Product, bf16>(args, pass, work); }
