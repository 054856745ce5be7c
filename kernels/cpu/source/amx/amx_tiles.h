// The matrix tiles of a CPU (AMX): eight registers per thread of 16 rows of 64 bytes.
//
//   AmxTiles        the instructions
//   EmulatedTiles   the same by definition, with vectors; see amx_emulated.h
//
// This is inline assembly because the intrinsics of GCC 12 do not tell the compiler that a load reads memory.
#pragma once

#include <cstdint>

#if defined(__x86_64__) && defined(__AVX512F__) && __has_include(<amxtileintrin.h>)
#define HAS_AMX 1  // of the compiler; the CPU is asked at run time
#else
#define HAS_AMX 0
#endif

constexpr int64_t TILE_ROWS_MOST = 16;
constexpr int64_t TILE_ROW_BYTES = 64;

// The operand of LDTILECFG.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int64_t count, int64_t bytes = TILE_ROW_BYTES) {
    rows[tile] = uint8_t(count);
    row_bytes[tile] = uint16_t(count ? bytes : 0);
  }
};
static_assert(sizeof(TileShapes) == 64);

#if HAS_AMX
struct AmxTiles {
  // All tiles are zero afterwards.
  static void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }

  // Returns the thread to the state of never having used tiles, so that context switches save little again.
  static void release() { asm volatile("tilerelease" ::: "memory"); }

  template <int TILE>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
  }

  template <int TILE>
  static void load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(TILE) : "memory");
  }

  template <int TILE>
  static void store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(TILE) : "memory");
  }

  // SUMS [m][n] += A [m][16 pairs] B [16 pairs][n] of bfloat16
  template <int SUMS, int A, int B>
  static void dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
  }

  // The same for groups of four bytes, signed in A and unsigned in B: exact.
  template <int SUMS, int A, int B>
  static void dot_int8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
  }
};
#endif
