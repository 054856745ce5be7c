// Makes denormals count as zero and become zero, as in matrix tiles.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
// In effect during its lifetime. Values that are computed meanwhile must be read from memory and written to it, because
// the compiler moves no memory access over a change of MXCSR.
class DenormalsAsZeros {
 public:
  DenormalsAsZeros() {
    asm volatile("stmxcsr %0" : "=m"(before_)::"memory");
    set(0x1F80 | 0x8000 | 0x0040);  // FTZ, DAZ, to the nearest, nothing is trapped
  }
  ~DenormalsAsZeros() { set(before_); }
  DenormalsAsZeros(const DenormalsAsZeros&) = delete;

 private:
  static void set(uint32_t word) { asm volatile("ldmxcsr %0" ::"m"(word) : "memory"); }

  uint32_t before_;
};
#endif
