#include "engine/kde/paper/paper_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "engine/exact/open_block.h"
#include "engine/exact/row_tile.h"
#include "engine/random.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

constexpr double kLeastSamples = 256;
constexpr double kMostSamples = 16384;

// A quantum reads about so much, and writes as much into new memory.
constexpr std::int64_t kQuantumBytes = 1 << 20;

// More than any machine has; sizes beyond might overflow.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void Grow(AlignedBuffer<float>& buffer, std::int64_t count) {
  if (buffer.size() < count) buffer = AlignedBuffer<float>::Uninitialized(count);
}

}  // namespace

KdeformerConfig PaperConfigFor(const Accuracy& accuracy) {
  KdeformerConfig config;
  if (accuracy.target_error > 0.0) {
    const double columns = 1 / accuracy.target_error / accuracy.target_error;
    config.samples =
        static_cast<std::int64_t>(std::clamp(std::ceil(columns), kLeastSamples, kMostSamples));
  }
  if (accuracy.max_keys > 0) {
    const std::int64_t block = std::min(config.block_keys, accuracy.max_keys / 2);
    config.block_keys = std::max(block / kBlockTokens, std::int64_t{1}) * kBlockTokens;
    config.samples =
        std::clamp(accuracy.max_keys - config.block_keys, std::int64_t{1}, config.samples);
  }
  return config;
}

std::int64_t PaperPlan::Bytes(const LayerShape& shape, std::int64_t tokens, std::int64_t queries,
                              std::int64_t top_k) {
  const std::int64_t keys = tokens + kBlockTokens;
  const std::int64_t least_key_bytes =
      4 * shape.kv_heads * (2 * (shape.key_dim + shape.value_dim) + 50);
  if (keys > kMostBytes / least_key_bytes) return kMostBytes;
  KdeformerConfig config;
  config.samples = static_cast<std::int64_t>(kMostSamples);
  const std::int64_t floats =
      keys * (shape.key_dim + shape.value_dim) + queries * (shape.key_dim + 1);
  const std::int64_t chain =
      static_cast<std::int64_t>(sizeof(Chain)) + floats * static_cast<std::int64_t>(sizeof(float)) +
      Kdeformer::Bytes({queries, keys, shape.key_dim, shape.value_dim}, config) +
      RowTopKeys::Bytes(top_k);
  return queries == 0 ? 0 : shape.kv_heads * chain;
}

void PaperPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  group_ = group;
  answer_ = answer;
  state_ =
      group.sealed_tokens == 0 ? nullptr : static_cast<const KeyValueState<float>*>(group.sealed);
  Accuracy accuracy = group.accuracy;
  if (accuracy.target_error == 0.0 && accuracy.max_keys == 0) accuracy = config_.accuracy;
  kdeformer_config_ = PaperConfigFor(accuracy);
  chain_count_ = group.count == 0 ? 0 : shape_.kv_heads;
  chains_.resize(static_cast<std::size_t>(shape_.kv_heads));
  std::int64_t kv_head = 0;
  for (Chain& chain : chains_) {
    chain.phase = Phase::kGather;
    chain.kv_head = kv_head++;
    chain.next = 0;
    chain.head = 0;
    chain.keys = 0;
    chain.kdeformer.reset();
  }
}

BlockView<float> PaperPlan::BlockAt(const Chain& chain, std::int64_t block,
                                    Scratch& scratch) const {
  if (block + 1 < blocks()) return state_->block(chain.kv_head, block);
  return group_.tail.rows == 0 ? BlockView<float>{}
                               : OpenBlock(group_.tail, shape_, chain.kv_head, scratch);
}

bool PaperPlan::Gather(Chain& chain, Scratch& scratch) const {
  const BlockLayout layout(shape_);
  const std::int64_t d = shape_.key_dim;
  const std::int64_t most = blocks() * kBlockTokens;
  if (chain.next == 0) {
    Grow(chain.key_rows, most * d);
    Grow(chain.value_rows, most * shape_.value_dim);
  }
  const std::int64_t block_bytes = layout.elements() * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t end = std::min(chain.next + kQuantumBytes / block_bytes + 1, blocks());
  for (; chain.next < end; ++chain.next) {
    const Scratch::Frame frame(scratch);
    const BlockView<float> block = BlockAt(chain, chain.next, scratch);
    for (RowMask left = block.valid; left != 0; left &= left - 1) {
      const std::int64_t row = std::countr_zero(left);
      float* key = chain.key_rows.data() + chain.keys * d;
      for (std::int64_t c = 0; c < d; ++c) key[c] = block.keys_t[c * kBlockTokens + row];
      std::copy_n(block.values + row * layout.padded_value_dim, shape_.value_dim,
                  chain.value_rows.data() + chain.keys * shape_.value_dim);
      ++chain.keys;
    }
  }
  return chain.next == blocks();
}

void PaperPlan::BeginHead(Chain& chain) const {
  const std::int64_t d = shape_.key_dim;
  Grow(chain.queries, group_.count * d);
  for (std::int64_t i = 0; i < group_.count; ++i) {
    ScaleRow(group_.queries + (i * shape_.query_heads + query_head(chain)) * d, shape_.scale,
             chain.queries.data() + i * d, d);
  }
  chain.log_normalizers.assign(static_cast<std::size_t>(group_.count), -kInfinity);
  chain.kdeformer.reset();
  if (chain.keys == 0) return;
  const AttentionInputs inputs = {DenseRows(chain.queries.data(), group_.count, d),
                                  DenseRows(chain.key_rows.data(), chain.keys, d),
                                  DenseRows(chain.value_rows.data(), chain.keys, shape_.value_dim),
                                  1.0F};
  KdeformerConfig config = kdeformer_config_;
  config.seed = StreamSeed(StreamSeed(config_.seed, static_cast<std::uint64_t>(group_.layer)),
                           static_cast<std::uint64_t>(query_head(chain)));
  const OutputRows outputs = {answer_.outputs + query_head(chain) * shape_.value_dim,
                              shape_.output_row()};
  // Cannot fail: there are keys, and all sizes are the layer's.
  chain.kdeformer =
      Kdeformer::Create(inputs, config, {outputs, chain.log_normalizers.data()}).value();
}

bool PaperPlan::Run(std::int64_t chain_index, Scratch& scratch) {
  Chain& chain = chains_[static_cast<std::size_t>(chain_index)];
  switch (chain.phase) {
    case Phase::kGather:
      if (Gather(chain, scratch)) chain.phase = Phase::kBeginHead;
      return false;
    case Phase::kBeginHead:
      BeginHead(chain);
      chain.phase = Phase::kAttend;
      return false;
    case Phase::kAttend:
      if (chain.kdeformer != nullptr && !chain.kdeformer->Step(scratch)) return false;
      Write(chain);
      chain.row = 0;
      chain.next = 0;
      chain.top.Reset(answer_.top_k);
      chain.phase = answer_.top_k > 0 ? Phase::kTopKeys : Phase::kEndHead;
      return false;
    case Phase::kTopKeys:
      if (OfferTopKeys(chain, scratch)) chain.phase = Phase::kEndHead;
      return false;
    case Phase::kEndHead:
      chain.kdeformer.reset();
      chain.phase = Phase::kBeginHead;
      return ++chain.head == shape_.group_size();
  }
  return true;
}

RowFlag PaperPlan::FlagOf(const Chain& chain, std::int64_t query) const {
  if (chain.kdeformer == nullptr) return RowFlag::kEmpty;
  return std::isnan(chain.log_normalizers[static_cast<std::size_t>(query)]) ? RowFlag::kOverflow
                                                                            : RowFlag::kOk;
}

void PaperPlan::Write(const Chain& chain) const {
  for (std::int64_t i = 0; i < group_.count; ++i) {
    const std::int64_t row = i * shape_.query_heads + query_head(chain);
    float* output = answer_.outputs + row * shape_.value_dim;
    const RowFlag flag = FlagOf(chain, i);
    for (std::int64_t c = 0; c < shape_.value_dim; ++c) {
      output[c] = flag == RowFlag::kOk ? output[c] + 0.0F : 0.0F;  // no -0
    }
    if (answer_.flags != nullptr) answer_.flags[row] = static_cast<std::uint8_t>(flag);
    if (answer_.log_normalizers != nullptr) {
      answer_.log_normalizers[row] = chain.log_normalizers[static_cast<std::size_t>(i)];
    }
    WriteEstimates(chain, i, flag);
  }
}

void PaperPlan::WriteEstimates(const Chain& chain, std::int64_t query, RowFlag flag) const {
  const EstimateView& view = answer_.estimates;
  const std::int64_t row = query * shape_.query_heads + query_head(chain);
  const Kdeformer* kdeformer = chain.kdeformer.get();
  const bool exact = kdeformer == nullptr || kdeformer->blocks().blocks() == 1 ||
                     kdeformer_config_.samples >= chain.keys;
  if (view.errors != nullptr) view.errors[row] = exact ? 0.0F : kInfinity;
  if (view.log_normalizer_bounds != nullptr) {
    const float log_normalizer = chain.log_normalizers[static_cast<std::size_t>(query)];
    const bool known = exact || flag == RowFlag::kOverflow;
    view.log_normalizer_bounds[2 * row] = known ? log_normalizer : -kInfinity;
    view.log_normalizer_bounds[2 * row + 1] = known ? log_normalizer : kInfinity;
  }
  if (view.exact_masses != nullptr) view.exact_masses[row] = exact ? 1.0F : 0.0F;
  if (view.keys_evaluated != nullptr) {
    view.keys_evaluated[row] =
        exact || answer_.top_k > 0 ? chain.keys : kdeformer->keys_evaluated(query);
  }
  if (view.paths != nullptr) {
    view.paths[row] = static_cast<std::uint8_t>(exact ? AnswerPath::kExact : AnswerPath::kPaper);
  }
  if (view.calibrated != nullptr) view.calibrated[row] = exact ? 1 : 0;
}

// Some blocks for one row.
bool PaperPlan::OfferTopKeys(Chain& chain, Scratch& scratch) const {
  const std::int64_t d = shape_.key_dim;
  const std::int64_t block_bytes = d * kBlockTokens * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t end = std::min(chain.next + kQuantumBytes / block_bytes + 1, blocks());
  for (; chain.next < end; ++chain.next) {
    const Scratch::Frame frame(scratch);
    chain.top.Offer(chain.queries.data() + chain.row * d, d, BlockAt(chain, chain.next, scratch),
                    chain.next * kBlockTokens);
  }
  if (chain.next < blocks()) return false;
  WriteTop(chain);
  chain.next = 0;
  chain.top.Reset(answer_.top_k);
  return ++chain.row == group_.count;
}

void PaperPlan::WriteTop(Chain& chain) const {
  const RowTile tile = {.kv_head = chain.kv_head,
                        .first = chain.row * shape_.group_size() + chain.head,
                        .rows = 1,
                        .group_size = shape_.group_size(),
                        .query_heads = shape_.query_heads};
  chain.top.Write(chain.log_normalizers[static_cast<std::size_t>(chain.row)], 1.0F,
                  FlagOf(chain, chain.row), tile, answer_);
}

}  // namespace attnd::engine
