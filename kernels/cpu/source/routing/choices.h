// The choice of the least cost, for other sources.
#pragma once
#include <cstdint>

extern "C" void baton_least(const double* costs, int64_t num, const uint64_t* draws, const int64_t* rows, uint64_t draw,
                            int64_t num_out, int64_t* out);
