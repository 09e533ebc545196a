#include "tests/engine/linear_harness.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine::linear_test {
namespace {

std::unique_ptr<Tail> FillTail(const Engine& engine, const Stream& stream,
                               const SealedState& sealed, std::int64_t first, std::int64_t rows) {
  const LayerShape& shape = stream.shape;
  auto tail = std::make_unique<Tail>(shape, engine.tail_layout());
  std::copy_n(stream.keys.data() + first * shape.key_row(), rows * shape.key_row(),
              tail->keys.data());
  std::copy_n(stream.values.data() + first * shape.value_row(), rows * shape.value_row(),
              tail->values.data());
  Scratch scratch;
  engine.EncodeTail(sealed, {first, 0, rows, ValidRows(stream.mask, first, rows)}, *tail, scratch);
  return tail;
}

void PoisonRows(const Engine& engine, std::int64_t from, Tail* tail) {
  const LayerShape& shape = engine.shape();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::fill(tail->keys.data() + from * shape.key_row(), tail->keys.data() + tail->keys.size(),
            kNan);
  std::fill(tail->values.data() + from * shape.value_row(),
            tail->values.data() + tail->values.size(), kNan);
  const TailLayout layout = engine.tail_layout();
  const auto poison = [&](auto& numbers, std::int64_t heads, std::int64_t row, auto bad) {
    for (std::int64_t head = 0; head < heads; ++head) {
      auto* first = numbers.data() + head * kBlockTokens * row;
      std::fill(first + from * row, first + kBlockTokens * row, bad);
    }
  };
  poison(tail->log_decays, 1, layout.log_decays, kNan);
  poison(tail->rates, 1, layout.rates, kNan);
  poison(tail->features, shape.kv_heads, layout.features, kNan);
  poison(tail->exponents, shape.kv_heads, layout.exponents, 100'000);
  poison(tail->updates, shape.kv_heads, layout.updates, kNan);
}

}  // namespace

std::vector<float> NormalNumbers(std::int64_t count, std::uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> numbers(Size(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

void Stream::Mask(std::int64_t token) {
  mask[Size(token)] = 0;
  std::fill_n(keys.data() + token * shape.key_row(), shape.key_row(), 0.0F);
  std::fill_n(values.data() + token * shape.value_row(), shape.value_row(), 0.0F);
}

oracle::Context Stream::context(std::int64_t position) const {
  oracle::Context context;
  context.kv_heads = shape.kv_heads;
  context.query_heads = shape.query_heads;
  context.key_dim = shape.key_dim;
  context.value_dim = shape.value_dim;
  context.scale = static_cast<double>(shape.scale);
  context.tokens = position;
  context.keys = keys.data();
  context.values = values.data();
  context.mask = mask.data();
  return context;
}

Stream MakeStream(const LayerShape& shape, std::int64_t tokens, std::uint32_t seed) {
  Stream stream;
  stream.shape = shape;
  stream.tokens = tokens;
  stream.keys = NormalNumbers(tokens * shape.key_row(), seed);
  stream.values = NormalNumbers(tokens * shape.value_row(), seed + 1000);
  stream.mask.assign(Size(tokens), 1);
  return stream;
}

Stream TokensOf(const LayerShape& shape, const std::vector<float>& keys,
                const std::vector<float>& values) {
  return {shape, std::ssize(keys), keys, values, std::vector<std::uint8_t>(keys.size(), 1)};
}

std::vector<float> Repeat(float value, std::int64_t count) {
  return std::vector<float>(Size(count), value);
}

std::vector<Block> BlocksOf(const Stream& stream) {
  std::vector<Block> blocks;
  for (std::int64_t first = 0; first + kBlockTokens <= stream.tokens; first += kBlockTokens) {
    blocks.push_back({stream.keys.data() + first * stream.shape.key_row(),
                      stream.values.data() + first * stream.shape.value_row(),
                      ValidRows(stream.mask, first, kBlockTokens), nullptr, nullptr});
  }
  return blocks;
}

void ScaleKeys(float factor, Stream* stream) {
  for (float& number : stream->keys) number *= factor;
}

LinearConfig Config(const std::string& map, float epsilon) {
  LinearConfig config;
  config.feature_map.name = map;
  config.feature_map.epsilon = epsilon;
  config.normalized = map != "identity";
  return config;
}

std::unique_ptr<const Engine> MakeLinear(const LayerShape& shape, const LinearConfig& config) {
  absl::StatusOr<std::unique_ptr<const Engine>> engine = MakeEngine({shape, config});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

oracle::FeatureMap OracleMap(const std::string& name) {
  if (name == "elu_plus_one") return oracle::FeatureMap::kEluPlusOne;
  if (name == "relu") return oracle::FeatureMap::kRelu;
  if (name == "squared_relu") return oracle::FeatureMap::kSquaredRelu;
  return oracle::FeatureMap::kIdentity;
}

Snapshot At(const Engine& engine, const Stream& stream, std::int64_t position,
            const Cutting& cutting) {
  Snapshot snapshot;
  snapshot.sealed = engine.NewState();
  const std::int64_t blocks = position == 0 ? 0 : (position - 1) / kBlockTokens;
  Scratch scratch;
  std::size_t span_index = 0;
  for (std::int64_t block = 0; block < blocks;) {
    const std::int64_t span =
        std::min(cutting.spans[span_index++ % cutting.spans.size()], blocks - block);
    std::vector<Block> sealed;
    std::vector<std::unique_ptr<Tail>> tails;
    for (std::int64_t b = block; b < block + span; ++b) {
      const std::int64_t first = b * kBlockTokens;
      tails.push_back(FillTail(engine, stream, *snapshot.sealed, first, kBlockTokens));
      sealed.push_back({tails.back()->keys.data(), tails.back()->values.data(),
                        ValidRows(stream.mask, first, kBlockTokens),
                        tails.back()->log_decays.data(), tails.back()->rates.data(),
                        cutting.features_from_tail ? tails.back().get() : nullptr});
    }
    // As a layer does it: the published state stays as it is.
    snapshot.sealed = engine.Clone(*snapshot.sealed);
    const absl::Status status =
        engine.Seal(*snapshot.sealed, block * kBlockTokens, sealed, scratch);
    EXPECT_TRUE(status.ok()) << status;
    block += span;
  }
  snapshot.sealed_tokens = blocks * kBlockTokens;
  snapshot.rows = position - snapshot.sealed_tokens;
  snapshot.valid = ValidRows(stream.mask, snapshot.sealed_tokens, snapshot.rows);
  snapshot.tail = FillTail(engine, stream, *snapshot.sealed, snapshot.sealed_tokens, snapshot.rows);
  if (cutting.poison_later) PoisonRows(engine, snapshot.rows, snapshot.tail.get());
  return snapshot;
}

bool Answers::operator==(const Answers& other) const {
  return SameBits(outputs, other.outputs) && SameBits(numerators, other.numerators) &&
         SameBits(denominators, other.denominators) && exponents == other.exponents &&
         flags == other.flags;
}

Answers RowOf(const Answers& answers, const LayerShape& shape, std::int64_t query) {
  const auto cut = [query](const auto& all, std::int64_t row) {
    const auto first = all.begin() + query * row;
    return std::decay_t<decltype(all)>(first, first + row);
  };
  return {cut(answers.outputs, shape.output_row()), cut(answers.numerators, shape.output_row()),
          cut(answers.denominators, shape.query_heads), cut(answers.exponents, shape.query_heads),
          cut(answers.flags, shape.query_heads)};
}

Answers AnswersOf(const Engine& engine, const QueryGroup& group) {
  const LayerShape& shape = engine.shape();
  Answers answers;
  const std::int64_t rows = group.count * shape.query_heads;
  // Not zeros: every number has to be written.
  answers.outputs.assign(Size(rows * shape.value_dim), -7.0F);
  answers.numerators.assign(Size(rows * shape.value_dim), -7.0F);
  answers.denominators.assign(Size(rows), -7.0F);
  answers.exponents.assign(Size(rows), -7);
  answers.flags.assign(Size(rows), 77);
  AnswerView view;
  view.outputs = answers.outputs.data();
  view.numerators = answers.numerators.data();
  view.denominators = answers.denominators.data();
  view.exponents = answers.exponents.data();
  view.flags = answers.flags.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(group, view);
  for (std::int64_t chain = plan->chains() - 1; chain >= 0; --chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return answers;
}

Answers Attend(const Engine& engine, const Snapshot& snapshot, const float* queries,
               std::int64_t count, const std::int64_t* positions) {
  QueryGroup group;
  group.sealed = snapshot.sealed.get();
  group.sealed_tokens = snapshot.sealed_tokens;
  group.tail = snapshot.view();
  group.queries = queries;
  group.count = count;
  group.positions = positions;
  return AnswersOf(engine, group);
}

Answers AttendCausally(const Engine& engine, const Snapshot& snapshot, const float* queries,
                       std::int64_t count, std::int64_t first_cut) {
  QueryGroup group;
  group.sealed = snapshot.sealed.get();
  group.sealed_tokens = snapshot.sealed_tokens;
  group.tail = snapshot.view();
  group.queries = queries;
  group.count = count;
  group.causal = true;
  group.first_cut = first_cut;
  return AnswersOf(engine, group);
}

}  // namespace attnd::engine::linear_test
