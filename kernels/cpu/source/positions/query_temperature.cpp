// Scales queries by their position; see kernels/positions/query_temperature.py.
#include <cmath>

#include "operator.h"
#include "rows.h"

namespace {

template <typename T>
struct QueryTemperatureArgs : Args {
  FIELDS(Args,
         const T* x;                // [rows][width]
         const int64_t* positions;  // [rows]
         T* y;                      // as x
         int64_t width;
         double growth;
         double step;)
};

template <typename T>
void run(const QueryTemperatureArgs<T>& args, const Pass& pass, Work& work) {
  const int64_t width = args.width;
  const T* x = args.x;
  const int64_t* positions = args.positions;
  T* y = args.y;
  const float growth = float(args.growth), step = float(args.step);
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

OPERATOR(query_temperature_f32, QueryTemperatureArgs<float>) { run<float>(args, pass, work); }
OPERATOR(query_temperature_bf16, QueryTemperatureArgs<bf16>) { run<bf16>(args, pass, work); }
