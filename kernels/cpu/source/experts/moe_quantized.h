// MoE products with int8 or int4 weights: rows are gathered with their items of 8 bits, and if the input is multiplied
// by shares, these are part of the rows' scales.
#pragma once

#include "moe.h"
#include "quantized_linear.h"

// `Product` is constructed from (rows, weights, expert, num_panels).
template <typename Product>
struct QuantizedRows {
  QuantizedWeights weights;
  const uint8_t* bytes;
  int64_t width, num_panels, row_bytes;

  template <typename T>
  QuantizedRows(const ExpertsArgs<T>& args, int64_t num_panels)
      : weights{static_cast<const uint8_t*>(args.weights), args.scales},
        bytes(static_cast<const uint8_t*>(args.x)),
        width(args.padded_width),
        num_panels(num_panels),
        row_bytes(args.row_bytes) {}

  const uint8_t* at(int64_t row) const { return bytes + row * row_bytes; }

  void gather(int64_t token, const float* share, void* into) const {
    memcpy(into, at(token), size_t(row_bytes));
    if (share) Int8Rows{static_cast<uint8_t*>(into), width, row_bytes}.scale(0) *= *share;
  }

  template <typename Finish>
  void multiply(int64_t expert, const void* rows, int64_t num_rows, Span panels,
                const Finish& finish) const {
    uint8_t* first = static_cast<uint8_t*>(const_cast<void*>(rows));
    const Product product(Int8Rows{first, width, row_bytes}, weights, expert, num_panels);
    Multiplication(product, finish).run(Span{0, num_rows}, panels);
  }
};

template <typename Product, typename T>
static inline void quantized_gate_up(const GateUpArgs<T>& args, Work& work) {
  const int64_t half = PANEL / 2;
  const QuantizedRows<Product> rows(args, (args.num_outputs / 2 + half - 1) / half);
  moe_gate_up<QuantizedRows<Product>, T>(args, rows, work);
}

template <typename Product, typename T>
static inline void quantized_down(const DownArgs<T>& args, const Pass& pass, Work& work) {
  const QuantizedRows<Product> rows(args, (args.num_outputs + PANEL - 1) / PANEL);
  moe_down<QuantizedRows<Product>, T>(args, rows, row_count(args, pass), work);
}
