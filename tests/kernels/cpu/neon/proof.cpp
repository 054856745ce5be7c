// Operators in a program of its own, for a CPU that an emulator stands for: each held to what it is defined to
// compute, and to itself for other numbers of rows beside.
//
//   proof                        checks all; prints a digest of what each gave, to be held to that of other CPUs
//   proof OPERATOR ROWS TIMES    runs one so often, for a count of its instructions; TIMES may be 0
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "linear_tile.h"
#include "neon.h"
#include "quantized_panel.h"
#include "sha256.h"

struct Entry {
  Operator run;
  const Args* args;
  int64_t alone_rows;
};
struct Blocks {
  uint8_t* memory;
  const int64_t *rows, *starts;
  int64_t num_rows, num_starts;
};
extern "C" void baton_run(const Entry*, int64_t, const Pass*, int64_t, double*);
extern "C" void baton_checksums(const Blocks*, const Blocks*, int64_t, int64_t, uint64_t*);

#define NAMES(DO)                                                                                            \
  DO(pack_weight) DO(logits_f32) DO(logits_bf16) DO(int8_pack_f32) DO(int4_pack_f32) DO(int8_rows_f32)       \
  DO(int8_linear_f32) DO(int4_linear_f32) DO(paged_attention_f32) DO(paged_attention_bf16) DO(rms_norm_f32)  \
  DO(rms_norm_bf16) DO(silu_mul_f32) DO(silu_mul_bf16) DO(gelu_f32) DO(gelu_bf16)
#define DECLARE(name) extern "C" void name(const Args&, const Pass&, Work&);
NAMES(DECLARE)

namespace {

int64_t num_checks = 0, num_wrong = 0;
uint64_t state = 1;
int64_t num_threads = 2;  // one where instructions are counted: who waits looks, and looks

uint32_t random_bits() {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(state >> 33);
}

// From -1 to 1, with all the bits that T has.
template <typename T>
std::vector<T> some(int64_t count) {
  std::vector<T> v(static_cast<size_t>(count));
  for (T& x : v) narrow(float(int32_t(random_bits() & 0xFFFFFF) - 0x800000) / float(0x800000), &x);
  return v;
}

void check(bool is_right, const std::string& name, int64_t a, int64_t b) {
  num_checks++;
  if (is_right || num_wrong++ >= 20) return;
  printf("wrong: %s, %ld, %ld\n", name.c_str(), long(a), long(b));
}

bool is_same(float a, float b) { return memcmp(&a, &b, 4) == 0; }

struct Digest {
  uint64_t h = 0xcbf29ce484222325u;
  template <typename T>
  void add(const std::vector<T>& v) {
    const auto* p = reinterpret_cast<const uint8_t*>(v.data());
    for (size_t i = 0; i < v.size() * sizeof(T); i++) h = (h ^ p[i]) * 0x100000001b3u;
  }
  void say(const std::string& name) const { printf("%s %016lx\n", name.c_str(), (unsigned long)h); }
};

int64_t at(const void* p) { return reinterpret_cast<int64_t>(p); }
int64_t bits(double x) { int64_t b; memcpy(&b, &x, 8); return b; }

void run(Operator op, std::vector<int64_t> args, Pass pass = {}) {
  const Entry entry{op, reinterpret_cast<const Args*>(args.data()), 0};
  baton_run(&entry, 1, &pass, num_threads, nullptr);
}

// a + b to float, with the last bit set if that is not exact; what is denormal is zero.
float odd_sum(float a, float b) {
  const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? x * 0 : x; };
  const double x = flushed(a), y = flushed(b), s = x + y, part = s - x;
  const double rest = (x - (s - part)) + (y - part);
  float f = float(s);
  if (double(f) == s && rest == 0) return flushed(f);
  const double away = double(f) != s ? double(f) - s : -rest;  // where f lies, seen from the sum
  if (away != 0 && (away > 0) == (f > 0)) f = std::nextafterf(f, 0);
  uint32_t word;
  memcpy(&word, &f, 4);
  word |= 1;
  memcpy(&f, &word, 4);
  return flushed(f);
}

// As the operator is defined on this CPU; BFDotAdd of Arm's manual where it has it.
float defined_sum(const bf16* x, const bf16* w, int64_t width) {
  float sum = 0;
  for (int64_t k = 0; k < width; k += 2) {
    const float x0 = to_float(x[k]), x1 = to_float(x[k + 1]), w0 = to_float(w[k]), w1 = to_float(w[k + 1]);
    if (HAS_NEON_MATRICES)
      sum = odd_sum(sum, odd_sum(x0 * w0, x1 * w1));
    else
      sum = fmaf(x1, w1, fmaf(x0, w0, sum));
  }
  return sum;
}

float defined_sum(const float* x, const float* w, int64_t width) {
  float sum = 0;
  for (int64_t k = 0; k < width; k++) sum = fmaf(x[k], w[k], sum);
  return sum;
}

template <typename T>
struct LinearCase {
  int64_t width, outputs, panels;
  std::vector<T> w, packed;

  LinearCase(int64_t width, int64_t outputs)
      : width(width), outputs(outputs), panels((outputs + PANEL - 1) / PANEL), w(some<T>(outputs * width)),
        packed(size_t(panels * PANEL * width)) {
    pack();
  }

  void pack() {
    run(pack_weight, {outputs, at(w.data()), at(packed.data()), width * int64_t(sizeof(T)), panels, 0});
  }

  std::vector<float> multiply(const T* x, int64_t rows) const {
    std::vector<float> y(size_t(rows * outputs));
    run(sizeof(T) == 4 ? logits_f32 : logits_bf16,
        {rows, at(x), at(packed.data()), 0, at(y.data()), outputs, width, width});
    return y;
  }
};

template <typename T>
void check_linear(const std::string& name) {
  Digest digest;
  for (int64_t width : {2, 6, 64, 66, 514}) {
    const LinearCase<T> linear(width + (sizeof(T) == 4), 70);
    for (int64_t rows = 1; rows <= 19; rows++) {
      const std::vector<T> x = some<T>(rows * linear.width);
      const std::vector<float> y = linear.multiply(x.data(), rows);
      digest.add(y);
      for (int64_t row = 0; row < rows; row++) {
        const T* of_row = x.data() + row * linear.width;
        for (int64_t column = 0; column < linear.outputs; column++)
          check(is_same(y[size_t(row * linear.outputs + column)],
                        defined_sum(of_row, linear.w.data() + column * linear.width, linear.width)),
                name, linear.width, rows);
        const std::vector<float> alone = linear.multiply(of_row, 1);
        check(!memcmp(alone.data(), y.data() + row * linear.outputs, alone.size() * 4), name + " alone", width, rows);
      }
    }
  }
  digest.say(name);
}

// Sums that end denormal below zero, which is -0 where denormals are zeros: what fills up an odd number of steps
// must leave it so.
void check_signs_of_zero() {
  LinearCase<bf16> linear(6, 32);
  const float first = 0x1p-63f, x[6] = {1.0078125f * first, 0, -1.015625f * first, 0, -0.0f, -0.0f};
  std::vector<bf16> rows(12);
  for (size_t k = 0; k < 12; k++) narrow(x[k % 6], &rows[k]);
  for (size_t k = 0; k < linear.w.size(); k++) narrow(k % 6 == 0 || k % 6 == 2 ? first : 0.0f, &linear.w[k]);
  linear.pack();
  const float wanted = defined_sum(rows.data(), linear.w.data(), 6);
  check(std::signbit(wanted), "below zero", 0, 0);
  for (int64_t count : {1, 2})
    for (float sum : linear.multiply(rows.data(), count)) check(is_same(sum, wanted), "sign of zero", count, 0);
}

struct QuantizedCase {
  bool is_int4;
  int64_t width, outputs, padded, panels, row_bytes;
  std::vector<float> w, scales;
  std::vector<uint8_t> packed;

  QuantizedCase(bool is_int4, int64_t width, int64_t outputs)
      : is_int4(is_int4), width(width), outputs(outputs), padded((width + GROUP - 1) / GROUP * GROUP),
        panels((outputs + PANEL - 1) / PANEL), row_bytes((padded + padded / 8 + 8 + 63) / 64 * 64),
        w(some<float>(outputs * width)), scales(size_t(panels * PANEL)),
        packed(size_t(panels * (is_int4 ? padded / GROUP * INT4_GROUP_BYTES : padded * PANEL))) {
    run(is_int4 ? int4_pack_f32 : int8_pack_f32,
        {panels, at(w.data()), at(packed.data()), is_int4 ? 0 : at(scales.data()), outputs, width, padded, 0});
  }

  std::vector<uint8_t> rounded(const std::vector<float>& x, int64_t rows) const {
    std::vector<uint8_t> q(size_t(rows * row_bytes));
    run(int8_rows_f32, {rows, at(x.data()), at(q.data()), width, padded, row_bytes, width, 1});
    return q;
  }

  std::vector<float> multiply(const std::vector<uint8_t>& q, int64_t rows) const {
    std::vector<float> y(size_t(rows * outputs));
    run(is_int4 ? int4_linear_f32 : int8_linear_f32,
        {rows, at(q.data()), at(packed.data()), is_int4 ? 0 : at(scales.data()), 0, at(y.data()), outputs, padded,
         row_bytes});
    return y;
  }

  // With sums of whole numbers, as kernels/products/ defines them.
  float defined(const Int8Rows& rows, int64_t row, int64_t output) const {
    const int64_t panel = output / PANEL, column = output % PANEL;
    const int8_t* q = rows.values(row);
    int32_t sum = 0;
    float total = 0;
    for (int64_t k = 0; k < padded; k++) {
      if (!is_int4) {
        sum += q[k] * (packed[size_t(panel * padded * PANEL + (k / 4 * PANEL + column) * 4 + k % 4)] - 128);
        continue;
      }
      if (k % GROUP == 0) sum = 0;
      const uint8_t* group = packed.data() + (panel * (padded / GROUP) + k / GROUP) * INT4_GROUP_BYTES;
      const int64_t in_group = k % GROUP;
      const uint8_t both = group[SCALE_BYTES + (in_group / 8 * PANEL + column) * 4 + in_group % 4];
      sum += q[k] * ((in_group % 8 < 4 ? both & 15 : both >> 4) - 8);
      if (in_group != GROUP - 1) continue;
      bf16 scale;
      memcpy(&scale, group + 2 * column, 2);
      total = fmaf(float(sum), to_float(scale), total);
    }
    if (is_int4) return total * rows.scale(row);
    return float(sum) * scales[size_t(output)] * rows.scale(row);
  }
};

void check_quantized(bool is_int4, const std::string& name) {
  Digest digest;
  for (int64_t width : {32, 70, 320}) {
    const QuantizedCase linear(is_int4, width, 70);
    for (int64_t rows = 1; rows <= 13; rows++) {
      std::vector<uint8_t> q = linear.rounded(some<float>(rows * width), rows);
      const std::vector<float> y = linear.multiply(q, rows);
      digest.add(y);
      const Int8Rows of{q.data(), linear.padded, linear.row_bytes};
      for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < linear.outputs; column++)
          check(is_same(y[size_t(row * linear.outputs + column)], linear.defined(of, row, column)), name, width, rows);
    }
  }
  digest.say(name);
}

template <typename T>
struct AttentionCase {
  int64_t heads = 4, kv_heads = 2, width, size = 16, blocks;
  std::vector<T> arena;
  std::vector<int64_t> table;

  AttentionCase(int64_t width, int64_t context)
      : width(width), blocks((context + 15) / 16), arena(some<T>(blocks * kv_heads * 2 * size * width)) {
    for (int64_t i = 0; i < blocks; i++) table.push_back((i * 7 + 3) % blocks);
  }

  const T* entry(int64_t key, int64_t kv_head, int64_t is_value) const {
    const int64_t unit = table[size_t(key / size)] * kv_heads + kv_head;
    return arena.data() + ((unit * 2 + is_value) * size + key % size) * width;
  }

  // Queries that end at `context`.
  std::vector<T> attend(const T* q, int64_t queries, int64_t context) {
    std::vector<T> out(size_t(queries * heads * width));
    const int64_t starts[] = {0, queries}, lens[] = {context};
    run(sizeof(T) == 4 ? paged_attention_f32 : paged_attention_bf16,
        {queries, at(q), at(arena.data()), at(starts), at(lens), at(table.data()), 0, at(out.data()), heads, kv_heads,
         width, size, blocks, 0, 0, 0, 2 * size * width * int64_t(sizeof(T)), 0, bits(0.3), bits(0)},
        {queries, 1, 1});
    return out;
  }

  double defined(const T* q, int64_t head, int64_t seen, int64_t d) const {
    double total = 0, sum = 0;
    for (int64_t key = 0; key < seen; key++) {
      const T *k = entry(key, head / 2, 0), *v = entry(key, head / 2, 1);
      double score = 0;
      for (int64_t i = 0; i < width; i++) score += double(to_float(q[i])) * to_float(k[i]);
      const double weight = std::exp(score * 0.3);
      total += weight;
      sum += weight * to_float(v[d]);
    }
    return sum / total;
  }
};

template <typename T>
void check_attention(const std::string& name) {
  Digest digest;
  for (int64_t width : {64, 80})
    for (int64_t queries : {1, 5, 37}) {
      const int64_t context = 150, row = 4 * width;
      AttentionCase<T> attention(width, context);
      const std::vector<T> q = some<T>(queries * row);
      const std::vector<T> out = attention.attend(q.data(), queries, context);
      digest.add(out);
      for (int64_t i = 0; i < queries; i++) {
        const int64_t seen = context - queries + 1 + i;
        for (int64_t head = 0; head < 4; head++) {
          const double wanted = attention.defined(q.data() + i * row + head * width, head, seen, i % width);
          const double found = to_float(out[size_t(i * row + head * width + i % width)]);
          check(std::fabs(found - wanted) < (sizeof(T) == 4 ? 1e-5 : 1e-2), name, width, i);
        }
        const std::vector<T> alone = attention.attend(q.data() + i * row, 1, seen);
        check(!memcmp(alone.data(), out.data() + i * row, alone.size() * sizeof(T)), name + " alone", width, i);
      }
    }
  digest.say(name);
}

template <typename T>
std::vector<T> apply(Operator op, const std::vector<T>& x, int64_t rows, int64_t width) {
  std::vector<T> y(size_t(rows * width));
  run(op, {rows, at(x.data()), at(y.data()), width});
  return y;
}

template <typename T>
void check_elementwise(const std::string& kind, Operator norm, Operator silu_mul, Operator gelu) {
  const double most = sizeof(T) == 4 ? 1e-6 : 4e-3;
  const int64_t rows = 3, width = 75;
  const std::vector<T> x = some<T>(2 * rows * width), weight = some<T>(width);
  Digest digest;
  std::vector<T> y(size_t(rows * width));
  run(norm, {rows, at(x.data()), at(weight.data()), 0, at(y.data()), 0, width, 0, bits(1e-6)});
  digest.add(y);
  const std::vector<T> gated = apply(silu_mul, x, rows, width), curved = apply(gelu, x, rows, width);
  digest.add(gated);
  digest.add(curved);
  for (int64_t row = 0; row < rows; row++) {
    double squares = 0;
    for (int64_t d = 0; d < width; d++) squares += std::pow(to_float(x[size_t(row * width + d)]), 2);
    for (int64_t d = 0; d < width; d++) {
      const size_t i = size_t(row * width + d);
      const double v = to_float(x[i]), scaled = v / std::sqrt(squares / width + 1e-6) * to_float(weight[size_t(d)]);
      check(std::fabs(to_float(y[i]) - scaled) <= 2 * most, "rms_norm_" + kind, row, d);
      const double gate = to_float(x[size_t(2 * row * width + d)]), up = to_float(x[size_t((2 * row + 1) * width + d)]);
      check(std::fabs(to_float(gated[i]) - gate / (1 + std::exp(-gate)) * up) <= most, "silu_mul_" + kind, row, d);
      const double wanted = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
      check(std::fabs(to_float(curved[i]) - wanted) <= most, "gelu_" + kind, row, d);
    }
  }
  digest.say("elementwise_" + kind);
}

void check_bf16_rounding() {
  Digest digest;
  for (uint32_t high = 0; high < 0x10000; high++) {
    std::vector<bf16> stored(16);
    f32x16 v{};
    for (int i = 0; i < 16; i++) v[i] = as_floats(i32x16{} + int32_t(high << 16 | (0x7FF8 + i)))[0];
    v[0] = to_float(bf16(high));
    store(stored.data(), v);
    digest.add(stored);
    for (int i = 0; i < 16; i++) check(stored[size_t(i)] == to_bf16(v[i]), "bf16", high, i);
  }
  digest.say("bf16_rounding");
}

void check_hashes() {
  Digest digest;
  for (int64_t length : {1, 7, 16, 100, 200, 320, 1024, 4096, 5000}) {
    alignas(64) static uint8_t source[3 * 5056], copy[3 * 5056];
    for (uint8_t& byte : source) byte = uint8_t(random_bits());
    std::vector<uint64_t> copied(3), there(3);
    const int64_t first = 0, starts[] = {0, length, 2 * length};
    const Blocks moved{copy, &first, starts, 1, 3}, kept{source, starts, &first, 3, 1};
    baton_checksums(&moved, &kept, 1, length, copied.data());
    baton_checksums(&kept, nullptr, 1, length, there.data());
    check(copied == there && !memcmp(copy, source, size_t(3 * length)), "checksum", length, 0);
    digest.add(copied);
  }
  const std::vector<float> text = some<float>(64);
  sha256::State by_words[2], by_best[2];
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto job = [&](sha256::State* states, int i) { return sha256::Job{states + i, bytes + 64 * i}; };
  const sha256::Job words[] = {job(by_words, 0), job(by_words, 1)}, best[] = {job(by_best, 0), job(by_best, 1)};
  sha256::compress_by_words(words, 2);
  sha256::best()(best, 2);
  for (int i = 0; i < 2; i++) check(!memcmp(by_words + i, by_best + i, sizeof(sha256::State)), "sha256", i, 0);
  digest.say("hashes");
}

template <typename Do>
int repeat(int64_t times, Do once) {
  for (int64_t i = 0; i < times; i++) once();
  return 0;
}

int run_one(const std::string& name, int64_t rows, int64_t times) {
  num_threads = 1;
  constexpr int64_t WIDTH = 1024, OUTPUTS = 256, CONTEXT = 512;
  if (name == "linear_f32" || name == "linear_bf16") {
    const auto go = [&]<typename T>(T) {
      const LinearCase<T> linear(WIDTH, OUTPUTS);
      const std::vector<T> x = some<T>(rows * WIDTH);
      return repeat(times, [&] { linear.multiply(x.data(), rows); });
    };
    return name == "linear_f32" ? go(float()) : go(bf16());
  }
  if (name == "linear_int8" || name == "linear_int4") {
    const QuantizedCase linear(name == "linear_int4", WIDTH, OUTPUTS);
    const std::vector<uint8_t> q = linear.rounded(some<float>(rows * WIDTH), rows);
    return repeat(times, [&] { linear.multiply(q, rows); });
  }
  if (name == "attention_f32" || name == "attention_bf16") {
    const auto go = [&]<typename T>(T) {
      AttentionCase<T> attention(128, CONTEXT);
      const std::vector<T> q = some<T>(rows * 4 * 128);
      return repeat(times, [&] { attention.attend(q.data(), rows, CONTEXT); });
    };
    return name == "attention_f32" ? go(float()) : go(bf16());
  }
  if (name == "rms_norm_bf16" || name == "silu_mul_bf16") {
    const std::vector<bf16> x = some<bf16>(2 * rows * WIDTH), weight = some<bf16>(WIDTH);
    std::vector<bf16> y(size_t(rows * WIDTH));
    if (name == "silu_mul_bf16")
      return repeat(times, [&] { run(silu_mul_bf16, {rows, at(x.data()), at(y.data()), WIDTH}); });
    return repeat(times, [&] {
      run(rms_norm_bf16, {rows, at(x.data()), at(weight.data()), 0, at(y.data()), 0, WIDTH, 0, bits(1e-6)});
    });
  }
  if (name == "checksum") {
    std::vector<uint8_t> bytes(size_t(rows) * 4096);
    std::vector<uint64_t> sums(static_cast<size_t>(rows));
    const int64_t first = 0;
    const Blocks whole{bytes.data(), &first, &first, 1, 1};
    return repeat(times, [&] { baton_checksums(&whole, nullptr, rows, 4096, sums.data()); });
  }
  fprintf(stderr, "no operator %s\n", name.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4) return run_one(argv[1], atoll(argv[2]), atoll(argv[3]));
  check_linear<float>("linear_f32");
  check_linear<bf16>("linear_bf16");
  check_signs_of_zero();
  check_quantized(false, "linear_int8");
  check_quantized(true, "linear_int4");
  check_attention<float>("attention_f32");
  check_attention<bf16>("attention_bf16");
  check_elementwise<float>("f32", rms_norm_f32, silu_mul_f32, gelu_f32);
  check_elementwise<bf16>("bf16", rms_norm_bf16, silu_mul_bf16, gelu_bf16);
  check_bf16_rounding();
  check_hashes();
  printf("%ld checks, %ld wrong\n", long(num_checks), long(num_wrong));
  return num_wrong != 0;
}
