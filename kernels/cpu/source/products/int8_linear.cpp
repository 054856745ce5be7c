// Products with int8 weights, one scale an output; see kernels/products/int8_weight.py.
#include "int8_product.h"

OPERATOR(int8_linear_f32) { quantized_linear<Int8Product, float, float>(args, pass, work); }
OPERATOR(int8_linear_bf16) { quantized_linear<Int8Product, bf16, bf16>(args, pass, work); }
OPERATOR(int8_logits_f32) { quantized_linear<Int8Product, float, float>(args, pass, work); }
OPERATOR(int8_logits_bf16) { quantized_linear<Int8Product, bf16, float>(args, pass, work); }
OPERATOR(int8_gated_linear_f32) { quantized_gated_linear<Int8Product, float>(args, pass, work); }
OPERATOR(int8_gated_linear_bf16) { quantized_gated_linear<Int8Product, bf16>(args, pass, work); }
