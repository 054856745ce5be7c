// Selects the (token, choice) pairs of a rank's own experts, by the slots of these. See
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

// A counting sort; pairs of other ranks come after the last slot.
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

struct OwnPairsArgs : Args {
  FIELDS(Args,
         const int32_t* experts;  // [rows][C]
         const float* shares;     // [rows][C]
         const int32_t* starts;   // [E + 1]
         const int32_t* slots;
         int64_t* loads;          // [E], which are added to
         int32_t* stops;          // [S], which are written
         int32_t* own;            // [rows][C] slots
         int32_t* pairs;          // [rows][C]
         int64_t num_choices;     // C
         int64_t first_slot;
         int64_t num_slots;)      // S
};

}  // namespace

OPERATOR(own_pairs, OwnPairsArgs) {
  const int64_t num_pairs = row_count(args, pass) * args.num_choices, first = args.first_slot, num_slots = args.num_slots;
  const int32_t* experts = args.experts;
  const float* shares = args.shares;
  const Copies copies{args.starts, args.slots};
  int64_t* loads = args.loads;
  int32_t* stops = args.stops;
  int32_t* own = args.own;
  int32_t* next = static_cast<int32_t*>(work.scratch(size_t(num_slots + 1) * sizeof(int32_t)));
  Span span;
  while (work.take(1, 1, span)) {
    for (int64_t pair = 0; pair < num_pairs; pair++) {
      const int64_t slot = copies.slot_of(experts[pair], shares[pair]) - first;
      own[pair] = int32_t(slot >= 0 && slot < num_slots ? slot : num_slots);
      loads[experts[pair]]++;
    }
    sort_pairs(own, num_pairs, num_slots, next, args.pairs);
    std::copy(next, next + num_slots, stops);
  }
}
