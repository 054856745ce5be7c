// Products with int8 weights, with one scale per output; see kernels/products/int8_weight.py.
#include "int8_product.h"

OPERATOR(int8_linear_f32, QuantizedLinearArgs<float, float>) { quantized_linear<Int8Product>(args, pass, work); }
OPERATOR(int8_linear_bf16, QuantizedLinearArgs<bf16, bf16>) { quantized_linear<Int8Product>(args, pass, work); }
OPERATOR(int8_logits_f32, QuantizedLinearArgs<float, float>) { quantized_linear<Int8Product>(args, pass, work); }
OPERATOR(int8_logits_bf16, QuantizedLinearArgs<bf16, float>) { quantized_linear<Int8Product>(args, pass, work); }
OPERATOR(int8_gated_linear_f32, QuantizedGatedArgs<float>) { quantized_gated_linear<Int8Product>(args, pass, work); }
OPERATOR(int8_gated_linear_bf16, QuantizedGatedArgs<bf16>) { quantized_gated_linear<Int8Product>(args, pass, work); }
