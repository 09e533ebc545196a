#include "tests/engine/exact_harness.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/exact/exact_engine.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
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
                      .valid = ValidRows(tokens.mask, t, kBlockTokens)});
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
  snapshot.valid = ValidRows(tokens.mask, snapshot.sealed_tokens, snapshot.rows);
  snapshot.tail = std::make_unique<Tail>(shape, TailLayout{});
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

Answers Unwritten(const LayerShape& shape, std::int64_t count, const Asked& asked) {
  const std::int64_t rows = count * shape.query_heads;
  return {.outputs = std::vector<float>(Size(rows * shape.value_dim), -7.0F),
          .log_normalizers = std::vector<float>(Size(rows), -7.0F),
          .flags = std::vector<std::uint8_t>(Size(rows), 77),
          .top_positions = std::vector<std::int64_t>(Size(rows * asked.top_k), -7),
          .top_weights = std::vector<float>(Size(rows * asked.top_k), -7.0F)};
}

AnswerView View(Answers& answers, const Asked& asked) {
  return {.outputs = answers.outputs.data(),
          .flags = answers.flags.data(),
          .log_normalizers = answers.log_normalizers.data(),
          .top_k = asked.top_k,
          .top_positions = answers.top_positions.data(),
          .top_weights = answers.top_weights.data()};
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
  Answers answers = Unwritten(engine.shape(), count, asked);
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(Group(snapshot, queries, count, asked), View(answers, asked));
  for (std::int64_t chain = plan->chains() - 1; chain >= 0; --chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return answers;
}

}  // namespace attnd::engine::exact_test
