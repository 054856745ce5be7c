// What sets the bits of this library's sums apart from those by fused vectors of x86-64, as fingerprints say it.
//
// Told by what was compiled, as the sums themselves are: AVX2 and AVX-512 add alike, and have no word.
#include "neon.h"

extern "C" const char* baton_order_of_sums([[maybe_unused]] int is_bf16) {
#if HAS_NEON_MATRICES
  return "NEON bf16";
#elif defined(__aarch64__)
  return "NEON";
#elif defined(__x86_64__) && !defined(__FMA__)
  return "SSE";  // products are rounded before they are added (linear_tile.h)
#elif defined(__AVX512BF16__)
  return is_bf16 ? "AVX-512 BF16" : "";
#else
  return "";
#endif
}
