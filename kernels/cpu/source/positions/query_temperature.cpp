// Queries that grow with their position; see kernels/positions/query_temperature.py.
#include <cmath>

#include "operator.h"
#include "rows.h"

namespace {

// in: x [rows][width], positions [rows] int64; out: y [rows][width]; i: width; f: growth, step
template <typename T>
void run(const Args& args, const Pass& pass, Work& work) {
  const int64_t width = args.i[0];
  const T* x = static_cast<const T*>(args.in[0]);
  const int64_t* positions = static_cast<const int64_t*>(args.in[1]);
  T* y = static_cast<T*>(args.out[0]);
  const float growth = float(args.f[0]), step = float(args.f[1]);
  Span rows;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, rows)) {
    for (int64_t row = rows.begin; row < rows.end; row++) {
      const float steps = floorf(float(positions[row] + 1) / step);
      const f32x16 factor = splat(1.0f + growth * log1pf(steps));
      for_each_part(width, [&](int64_t d, int64_t count) {
        const int64_t at = row * width + d;
        store_first(y + at, load_first(x + at, count) * factor, count);
      });
    }
  }
}

}  // namespace

OPERATOR(query_temperature_f32) { run<float>(args, pass, work); }
OPERATOR(query_temperature_bf16) { run<bf16>(args, pass, work); }
