// Products with int4 weights, with one scale per output and group of 32; see kernels/products/int4_weight.py.
#include "int4_product.h"

OPERATOR(int4_linear_f32, QuantizedLinearArgs<float, float>) { quantized_linear<Int4Product>(args, pass, work); }
OPERATOR(int4_linear_bf16, QuantizedLinearArgs<bf16, bf16>) { quantized_linear<Int4Product>(args, pass, work); }
OPERATOR(int4_logits_f32, QuantizedLinearArgs<float, float>) { quantized_linear<Int4Product>(args, pass, work); }
OPERATOR(int4_logits_bf16, QuantizedLinearArgs<bf16, float>) { quantized_linear<Int4Product>(args, pass, work); }
OPERATOR(int4_gated_linear_f32, QuantizedGatedArgs<float>) { quantized_gated_linear<Int4Product>(args, pass, work); }
OPERATOR(int4_gated_linear_bf16, QuantizedGatedArgs<bf16>) { quantized_gated_linear<Int4Product>(args, pass, work); }
