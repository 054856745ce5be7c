// Causal attention over latents in blocks; see kernels/latent_attention/mla_attention.py.
#include "attending.h"
#include "attention_latents.h"

namespace {

template <typename T>
struct MlaArgs : LatentArgs<T> {
  FIELDS(LatentArgs<T>,
         const int64_t* query_starts;  // [R + 1]
         const int64_t* context_lens;  // [R]
         const int64_t* block_tables;  // [R][table_stride]
         int64_t block_size;           // S
         int64_t table_stride;)
};

template <typename T>
struct MlaProblem : LatentProblem<T> {
  MlaProblem(const MlaArgs<T>& args, const Pass& pass)
      : LatentProblem<T>(args, {.query_starts = args.query_starts,
                                .context_lens = args.context_lens,
                                .block_tables = args.block_tables,
                                .count = pass.num_requests,
                                .table_stride = args.table_stride,
                                .block_size = args.block_size}) {}
};

}  // namespace

OPERATOR(mla_attention_f32, MlaArgs<float>) { attend<MlaProblem<float>>(args, pass, work); }
OPERATOR(mla_attention_bf16, MlaArgs<bf16>) { attend<MlaProblem<bf16>>(args, pass, work); }
