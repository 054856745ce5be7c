// The table of holders, for other sources that look names up.
#pragma once
#include <cstdint>

struct HolderTable;
struct Name;

extern "C" void baton_holders_leading_of(const HolderTable* table, uint32_t slot, const Name* const* prompts,
                                         const int64_t* num_names, int64_t num_prompts, uint32_t* depths);
