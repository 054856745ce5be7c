// Norm over each head, rotation, and storing K and V in blocks that are quantized once full; see
// kernels/paging/int4_arena.py.
#include "head_rows.h"
#include "pass_rows.h"
#include "int4_unit.h"

namespace {

template <typename T>
struct Int4WriteArgs : HeadRowsArgs<T> {
  FIELDS(HeadRowsArgs<T>,
         T* open_rows;               // see pass_rows.h
         T* pass_rows;
         const int64_t* open_slots;  // [R]
         int64_t num_open;)          // O
};

template <typename T>
struct Int4WriteProblem {
  HeadRows<T> heads;
  T* open;  // [slots][O][K][2][S][H]
  int64_t num_open;
  PassRows<T> pass;
  const int64_t* open_slots;
  int64_t num_requests;

  Int4WriteProblem(const Int4WriteArgs<T>& args, const Pass& of)
      : heads(args),
        open(args.open_rows),
        num_open(args.num_open),
        pass{args.pass_rows, args.num_kv_heads, args.block_size, args.width},
        open_slots(args.open_slots),
        num_requests(of.num_requests) {}

  int64_t block_size() const { return pass.block_size; }
  int64_t start(int64_t request) const { return heads.positions[heads.query_starts[request]]; }
  int64_t end(int64_t request) const { return heads.positions[heads.query_starts[request + 1] - 1] + 1; }
  int64_t first_block(int64_t request) const { return start(request) / block_size(); }
  int64_t num_blocks(int64_t request) const {
    return (end(request) - 1) / block_size() + 1 - first_block(request);
  }

  // The pass row of K or V of a token.
  T* pass_row(int64_t request, int64_t position, int64_t head, int64_t is_value) const {
    const int64_t first = pass.first(request, heads.query_starts[request]);
    return pass.row(first + position - first_block(request) * block_size(), head, is_value);
  }
  T* open_row(int64_t request, int64_t position, int64_t head, int64_t is_value) const {
    const int64_t place = open_slots[request] * num_open + position / block_size() % num_open;
    const int64_t block = (place * pass.num_heads + head) * 2 + is_value;
    return open + (block * block_size() + position % block_size()) * pass.width;
  }

  // Copies what the open block held before the pass.
  void fetch(int64_t request, int64_t head) const {
    copy_rows(request, head, first_block(request) * block_size(), start(request), [&](T* in_pass, T* in_open) {
      memcpy(in_pass, in_open, size_t(pass.width) * sizeof(T));
    });
  }

  void write(const T* x, int64_t token, int64_t request, int64_t head, bool is_value) const {
    T* row = pass_row(request, heads.positions[token], head, is_value);
    for (int64_t d = 0; d < pass.width; d += 16) {
      const int64_t count = pass.width - d;
      store_up_to(row + d, nan_if_infinite(load_up_to(x + d, count)), count);
    }
  }

  // Quantizes a block of the pass if it is full. The last blocks are kept unquantized as well, because they may hold
  // drafts, and wrong ones are overwritten later.
  void finish(int64_t request, int64_t number, int64_t head) const {
    const int64_t block = first_block(request) + number, begin = block * block_size();
    const int64_t behind = begin + block_size();
    if (number + num_open >= num_blocks(request))
      copy_rows(request, head, std::max(begin, start(request)), std::min(behind, end(request)),
                [&](T* in_pass, T* in_open) { memcpy(in_open, in_pass, size_t(pass.width) * sizeof(T)); });
    if (behind > end(request)) return;
    const int64_t place = heads.block_tables[request * heads.table_stride + block];
    const Int4Unit unit{heads.arena.unit(place, head), block_size(), pass.width};
    Quantizing<T>(unit, pass_row(request, begin, head, 0), pass_row(request, begin, head, 1), pass.stride()).run();
  }

 private:
  template <typename Copy>
  void copy_rows(int64_t request, int64_t head, int64_t begin, int64_t end, Copy copy) const {
    for (int64_t position = begin; position < end; position++)
      for (int64_t is_value = 0; is_value < 2; is_value++)
        copy(pass_row(request, position, head, is_value), open_row(request, position, head, is_value));
  }
};

template <typename T>
void run(const Int4WriteArgs<T>& args, const Pass& pass, Work& work) {
  const Int4WriteProblem<T> problem(args, pass);
  const int64_t kv_heads = problem.pass.num_heads;
  T* copy = static_cast<T*>(work.scratch(size_t(problem.pass.width) * sizeof(T)));
  const int64_t num_heads = row_count(args, pass) * problem.heads.heads_a_token();
  const int64_t count = num_heads + problem.num_requests * kv_heads;
  int64_t request = 0;
  Span span;
  while (work.take(count, grain_of(count, work), span))
    for (int64_t item = span.begin; item < span.end; item++) {
      if (item >= num_heads)
        problem.fetch((item - num_heads) / kv_heads, (item - num_heads) % kv_heads);
      else
        problem.heads.prepare(item, request, copy,
                              [&](const T* x, int64_t token, int64_t of, int64_t head, bool is_value) {
                                problem.write(x, token, of, head, is_value);
                              });
    }
  work.barrier();
  int64_t num_blocks = 0;
  for (int64_t of = 0; of < problem.num_requests; of++) num_blocks += problem.num_blocks(of);
  while (work.take(num_blocks * kv_heads, 1, span)) {
    int64_t of = 0, first = 0;  // a request, and the number of its first block
    for (int64_t item = span.begin; item < span.end; item++) {
      for (; item / kv_heads >= first + problem.num_blocks(of); of++) first += problem.num_blocks(of);
      problem.finish(of, item / kv_heads - first, item % kv_heads);
    }
  }
}

}  // namespace

OPERATOR(int4_kv_write_f32, Int4WriteArgs<float>) { run<float>(args, pass, work); }
OPERATOR(int4_kv_write_bf16, Int4WriteArgs<bf16>) { run<bf16>(args, pass, work); }
