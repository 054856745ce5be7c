// How the sums of this library differ in bits from those of FMA vectors on x86-64, as part of fingerprints.
//
// It depends on how the library was compiled, as the sums do. AVX2 and AVX-512 give the same sums, and are not named.
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
