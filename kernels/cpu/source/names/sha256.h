// SHA-256's compression (FIPS 180-4), of one chunk or of two at a time. Each step waits for the one before, so the
// CPU's instructions take as long for two independent chunks as for one.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace sha256 {

constexpr int64_t CHUNK_BYTES = 64;

struct State {
  alignas(16) uint32_t words[8] = {
      0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
  };
};

// A chunk, and the state to update.
struct Job {
  State* state;
  const uint8_t* chunk;
};

using Compress = void (*)(const Job* jobs, int num_jobs);  // of which there are up to two

alignas(16) inline constexpr uint32_t K[64] = {
    0x428A2F98, 0x71374491, 0xB5C0FBCF, 0xE9B5DBA5, 0x3956C25B, 0x59F111F1, 0x923F82A4, 0xAB1C5ED5,
    0xD807AA98, 0x12835B01, 0x243185BE, 0x550C7DC3, 0x72BE5D74, 0x80DEB1FE, 0x9BDC06A7, 0xC19BF174,
    0xE49B69C1, 0xEFBE4786, 0x0FC19DC6, 0x240CA1CC, 0x2DE92C6F, 0x4A7484AA, 0x5CB0A9DC, 0x76F988DA,
    0x983E5152, 0xA831C66D, 0xB00327C8, 0xBF597FC7, 0xC6E00BF3, 0xD5A79147, 0x06CA6351, 0x14292967,
    0x27B70A85, 0x2E1B2138, 0x4D2C6DFC, 0x53380D13, 0x650A7354, 0x766A0ABB, 0x81C2C92E, 0x92722C85,
    0xA2BFE8A1, 0xA81A664B, 0xC24B8B70, 0xC76C51A3, 0xD192E819, 0xD6990624, 0xF40E3585, 0x106AA070,
    0x19A4C116, 0x1E376C08, 0x2748774C, 0x34B0BCB5, 0x391C0CB3, 0x4ED8AA4A, 0x5B9CCA4F, 0x682E6FF3,
    0x748F82EE, 0x78A5636F, 0x84C87814, 0x8CC70208, 0x90BEFFFA, 0xA4506CEB, 0xBEF9A3F7, 0xC67178F2,
};

inline uint32_t word(const uint8_t* bytes) {
  uint32_t read;
  memcpy(&read, bytes, sizeof read);
  return __builtin_bswap32(read);
}

inline uint32_t rotated(uint32_t x, int right) { return (x >> right) | (x << (32 - right)); }

// One round: updates `d` and `h`; the caller passes the words shifted by one to the next round.
inline void round(uint32_t a, uint32_t b, uint32_t c, uint32_t& d, uint32_t e, uint32_t f, uint32_t g,
                  uint32_t& h, uint32_t added) {
  h += (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & (f ^ g)) ^ g) + added;
  d += h;
  h += (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) | (c & (a | b)));
}

inline void compress_by_words(const Job* jobs, int num_jobs) {
  for (const Job* job = jobs; job < jobs + num_jobs; job++) {
    uint32_t w[16];
    auto [a, b, c, d, e, f, g, h] = job->state->words;
    for (int i = 0; i < 16; i++) w[i] = word(job->chunk + 4 * i);
    const auto added = [&](int i) {
      uint32_t& one = w[i % 16];
      if (i >= 16) {
        const uint32_t x = w[(i + 1) % 16], y = w[(i + 14) % 16];
        one += (rotated(x, 7) ^ rotated(x, 18) ^ (x >> 3)) + w[(i + 9) % 16] +
               (rotated(y, 17) ^ rotated(y, 19) ^ (y >> 10));
      }
      return one + K[i];
    };
#pragma GCC unroll 8
    for (int i = 0; i < 64; i += 8) {
      round(a, b, c, d, e, f, g, h, added(i));
      round(h, a, b, c, d, e, f, g, added(i + 1));
      round(g, h, a, b, c, d, e, f, added(i + 2));
      round(f, g, h, a, b, c, d, e, added(i + 3));
      round(e, f, g, h, a, b, c, d, added(i + 4));
      round(d, e, f, g, h, a, b, c, added(i + 5));
      round(c, d, e, f, g, h, a, b, added(i + 6));
      round(b, c, d, e, f, g, h, a, added(i + 7));
    }
    const uint32_t taken[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) job->state->words[i] += taken[i];
  }
}

#if defined(__x86_64__)
#define BATON_SHA256_TARGET [[gnu::target("sha,sse4.1")]]

inline bool has_instructions() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1) && __builtin_cpu_supports("sse4.1");
}

template <int N>
BATON_SHA256_TARGET void compress_beside(const Job* jobs) {
  const auto load = [](const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); };
  const __m128i swap = _mm_set_epi64x(0x0C0D0E0F08090A0B, 0x0405060700010203);
  __m128i abef[N], cdgh[N], abef_before[N], cdgh_before[N], m[N][4];
  for (int n = 0; n < N; n++) {
    const __m128i cdab = _mm_shuffle_epi32(load(jobs[n].state->words), 0xB1);
    const __m128i efgh = _mm_shuffle_epi32(load(jobs[n].state->words + 4), 0x1B);
    abef[n] = abef_before[n] = _mm_alignr_epi8(cdab, efgh, 8);
    cdgh[n] = cdgh_before[n] = _mm_blend_epi16(efgh, cdab, 0xF0);
    for (int i = 0; i < 4; i++) m[n][i] = _mm_shuffle_epi8(load(jobs[n].chunk + 16 * i), swap);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      __m128i& w = m[n][i % 4];
      const __m128i second = m[n][(i + 1) % 4], third = m[n][(i + 2) % 4], last = m[n][(i + 3) % 4];
      if (i >= 4) {
        w = _mm_add_epi32(_mm_sha256msg1_epu32(w, second), _mm_alignr_epi8(last, third, 4));
        w = _mm_sha256msg2_epu32(w, last);
      }
      const __m128i added = _mm_add_epi32(w, load(K + 4 * i));
      cdgh[n] = _mm_sha256rnds2_epu32(cdgh[n], abef[n], added);
      abef[n] = _mm_sha256rnds2_epu32(abef[n], cdgh[n], _mm_shuffle_epi32(added, 0x0E));
    }
  }
  for (int n = 0; n < N; n++) {
    const __m128i feba = _mm_shuffle_epi32(_mm_add_epi32(abef[n], abef_before[n]), 0x1B);
    const __m128i dchg = _mm_shuffle_epi32(_mm_add_epi32(cdgh[n], cdgh_before[n]), 0xB1);
    auto* words = reinterpret_cast<__m128i*>(jobs[n].state->words);
    _mm_store_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_store_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
}

#elif defined(__aarch64__)
#define BATON_SHA256_TARGET [[gnu::target("+crypto")]]

inline bool has_instructions() {
  constexpr unsigned long NEEDED = 1 << 3 | 1 << 6;  // HWCAP_AES, HWCAP_SHA2 of asm/hwcap.h
  return (getauxval(AT_HWCAP) & NEEDED) == NEEDED;
}

template <int N>
BATON_SHA256_TARGET void compress_beside(const Job* jobs) {
  uint32x4_t abcd[N], efgh[N], m[N][4];
  for (int n = 0; n < N; n++) {
    abcd[n] = vld1q_u32(jobs[n].state->words);
    efgh[n] = vld1q_u32(jobs[n].state->words + 4);
    for (int i = 0; i < 4; i++)
      m[n][i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(jobs[n].chunk + 16 * i)));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
      uint32x4_t& w = m[n][i % 4];
      if (i >= 4)
        w = vsha256su1q_u32(vsha256su0q_u32(w, m[n][(i + 1) % 4]), m[n][(i + 2) % 4], m[n][(i + 3) % 4]);
      const uint32x4_t added = vaddq_u32(w, vld1q_u32(K + 4 * i)), before = abcd[n];
      abcd[n] = vsha256hq_u32(before, efgh[n], added);
      efgh[n] = vsha256h2q_u32(efgh[n], before, added);
    }
  }
  for (int n = 0; n < N; n++) {
    uint32_t* words = jobs[n].state->words;
    vst1q_u32(words, vaddq_u32(vld1q_u32(words), abcd[n]));
    vst1q_u32(words + 4, vaddq_u32(vld1q_u32(words + 4), efgh[n]));
  }
}
#endif

#if defined(BATON_SHA256_TARGET)
BATON_SHA256_TARGET inline void compress_by_instructions(const Job* jobs, int num_jobs) {
  num_jobs == 2 ? compress_beside<2>(jobs) : compress_beside<1>(jobs);
}

inline Compress best() {
  static const Compress found = has_instructions() ? compress_by_instructions : compress_by_words;
  return found;
}
#else
inline Compress best() { return compress_by_words; }
#endif

}  // namespace sha256
