// Random words of tokens, and Gumbel noise made of them; see kernels/sampling/philox.py and kernels/sampling/gumbel.py.
#pragma once

#include "simd.h"

typedef uint64_t u64x8 __attribute__((vector_size(64)));

struct Stream {
  uint32_t seed_low, seed_high, position, choice;
};

constexpr int64_t TOKENS_AT_ONCE = 64;  // of 16 counters

namespace philox {

constexpr uint64_t M0 = 0xD2511F53, M1 = 0xCD9E8D57, WORD = 0xFFFFFFFF;
constexpr uint32_t W0 = 0x9E3779B9, W1 = 0xBB67AE85;

// 8 counters that differ in their first word, in 64 bits each, so that products fit.
struct Counters {
  u64x8 c0, c1, c2, c3;

  void turn(uint32_t k0, uint32_t k1) {
    const u64x8 product0 = c0 * M0, product1 = c2 * M1;
    c0 = (product1 >> 32) ^ c1 ^ uint64_t(k0);
    c2 = (product0 >> 32) ^ c3 ^ uint64_t(k1);
    c1 = product1 & WORD;
    c3 = product0 & WORD;
  }
};

static inline u32x16 halves(u64x8 low, u64x8 high) {
  typedef uint32_t u32x8 __attribute__((vector_size(32)));
  const u32x8 first = __builtin_convertvector(low, u32x8), second = __builtin_convertvector(high, u32x8);
  return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

static inline u32x16 alternate_low(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline u32x16 alternate_high(u32x16 a, u32x16 b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

}  // namespace philox

// The words of 64 tokens, in order; the first is a multiple of 64.
static inline void words_of(const Stream& stream, int64_t first_token, u32x16 words[4]) {
  using namespace philox;
  const u64x8 position = u64x8{} + stream.position, choice = u64x8{} + stream.choice;
  u64x8 quads = u64x8{0, 1, 2, 3, 4, 5, 6, 7} + uint64_t(first_token / 4);
  Counters low{quads, position, choice, u64x8{}};
  Counters high{quads + 8, position, choice, u64x8{}};
  uint32_t k0 = stream.seed_low, k1 = stream.seed_high;
  for (int round = 0; round < 10; round++, k0 += W0, k1 += W1) {
    low.turn(k0, k1);
    high.turn(k0, k1);
  }
  const u32x16 w0 = halves(low.c0, high.c0), w1 = halves(low.c1, high.c1);
  const u32x16 w2 = halves(low.c2, high.c2), w3 = halves(low.c3, high.c3);
  const u32x16 even_low = alternate_low(w0, w2), odd_low = alternate_low(w1, w3);
  const u32x16 even_high = alternate_high(w0, w2), odd_high = alternate_high(w1, w3);
  words[0] = alternate_low(even_low, odd_low);
  words[1] = alternate_high(even_low, odd_low);
  words[2] = alternate_low(even_high, odd_high);
  words[3] = alternate_high(even_high, odd_high);
}

// -log(-log(u)),  u = (word + 1/2) / 2^32
static inline double noise_of(uint32_t word) {
  return -std::log(-std::log((double(word) + 0.5) * 0x1p-32));
}

// An upper bound of the noise, seldom more than 0.1 above it where it is large: with q = 1 - u,
//     -log(-log(1 - q)) <= -log(q)      and      log2(q) >= exponent + fraction of q as a float
static inline f32x16 most_noise_of(u32x16 words) {
  const f32x16 q = __builtin_convertvector(~words, f32x16) + 0.5f;
  i32x16 bits;
  memcpy(&bits, &q, sizeof bits);
  const f32x16 log2_q = __builtin_convertvector(bits - (159 << 23), f32x16) * 0x1p-23f;  // 127 + 32
  return log2_q * -0.693148f + 1e-5f;
}
