#include "tests/engine/exact_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "engine/exact/exact_engine.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
std::vector<T> SliceRows(const std::vector<T>& v, std::int64_t first, std::int64_t count,
                         std::int64_t queries) {
  const std::int64_t row = static_cast<std::int64_t>(v.size()) / queries;
  return {v.begin() + first * row, v.begin() + (first + count) * row};
}

RowMask Valid(const Tokens& tokens, std::int64_t first, std::int64_t count) {
  RowMask valid = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (tokens.mask[Size(first + i)] != 0) valid |= RowMask{1} << i;
  }
  return valid;
}

}  // namespace

std::unique_ptr<const Engine> MakeExact(const LayerShape& shape, DataType storage) {
  auto engine = MakeExactEngine(shape, {.storage = storage});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return std::move(engine).value();
}

void Tokens::Mask(std::int64_t token) {
  mask[Size(token)] = 0;
  std::fill_n(keys.data() + token * shape.key_row(), shape.key_row(), 0.0F);
  std::fill_n(values.data() + token * shape.value_row(), shape.value_row(), 0.0F);
}

void Tokens::Round(const Engine& engine) {
  engine.RoundToStorage(keys.data(), static_cast<std::int64_t>(keys.size()));
  engine.RoundToStorage(values.data(), static_cast<std::int64_t>(values.size()));
}

oracle::Context Tokens::context() const {
  return {.kv_heads = shape.kv_heads,
          .query_heads = shape.query_heads,
          .key_dim = shape.key_dim,
          .value_dim = shape.value_dim,
          .scale = static_cast<double>(shape.scale),
          .tokens = count,
          .keys = keys.data(),
          .values = values.data(),
          .mask = mask.data()};
}

Tokens RandomTokens(const LayerShape& shape, std::int64_t count, std::uint32_t seed,
                    float key_deviation) {
  return {.shape = shape,
          .count = count,
          .keys = RandomValues(count * shape.key_row(), seed, key_deviation),
          .values = RandomValues(count * shape.value_row(), seed + 1000),
          .mask = std::vector<std::uint8_t>(Size(count), 1)};
}

void SealTokens(const Engine& engine, const Tokens& tokens, std::int64_t from, std::int64_t to,
                SealedState& state) {
  std::vector<Block> blocks;
  for (std::int64_t t = from; t < to; t += kBlockTokens) {
    blocks.push_back({.keys = tokens.keys.data() + t * tokens.shape.key_row(),
                      .values = tokens.values.data() + t * tokens.shape.value_row(),
                      .valid = Valid(tokens, t, kBlockTokens)});
  }
  Scratch scratch;
  const absl::Status status = engine.Seal(state, from, blocks, scratch);
  ASSERT_TRUE(status.ok()) << status;
}

Snapshot At(const Engine& engine, const Tokens& tokens, std::int64_t position,
            const std::vector<std::int64_t>& spans) {
  Snapshot snapshot;
  snapshot.sealed = engine.NewState();
  snapshot.sealed_tokens = position == 0 ? 0 : (position - 1) / kBlockTokens * kBlockTokens;
  std::size_t call = 0;
  for (std::int64_t from = 0; from < snapshot.sealed_tokens;) {
    const std::int64_t to =
        std::min(from + spans[call++ % spans.size()] * kBlockTokens, snapshot.sealed_tokens);
    snapshot.sealed = engine.Clone(*snapshot.sealed);
    SealTokens(engine, tokens, from, to, *snapshot.sealed);
    from = to;
  }
  const LayerShape& shape = tokens.shape;
  snapshot.rows = position - snapshot.sealed_tokens;
  snapshot.valid = Valid(tokens, snapshot.sealed_tokens, snapshot.rows);
  snapshot.tail = std::make_unique<Tail>(shape, 0);
  std::fill_n(snapshot.tail->keys.data(), snapshot.tail->keys.size(),
              std::numeric_limits<float>::quiet_NaN());
  std::fill_n(snapshot.tail->values.data(), snapshot.tail->values.size(),
              std::numeric_limits<float>::quiet_NaN());
  std::copy_n(tokens.keys.data() + snapshot.sealed_tokens * shape.key_row(),
              snapshot.rows * shape.key_row(), snapshot.tail->keys.data());
  std::copy_n(tokens.values.data() + snapshot.sealed_tokens * shape.value_row(),
              snapshot.rows * shape.value_row(), snapshot.tail->values.data());
  return snapshot;
}

Answers Answers::Slice(std::int64_t first, std::int64_t count, std::int64_t queries) const {
  return {SliceRows(outputs, first, count, queries),
          SliceRows(log_normalizers, first, count, queries),
          SliceRows(flags, first, count, queries), SliceRows(top_positions, first, count, queries),
          SliceRows(top_weights, first, count, queries)};
}

bool Answers::operator==(const Answers& other) const {
  return SameBits(outputs, other.outputs) && SameBits(log_normalizers, other.log_normalizers) &&
         SameBits(flags, other.flags) && SameBits(top_positions, other.top_positions) &&
         SameBits(top_weights, other.top_weights);
}

QueryGroup Group(const Snapshot& snapshot, const float* queries, std::int64_t count,
                 const Asked& asked) {
  return {.sealed = snapshot.sealed.get(),
          .sealed_tokens = snapshot.sealed_tokens,
          .tail = {snapshot.tail.get(), snapshot.rows, snapshot.valid},
          .queries = queries,
          .count = count,
          .causal = asked.causal,
          .first_cut = asked.first_cut};
}

Answers Attend(const Engine& engine, const Snapshot& snapshot, const float* queries,
               std::int64_t count, const Asked& asked) {
  const LayerShape& shape = engine.shape();
  const std::int64_t rows = count * shape.query_heads;
  // Not zeros: every number has to be written.
  Answers answers;
  answers.outputs.assign(Size(rows * shape.value_dim), -7.0F);
  answers.log_normalizers.assign(Size(rows), -7.0F);
  answers.flags.assign(Size(rows), 77);
  answers.top_positions.assign(Size(rows * asked.top_k), -7);
  answers.top_weights.assign(Size(rows * asked.top_k), -7.0F);
  AnswerView view;
  view.outputs = answers.outputs.data();
  view.log_normalizers = answers.log_normalizers.data();
  view.flags = answers.flags.data();
  view.top_k = asked.top_k;
  view.top_positions = answers.top_positions.data();
  view.top_weights = answers.top_weights.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(Group(snapshot, queries, count, asked), view);
  for (std::int64_t chain = plan->chains() - 1; chain >= 0; --chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return answers;
}

double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  double error = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(b[i]));
    if (std::isnan(a[i])) return std::numeric_limits<double>::infinity();
  }
  return a.size() == b.size() ? error / largest : std::numeric_limits<double>::infinity();
}

}  // namespace attnd::engine::exact_test
