// Which slots hold which names; see kernels/names/holder_table.py.
//
// Not thread-safe: callers must serialize their calls.
#include <algorithm>

#include "holder_table.h"
#include "slot_sets.h"

struct HolderTable {
  HashMap names;  // to take one block for another, once in thousands of millions, sends a prompt astray
  SlotSets sets;
  SlotSets::Bits sweeping;
  uint64_t next = 0;  // what the names begin with that are swept next
  bool is_swept = true;
};

namespace {

constexpr int64_t AHEAD = 24;  // names whose places are on their way from memory

// Calls `change` with each of the names, in order.
template <typename Change>
void walk(const HashMap& map, const Name* names, int64_t num_names, Change change) {
  HashedName keys[AHEAD];
  for (int64_t i = -AHEAD; i < num_names; i++) {
    HashedName& key = keys[(i + AHEAD) % AHEAD];
    if (i >= 0) change(key);
    if (i + AHEAD < num_names) map.prefetch(key = names[i + AHEAD]);
  }
}

}  // namespace

extern "C" {

HolderTable* baton_holders_new() { return new HolderTable; }

void baton_holders_free(HolderTable* table) { delete table; }

int64_t baton_holders_size(const HolderTable* table) { return table->names.size(); }

// Adds `slot` as a holder of `names`; returns how many it did not hold before.
int64_t baton_holders_add(HolderTable* table, uint32_t slot, const Name* names,
                          int64_t num_names) {
  int64_t num_new = 0;
  walk(table->names, names, num_names, [&](HashedName name) {
    num_new += table->names.change(name, [&](uint32_t before) {
      return table->sets.has(before, slot) ? before : table->sets.with(before, slot);
    });
  });
  return num_new;
}

// Removes `slot` as a holder of `names`; returns how many it held.
int64_t baton_holders_remove(HolderTable* table, uint32_t slot, const Name* names,
                             int64_t num_names) {
  int64_t num_gone = 0;
  walk(table->names, names, num_names, [&](HashedName name) {
    num_gone += table->names.change(name, [&](uint32_t before) {
      return table->sets.has(before, slot) ? table->sets.without(before, slot) : before;
    });
  });
  return num_gone;
}

// Writes to `depths`, which must be zeros, how many leading names each slot of `live` holds.
void baton_holders_leading(const HolderTable* table, const Name* names, int64_t num_names,
                           const uint64_t* live, int64_t num_words, uint32_t* depths) {
  SlotSets::Bits still;
  still.assign(live, size_t(num_words));
  uint32_t before = SlotSets::EMPTY;
  bool is_over = false;
  table->names.find_all(names, num_names, [&](uint32_t holders, int64_t depth) {
    if (depth == 0 || holders != before) {
      is_over = !table->sets.intersect(still, holders, [&](uint32_t slot) {
        depths[slot] = uint32_t(depth);
      });
      before = holders;
    }
    return !is_over;
  });
  if (!is_over)
    table->sets.intersect(still, SlotSets::EMPTY, [&](uint32_t slot) {
      depths[slot] = uint32_t(num_names);
    });
}

// Writes to `depths` how many leading names of each of several prompts one slot holds.
void baton_holders_leading_of(const HolderTable* table, uint32_t slot, const Name* const* prompts,
                              const int64_t* num_names, int64_t num_prompts, uint32_t* depths) {
  for (int64_t i = 0; i < num_prompts; i++) {
    if (i + 1 < num_prompts && num_names[i + 1]) table->names.prefetch(*prompts[i + 1]);
    uint32_t depth = 0;
    if (num_names[i] && table->sets.has(table->names.find(*prompts[i]), slot))
      table->names.find_all(prompts[i], num_names[i], [&](uint32_t holders, int64_t) {
        const bool is_held = table->sets.has(holders, slot);
        depth += is_held;
        return is_held;
      });
    depths[i] = depth;
  }
}

// Lets `sweep` remove these slots from all names. Nothing may be added to them any more.
void baton_holders_begin_sweep(HolderTable* table, const uint64_t* dead, int64_t num_words) {
  table->sweeping.assign(dead, size_t(num_words));
  table->next = 0;
  table->is_swept = false;
}

// Processes at least `stretch` more names; returns whether all have been processed.
int32_t baton_holders_sweep(HolderTable* table, int64_t stretch) {
  while (!table->is_swept && stretch > 0) {
    stretch -= 1 + table->names.change_segment(table->next, [&](uint32_t holders) {
      return table->sets.without_all(holders, table->sweeping);
    });
    table->is_swept = table->next == 0;
  }
  return table->is_swept;
}

}
