// Common parts of the products of a layer's experts: (token, choice) pairs are sorted by expert, and each is multiplied
// by the weights of its expert. See kernels/experts/moe.py.
//
//   gate and up   an item is a block of an expert's pairs and one panel; their rows of x are gathered
//   down          an item is one panel; the results of a token's pairs are added in the order of experts
//
// A panel of an expert is read from memory once per pass, however many pairs it has, unless they are more than fit into
// the cache beside it.
#pragma once

#include "linear_finish.h"
#include "linear_panels.h"

// The operands; the type of the rows is `Rows` below.
template <typename T>
struct ExpertsArgs : Args {
  FIELDS(Args,
         const void* x;         // rows of T or in eight bits
         const void* weights;   // [E] packed
         const float* scales;   // of the weights, or null
         const T* bias;         // [E][num_outputs] or null
         const int32_t* pairs;  // [P]
         const int32_t* stops;  // [E]
         const float* shares;   // [T][C] or null
         T* y;
         int64_t num_outputs;
         int64_t width;
         int64_t num_experts;   // E
         int64_t num_choices;   // C
         int64_t padded_width;  // of rows in eight bits
         int64_t row_bytes;)
};

// x [T][D] -> y [P][F] in the order of pairs; num_outputs is 2F
template <typename T>
struct GateUpArgs : ExpertsArgs<T> {
  FIELDS(ExpertsArgs<T>,
         int64_t gating;  // a Gating
         double alpha;
         double limit;
         double offset;)
};

// x [P][F] in the order of pairs -> y [T][D]; num_outputs is D
template <typename T>
struct DownArgs : ExpertsArgs<T> {
  FIELDS(ExpertsArgs<T>,
         const T* shared;        // [T][D], which is added to the sums, or null
         const T* shared_gate;)  // [T], by the sigmoid of which, or null
};

struct Pairs {
  const int32_t* numbers;  // [P] token * C + choice
  const int32_t* stops;    // [E]
  int64_t num_experts, num_choices;

  int64_t begin_of(int64_t expert) const { return expert ? stops[expert - 1] : 0; }
  int64_t token_of(int64_t pair) const { return numbers[pair] / int32_t(num_choices); }

  // Calls run(expert, pairs) for each block of pairs whose rows have `row_bytes` each.
  template <typename Run>
  void for_each_block(int64_t row_bytes, Run run) const {
    for (int64_t expert = 0; expert < num_experts; expert++) {
      const int64_t begin = begin_of(expert), end = stops[expert];
      if (begin >= end) continue;
      const int64_t block = rows_of_block(end - begin, row_bytes);
      for (int64_t pair = begin; pair < end; pair += block)
        run(expert, Span{pair, std::min(pair + block, end)});
    }
  }
};

// The same for clamped gates, as in GPT-OSS: (up + offset) * gate * sigmoid(alpha * gate)
template <typename T>
struct ClampedGate {
  const T* bias;  // [2F] or null
  T* y;
  int64_t width;  // F
  float alpha, limit, offset;

  void operator()(int64_t row, int64_t panel, const float* sums) const {
    const int64_t column = panel * (PANEL / 2), count = width - column;
    f32x16 gate = load(sums), up = load(sums + PANEL / 2);
    if (bias) {
      gate += load_up_to(bias + column, count);
      up += load_up_to(bias + width + column, count);
    }
    const f32x16 most = splat(limit), least = splat(-limit);
    gate = gate > most ? most : gate;
    up = up > most ? most : up < least ? least : up;
    const f32x16 passed = gate / (1.0f + exp(-alpha * gate));
    store_up_to(y + row * width + column, (up + offset) * passed, count);
  }
};

enum Gating { SILU_GATE, GELU_GATE, CLAMPED_GATE };

// `Rows` has row_bytes, gather(token, share or null, row) and
//     multiply(expert, rows, num_rows, panels, finish)
template <typename Rows, typename T>
static inline void moe_gate_up(const GateUpArgs<T>& args, const Rows& rows, Work& work) {
  const Pairs pairs{args.pairs, args.stops,
                    args.num_experts, args.num_choices};
  const T* bias = args.bias;
  const float* shares = args.shares;
  const int64_t width = args.num_outputs / 2, num_panels = (width + PANEL / 2 - 1) / (PANEL / 2);
  int64_t num_items = 0, most_rows = 0;
  pairs.for_each_block(rows.row_bytes, [&](int64_t, Span block) {
    num_items += num_panels;
    most_rows = std::max(most_rows, block.end - block.begin);
  });
  char* gathered = static_cast<char*>(work.scratch(size_t(most_rows * rows.row_bytes)));
  const auto run_block = [&](int64_t expert, Span block, Span panels) {
    for (int64_t pair = block.begin; pair < block.end; pair++) {
      const float* share = shares ? shares + pairs.numbers[pair] : nullptr;
      rows.gather(pairs.token_of(pair), share, gathered + (pair - block.begin) * rows.row_bytes);
    }
    const T* own_bias = bias ? bias + expert * 2 * width : nullptr;
    T* y = args.y + block.begin * width;
    const auto multiply = [&](const auto& finish) {
      rows.multiply(expert, gathered, block.end - block.begin, panels, finish);
    };
    if (args.gating == SILU_GATE) multiply(Gate<T, silu>{own_bias, y, width});
    if (args.gating == GELU_GATE) multiply(Gate<T, gelu_tanh>{own_bias, y, width});
    if (args.gating == CLAMPED_GATE)
      multiply(ClampedGate<T>{own_bias, y, width, float(args.alpha), float(args.limit),
                              float(args.offset)});
  };
  Span items;
  while (work.take(num_items, grain_of(num_items, work), items)) {
    int64_t first = 0;  // item of a block
    pairs.for_each_block(rows.row_bytes, [&](int64_t expert, Span block) {
      const Span panels{std::max(items.begin - first, int64_t(0)),
                        std::min(items.end - first, num_panels)};
      if (panels.begin < panels.end) run_block(expert, block, panels);
      first += num_panels;
    });
  }
}

// The sums over the choices of every token, for some panels: float [tokens][panels][32]
template <typename T>
struct AddShare {
  const Pairs& pairs;
  const T* bias;        // [D], of the expert, or null
  const float* shares;  // [T][C] or null
  int64_t first_pair, width;
  Span panels;
  float* sums;

  void operator()(int64_t row, int64_t panel, const float* products) const {
    const int64_t pair = first_pair + row, num_panels = panels.end - panels.begin;
    const float share = shares ? shares[pairs.numbers[pair]] : 1.0f;
    float* into = sums + (pairs.token_of(pair) * num_panels + panel - panels.begin) * PANEL;
    for (int64_t half = 0; half < PANEL; half += 16) {
      const int64_t column = panel * PANEL + half;
      f32x16 v = load(products + half);
      if (bias) v += load_up_to(bias + column, width - column);
      store(into + half, fma(v, splat(share), load(into + half)));
    }
  }
};

constexpr int64_t SUMS_BYTES = 1 << 20;  // of as many panels as one thread does at once

template <typename Rows, typename T>
static inline void moe_down(const DownArgs<T>& args, const Rows& rows, int64_t num_tokens, Work& work) {
  const Pairs pairs{args.pairs, args.stops,
                    args.num_experts, args.num_choices};
  const T* bias = args.bias;
  const float* shares = args.shares;
  const T* shared = args.shared;
  const T* shared_gate = args.shared_gate;
  const int64_t width = args.num_outputs, num_panels = (width + PANEL - 1) / PANEL;
  const int64_t at_once = std::max<int64_t>(SUMS_BYTES / (num_tokens * PANEL * 4 + 1), 1);
  const auto run_panels = [&](Span panels) {
    const int64_t count = panels.end - panels.begin;
    float* sums = static_cast<float*>(work.scratch(size_t(num_tokens * count * PANEL * 4)));
    std::fill(sums, sums + num_tokens * count * PANEL, 0.0f);
    pairs.for_each_block(rows.row_bytes, [&](int64_t expert, Span block) {
      const T* own_bias = bias ? bias + expert * width : nullptr;
      rows.multiply(expert, rows.at(block.begin), block.end - block.begin, panels,
                    AddShare<T>{pairs, own_bias, shares, block.begin, width, panels, sums});
    });
    for (int64_t token = 0; token < num_tokens; token++) {
      const f32x16 part =
          shared_gate ? 1.0f / (1.0f + exp(-splat(to_float(shared_gate[token])))) : splat(1.0f);
      for (int64_t i = 0; i < count * 2; i++) {
        const int64_t column = panels.begin * PANEL + i * 16, left = width - column;
        f32x16 v = load(sums + (token * count * 2 + i) * 16);
        if (shared) v = fma(load_up_to(shared + token * width + column, left), part, v);
        store_up_to(args.y + token * width + column, v, left);
      }
    }
  };
  Span span;
  while (work.take(num_panels, std::min(grain_of(num_panels, work), at_once), span))
    for (int64_t panel = span.begin; panel < span.end; panel += at_once)
      run_panels({panel, std::min(panel + at_once, span.end)});
}
