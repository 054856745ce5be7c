// What sets the bits of this library's sums apart from those by the vectors of x86-64, as fingerprints say it.
#include "neon.h"

extern "C" const char* baton_order_of_sums() {
#if HAS_NEON_MATRICES
  return "NEON bf16";
#elif defined(__aarch64__)
  return "NEON";
#else
  return "";
#endif
}
