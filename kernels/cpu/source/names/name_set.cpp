// A set of names; see kernels/names/name_set.py.
//
// Not thread-safe: callers must serialize their calls.
#include "name_map.h"

extern "C" {

NameMap* baton_names_new() { return new NameMap; }

void baton_names_free(NameMap* set) { delete set; }

// Returns false if there is no place for it.
bool baton_names_add(NameMap* set, const Name* name) { return set->put(*name, 1); }

void baton_names_remove(NameMap* set, const Name* name) { set->put(*name, NameMap::NONE); }

// The index of the last of these names that is in the set, or -1.
int64_t baton_names_last(const NameMap* set, const Name* names, int64_t num_names) {
  int64_t last = -1;
  set->find_all(names, num_names, [&](uint32_t value, int64_t number) {
    if (value != NameMap::NONE) last = number;
    return true;
  });
  return last;
}

}
