// The pairs of token and choice that go to a rank's own experts, by the slots these are in. See
// kernels/experts/expert_slots.py.
#include <algorithm>
#include <cstring>

#include "operator.h"

namespace {

constexpr uint32_t HASH_FACTOR = 0x9E3779B1;

struct Copies {
  const int32_t* starts;  // [E + 1]
  const int32_t* slots;

  int32_t slot_of(int32_t expert, float share) const {
    uint32_t bits;
    memcpy(&bits, &share, sizeof(bits));
    const uint32_t hashed = (bits * HASH_FACTOR) >> 16;
    const uint32_t count = uint32_t(starts[expert + 1] - starts[expert]);
    return slots[starts[expert] + int32_t((hashed * count) >> 16)];
  }
};

// By counting; those of others are kept behind the last slot.
void sort_pairs(const int32_t* own, int64_t num_pairs, int64_t num_slots, int32_t* next, int32_t* pairs) {
  std::fill(next, next + num_slots + 1, 0);
  for (int64_t pair = 0; pair < num_pairs; pair++) next[own[pair]]++;
  int32_t start = 0;
  for (int64_t slot = 0; slot <= num_slots; slot++) {
    const int32_t count = next[slot];
    next[slot] = start;
    start += count;
  }
  for (int64_t pair = 0; pair < num_pairs; pair++) pairs[next[own[pair]]++] = int32_t(pair);
}

}  // namespace

// in: experts [rows][C] int32, shares [rows][C] float, starts [E + 1] int32, slots int32, loads [E] int64,
// which are added to, stops [S] int32, which are written; out: own slots [rows][C] int32, pairs
// [rows][C] int32; i: C, first slot, S
OPERATOR(own_pairs) {
  const int64_t num_pairs = row_count(args, pass) * args.i[0], first = args.i[1], num_slots = args.i[2];
  const int32_t* experts = static_cast<const int32_t*>(args.in[0]);
  const float* shares = static_cast<const float*>(args.in[1]);
  const Copies copies{static_cast<const int32_t*>(args.in[2]), static_cast<const int32_t*>(args.in[3])};
  int64_t* loads = static_cast<int64_t*>(const_cast<void*>(args.in[4]));
  int32_t* stops = static_cast<int32_t*>(const_cast<void*>(args.in[5]));
  int32_t* own = static_cast<int32_t*>(args.out[0]);
  int32_t* next = static_cast<int32_t*>(work.scratch(size_t(num_slots + 1) * sizeof(int32_t)));
  Span span;
  while (work.take(1, 1, span)) {
    for (int64_t pair = 0; pair < num_pairs; pair++) {
      const int64_t slot = copies.slot_of(experts[pair], shares[pair]) - first;
      own[pair] = int32_t(slot >= 0 && slot < num_slots ? slot : num_slots);
      loads[experts[pair]]++;
    }
    sort_pairs(own, num_pairs, num_slots, next, static_cast<int32_t*>(args.out[1]));
    std::copy(next, next + num_slots, stops);
  }
}
