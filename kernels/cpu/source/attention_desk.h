// Where one thread works on a tile: packed operands, scores, and the sums of each row.
#pragma once

#include "attention_problem.h"

namespace {

// The sums of each row; the sum of a row's weights is spread over 16 lanes.
struct State {
  float *tops, *totals, *out;
  int64_t stride;

  void clear(int64_t rows) const {
    std::fill(tops, tops + rows, NOTHING_YET);
    std::fill(totals, totals + 16 * rows, 0.0f);
    std::fill(out, out + stride * rows, 0.0f);
  }

  void add(const State& other, int64_t rows) const {
    for (int64_t row = 0; row < rows; row++) {
      const float top = std::max(tops[row], other.tops[row]);
      const f32x16 mine = exp2(splat(tops[row] - top)), its = exp2(splat(other.tops[row] - top));
      tops[row] = top;
      combine(totals + 16 * row, mine, other.totals + 16 * row, its, 16);
      combine(out + stride * row, mine, other.out + stride * row, its, stride);
    }
  }

 private:
  static void combine(float* a, f32x16 x, const float* b, f32x16 y, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) store(a + i, fma(load(a + i), x, load(b + i) * y));
  }
};

// Memory of one thread, laid out for a tile.
template <typename T>
struct Desk {
  Cell *queries, *keys, *values;  // [rows][depth], [depth][CHUNK], [CHUNK / PER_CELL][width]
  float *scores, *shrinks;        // [rows][CHUNK], [rows]
  T *weights, *rows;              // [rows][CHUNK], [2 CHUNK + 1][width]: rows that had to be copied
  State segment, whole;

  Desk(Work& work, const AttentionProblem<T>& problem) {
    const int64_t width = problem.padded_width();
    uint8_t* next = nullptr;
    for (int pass = 0; pass < 2; pass++) {  // to measure, then to lay out
      uint8_t* start = next;
      allot(next, queries, TILE_ROWS * problem.query_stride());
      allot(next, keys, problem.padded_depth() * CHUNK);
      allot(next, values, CHUNK / PER_CELL<T> * width);
      allot(next, scores, TILE_ROWS * CHUNK);
      allot(next, shrinks, TILE_ROWS);
      allot(next, weights, TILE_ROWS * CHUNK);
      allot(next, rows, (2 * CHUNK + 1) * width);
      for (State* state : {&segment, &whole}) {
        state->stride = width;
        allot(next, state->tops, TILE_ROWS);
        allot(next, state->totals, TILE_ROWS * 16);
        allot(next, state->out, TILE_ROWS * width);
      }
      if (pass == 0) next = static_cast<uint8_t*>(work.scratch(size_t(next - start)));
    }
    std::fill(zeros(width), zeros(width) + width, T{});
  }

  T* zeros(int64_t width) const { return rows + 2 * CHUNK * width; }

 private:
  template <typename U>
  static void allot(uint8_t*& next, U*& array, int64_t count) {
    array = reinterpret_cast<U*>(next);
    next += round_up(count * int64_t(sizeof(U)), 64);
  }
};

}  // namespace
