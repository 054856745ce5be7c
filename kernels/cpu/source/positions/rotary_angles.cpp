// Cosines and sines of rotary positions; see kernels/positions/rotary_angles.py.
#include "functions.h"
#include "operator.h"
#include "rows.h"

namespace {

typedef double f64x16 __attribute__((vector_size(128)));
typedef int64_t i64x16 __attribute__((vector_size(128)));

struct CosSin {
  f32x16 cos, sin;
};

// Within 2 ulp for |angle| < 2^20.
//
// The angle is reduced to a quarter of a turn in double, with the quarter split into 33 bits and a rest, so that
// multiples of it are exact: for a million radians, float would leave no correct bit. The polynomials are Moshier's
// (Cephes).
CosSin cos_sin(f32x16 angle) {
  const f64x16 wide = __builtin_convertvector(angle, f64x16);
  const double shift = 6755399441055744.0;  // 1.5 * 2^52
  const f64x16 quarters = (wide * 0.63661977236758134 + shift) - shift;
  const f64x16 rest = (wide - quarters * 1.57079632673412561) - quarters * 6.07710050650619225e-11;
  const f32x16 r = __builtin_convertvector(rest, f32x16), s = r * r;
  f32x16 sin = fma(splat(-1.9515295891e-4f), s, splat(8.3321608736e-3f));
  sin = fma(sin, s, splat(-1.6666654611e-1f));
  sin = fma(sin * s, r, r);
  f32x16 cos = fma(splat(2.443315711809948e-5f), s, splat(-1.388731625493765e-3f));
  cos = fma(cos, s, splat(4.166664568298827e-2f));
  cos = fma(cos, s * s, fma(splat(-0.5f), s, splat(1.0f)));
  const i32x16 quarter = __builtin_convertvector(__builtin_convertvector(quarters, i64x16), i32x16);
  const i32x16 is_odd = (quarter & 1) != 0;
  const i32x16 cos_sign = ((quarter + 1) & 2) << 30, sin_sign = (quarter & 2) << 30;
  return {as_floats(bits_of(is_odd ? sin : cos) ^ cos_sign),
          as_floats(bits_of(is_odd ? cos : sin) ^ sin_sign)};
}

struct RotaryAnglesArgs : Args {
  FIELDS(Args,
         const int64_t* positions;  // [rows]
         const float* frequencies;  // [width]
         float* cos;                // [rows][width]
         float* sin;
         int64_t width;
         double factor;)
};

}  // namespace

OPERATOR(rotary_angles_f32, RotaryAnglesArgs) {
  const int64_t width = args.width;
  const float factor = float(args.factor);
  const int64_t* positions = args.positions;
  const float* frequencies = args.frequencies;
  Span span;
  while (work.take(row_count(args, pass), ROWS_AT_ONCE, span)) {
    for (int64_t row = span.begin; row < span.end; row++) {
      const float position = float(positions[row]);
      float* cos = args.cos + row * width;
      float* sin = args.sin + row * width;
      for_each_part(width, [&](int64_t d, int64_t count) {
        const CosSin found = cos_sin(load_first(frequencies + d, count) * position);
        store_first(cos + d, found.cos * factor, count);
        store_first(sin + d, found.sin * factor, count);
      });
    }
  }
}
