// MoE products with int8 weights; see moe.h for the division of work and the arguments.
#include "moe_quantized.h"
#include "int8_product.h"

OPERATOR(moe_int8_gate_up_f32, GateUpArgs<float>) { quantized_gate_up<Int8Product, float>(args, work); }
OPERATOR(moe_int8_gate_up_bf16, GateUpArgs<bf16>) { quantized_gate_up<Int8Product, bf16>(args, work); }
OPERATOR(moe_int8_down_f32, DownArgs<float>) { quantized_down<Int8Product, float>(args, pass, work); }
OPERATOR(moe_int8_down_bf16, DownArgs<bf16>) { quantized_down<Int8Product, bf16>(args, pass, work); }
