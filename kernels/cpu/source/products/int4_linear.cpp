// Products with int4 weights, one scale an output and group of 32; see kernels/products/int4_weight.py.
#include "int4_product.h"

OPERATOR(int4_linear_f32) { quantized_linear<Int4Product, float, float>(args, pass, work); }
OPERATOR(int4_linear_bf16) { quantized_linear<Int4Product, bf16, bf16>(args, pass, work); }
OPERATOR(int4_logits_f32) { quantized_linear<Int4Product, float, float>(args, pass, work); }
OPERATOR(int4_logits_bf16) { quantized_linear<Int4Product, bf16, float>(args, pass, work); }
OPERATOR(int4_gated_linear_f32) { quantized_gated_linear<Int4Product, float>(args, pass, work); }
OPERATOR(int4_gated_linear_bf16) { quantized_gated_linear<Int4Product, bf16>(args, pass, work); }
