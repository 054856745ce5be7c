// Emulates the instructions of amx_tiles.h, by Intel's definition of them:
//
//   dot_bf16   of a row and a column, even = 0, odd = 0; for each of 16 pairs:
//                even = fma(a[0], b[0], even)   odd = fma(a[1], b[1], odd)
//              sum = sum + (even + odd)
//
// Rounding is to nearest, ties to even; denormals count as zero and become zero. The self-check compares the
// instructions to this, and tests use it on CPUs without tiles.
#pragma once

#include "amx_tiles.h"
#include "denormals.h"
#include "simd.h"

#if HAS_AMX
class EmulatedTiles {
 public:
  static void configure(const TileShapes& shapes) {
    shapes_ = shapes;
    memset(tiles_, 0, sizeof tiles_);
  }

  static void release() { shapes_ = TileShapes{}; }

  template <int TILE>
  static void zero() {
    memset(tiles_[TILE], 0, sizeof tiles_[TILE]);
  }

  template <int TILE>
  static void load(const void* rows, int64_t stride) {
    for (int row = 0; row < shapes_.rows[TILE]; row++)
      memcpy(tiles_[TILE][row], static_cast<const char*>(rows) + row * stride, shapes_.row_bytes[TILE]);
  }

  template <int TILE>
  static void store(void* rows, int64_t stride) {
    for (int row = 0; row < shapes_.rows[TILE]; row++)
      memcpy(static_cast<char*>(rows) + row * stride, tiles_[TILE][row], shapes_.row_bytes[TILE]);
  }

  template <int SUMS, int A, int B>
  static void dot_bf16() {
    const DenormalsAsZeros denormals_as_zeros;  // tiles are memory that others see
    for (int row = 0; row < shapes_.rows[SUMS]; row++) {
      f32x16 even{}, odd{};
      for (int k = 0; k < shapes_.rows[B]; k++) {
        const uint32_t a = tiles_[A][row][k];
        u32x16 b;
        memcpy(&b, tiles_[B][k], sizeof b);
        even = fma((f32x16)(u32x16{} + (a << 16)), (f32x16)(b << 16), even);
        odd = fma((f32x16)(u32x16{} + (a & 0xFFFF0000u)), (f32x16)(b & 0xFFFF0000u), odd);
      }
      float* sums = reinterpret_cast<float*>(tiles_[SUMS][row]);
      ::store(sums, ::load(sums) + (even + odd));
    }
  }

  template <int SUMS, int A, int B>
  static void dot_int8() {
    for (int row = 0; row < shapes_.rows[SUMS]; row++)
      for (int k = 0; k < shapes_.rows[B]; k++)
        for (int column = 0; column < 16; column++)
          for (int byte = 0; byte < 32; byte += 8) {
            const int32_t a = int8_t(tiles_[A][row][k] >> byte), b = uint8_t(tiles_[B][k][column] >> byte);
            tiles_[SUMS][row][column] += uint32_t(a * b);
          }
  }

 private:
  static inline thread_local TileShapes shapes_;
  alignas(64) static inline thread_local uint32_t tiles_[8][16][16];
};
#endif
