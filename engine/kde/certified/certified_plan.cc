#include "engine/kde/certified/certified_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "engine/exact/open_block.h"
#include "engine/kde/certified/residual_sample.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kMostChains = 16;  // each keeps 4 bytes per key

constexpr double kTargetOfPairs = 0.01;  // of the default's
constexpr double kLeastPairs = 32;       // with fewer a bar is wide because it rests on few
constexpr double kMostPairs = 4096;

// A step of a row takes at most a third of a millisecond, and less than this where there is less
// to read.
constexpr std::int64_t kQuantumBytes = 4 << 20;
constexpr std::int64_t kMostSteps = 32;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::int64_t VisibleKeys(std::span<const CertifiedBlock> blocks) {
  std::int64_t keys = 0;
  for (const CertifiedBlock& block : blocks) keys += std::popcount(block.block.valid);
  return keys;
}

}  // namespace

CertifiedOptions OptionsFor(const Accuracy& accuracy) {
  CertifiedOptions options;
  if (accuracy.target_error > 0.0) {
    const double ratio = kTargetOfPairs / accuracy.target_error;
    options.pairs = static_cast<std::int64_t>(std::clamp(
        std::ceil(static_cast<double>(options.pairs) * ratio * ratio), kLeastPairs, kMostPairs));
  }
  if (accuracy.max_keys > 0) {
    options.most_heavy_keys = std::min(options.most_heavy_keys, accuracy.max_keys / 2);
    options.heavy_keys = std::min(options.heavy_keys, options.most_heavy_keys);
    options.pairs = std::min(options.pairs, (accuracy.max_keys - options.most_heavy_keys) / 4);
  }
  return options;
}

bool EvaluatesAll(const Accuracy& accuracy, std::int64_t sealed_tokens) {
  const CertifiedOptions options = OptionsFor(accuracy);
  return sealed_tokens <= 4 * (options.most_heavy_keys + 2 * options.pairs) &&
         (accuracy.max_keys == 0 || sealed_tokens <= accuracy.max_keys);
}

std::int64_t CertifiedPlan::Bytes(const LayerShape& shape, std::int64_t tokens,
                                  std::int64_t queries, std::int64_t top_k) {
  const BlockLayout layout(shape);
  const std::int64_t blocks = tokens / kBlockTokens + 2;
  const std::int64_t block =
      kBlockTokens * static_cast<std::int64_t>(sizeof(float)) +
      static_cast<std::int64_t>(sizeof(CertifiedBlock) + sizeof(WeightSums) + 2 * sizeof(float));
  // Candidates for heavy keys, keys in place of draws, and draws.
  const auto keys = static_cast<std::int64_t>((2 * sizeof(HeavyKey) + sizeof(std::int64_t)) *
                                              static_cast<std::size_t>(kMostPairs) * 2);
  const std::int64_t floats =
      3 * layout.elements() + 2 * (layout.key_dim + 8 * layout.padded_value_dim);
  const std::int64_t chain = static_cast<std::int64_t>(sizeof(Chain)) + blocks * block + keys +
                             floats * static_cast<std::int64_t>(sizeof(float)) +
                             RowTopKeys::Bytes(top_k);
  return std::min(queries * shape.query_heads, kMostChains) * chain;
}

void CertifiedPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  group_ = group;
  answer_ = answer;
  state_ = group.sealed_tokens == 0 ? nullptr : static_cast<const CertifiedState*>(group.sealed);
  Accuracy accuracy = group.accuracy;
  if (accuracy.target_error == 0.0 && accuracy.max_keys == 0) accuracy = config_.accuracy;
  options_ = OptionsFor(accuracy);
  evaluate_all_ = EvaluatesAll(accuracy, group.sealed_tokens);
  head_rows_ = group.count * shape_.group_size();
  const std::int64_t rows = shape_.kv_heads * head_rows_;
  chain_count_ = std::min(rows, kMostChains);
  if (std::ssize(chains_) < chain_count_) chains_.resize(static_cast<std::size_t>(chain_count_));
  for (std::int64_t i = 0; i < chain_count_; ++i) {
    Chain& chain = chains_[static_cast<std::size_t>(i)];
    chain.phase = Phase::kBegin;
    chain.next = i * rows / chain_count_;
    chain.end = (i + 1) * rows / chain_count_;
    chain.kv_head = -1;
  }
  const std::int64_t bytes = (group.sealed_tokens + kBlockTokens) *
                             (shape_.key_dim + layout_.padded_value_dim) *
                             static_cast<std::int64_t>(sizeof(float));
  steps_per_quantum_ = std::clamp(kQuantumBytes / bytes, std::int64_t{1}, kMostSteps);
}

RowTile CertifiedPlan::TileOf(const Chain& chain) const {
  return {.kv_head = chain.next / head_rows_,
          .first = chain.next % head_rows_,
          .rows = 1,
          .group_size = shape_.group_size(),
          .query_heads = shape_.query_heads};
}

void CertifiedPlan::GatherBlocks(Chain& chain, std::int64_t kv_head, Scratch& scratch) const {
  chain.kv_head = kv_head;
  chain.blocks.clear();
  for (std::int64_t b = 0; b < group_.sealed_tokens / kBlockTokens; ++b) {
    chain.blocks.push_back(evaluate_all_
                               ? CertifiedBlock{state_->raw(kv_head, b), KeyCodes{}, ValueCodes{}}
                               : state_->block(kv_head, b));
  }
  if (group_.tail.rows == 0) {
    chain.blocks.emplace_back();
    return;
  }
  const Scratch::Frame frame(scratch);
  const BlockView<float> open = OpenBlock(group_.tail, shape_, kv_head, scratch);
  if (chain.open.size() == 0) chain.open = AlignedBuffer<float>::Uninitialized(layout_.elements());
  std::copy_n(open.keys_t, layout_.elements(), chain.open.data());
  const float* keys_t = chain.open.data();
  chain.blocks.push_back(
      {{keys_t, keys_t + layout_.key_elements(), open.valid}, KeyCodes{}, ValueCodes{}});
}

void CertifiedPlan::Begin(Chain& chain, Scratch& scratch) const {
  const RowTile tile = TileOf(chain);
  if (chain.kv_head != tile.kv_head) GatherBlocks(chain, tile.kv_head, scratch);
  const std::int64_t cut = std::clamp(group_.cut(tile.query(0)), std::int64_t{0}, group_.tail.rows);
  chain.blocks.back().block.valid = group_.tail.valid & FirstRows(cut);
  const std::int64_t row = tile.tensor_row(0);
  const float* query = group_.queries + row * shape_.key_dim;
  chain.query.resize(static_cast<std::size_t>(shape_.key_dim));
  ScaleRow(query, shape_.scale, chain.query.data(), shape_.key_dim);
  const std::uint64_t seed = RowSeed(config_.seed, group_.layer, row % shape_.query_heads,
                                     group_.sealed_tokens + cut, query, shape_.key_dim);
  chain.row.Reset({shape_.key_dim, shape_.value_dim, layout_.padded_value_dim}, options_,
                  chain.blocks, chain.query.data(), seed);
}

bool CertifiedPlan::OfferTopKeys(Chain& chain) const {
  const auto count = std::ssize(chain.blocks);
  const std::int64_t block_bytes =
      layout_.key_elements() * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t end = std::min(chain.top_block + kQuantumBytes / block_bytes + 1, count);
  for (; chain.top_block < end; ++chain.top_block) {
    chain.top.Offer(chain.query.data(), shape_.key_dim,
                    chain.blocks[static_cast<std::size_t>(chain.top_block)].block,
                    chain.top_block * kBlockTokens);
  }
  return end == count;
}

bool CertifiedPlan::Run(std::int64_t chain_index, Scratch& scratch) {
  Chain& chain = chains_[static_cast<std::size_t>(chain_index)];
  for (std::int64_t step = 0; step < steps_per_quantum_; ++step) {
    switch (chain.phase) {
      case Phase::kBegin:
        Begin(chain, scratch);
        chain.phase = Phase::kAttend;
        break;
      case Phase::kAttend:
        if (!chain.row.Run()) break;
        WriteAnswer(chain);
        WriteEstimates(chain);
        chain.phase = Phase::kBegin;
        if (answer_.top_k > 0) {
          chain.top.Reset(answer_.top_k);
          chain.top_block = 0;
          chain.phase = Phase::kTopKeys;
        } else if (++chain.next == chain.end) {
          return true;
        }
        break;
      case Phase::kTopKeys:
        if (!OfferTopKeys(chain)) break;
        WriteTop(chain);
        chain.phase = Phase::kBegin;
        if (++chain.next == chain.end) return true;
        break;
    }
  }
  return false;
}

void CertifiedPlan::WriteAnswer(const Chain& chain) const {
  const std::int64_t row = TileOf(chain).tensor_row(0);
  const CertifiedAnswer& answer = chain.row.answer();
  const bool overflow = answer.flag == RowFlag::kOverflow;
  std::copy_n(chain.row.output(), shape_.value_dim, answer_.outputs + row * shape_.value_dim);
  if (answer_.flags != nullptr) answer_.flags[row] = static_cast<std::uint8_t>(answer.flag);
  if (answer_.log_normalizers != nullptr) {
    // NaN, so that nobody merges such a piece as if it were an answer.
    answer_.log_normalizers[row] = overflow ? kNaN : static_cast<float>(answer.log_normalizer);
  }
}

void CertifiedPlan::WriteEstimates(const Chain& chain) const {
  const RowTile tile = TileOf(chain);
  const std::int64_t row = tile.tensor_row(0);
  const CertifiedAnswer& answer = chain.row.answer();
  const EstimateView& view = answer_.estimates;
  const bool exact = answer.keys_scanned == 0;
  if (view.errors != nullptr) {
    const double spread = exact ? 0.0 : state_->Spread(tile.kv_head);
    // Without a spread all sealed values are the same, and so is every mean of them.
    view.errors[row] = spread > 0.0 ? static_cast<float>(answer.error / spread) : 0.0F;
  }
  if (view.log_normalizer_bounds != nullptr) {
    float* bounds = view.log_normalizer_bounds + 2 * row;
    bounds[0] = static_cast<float>(answer.log_normalizers.low);
    bounds[1] = static_cast<float>(answer.log_normalizers.high);
    if (answer.flag == RowFlag::kOverflow) {
      bounds[0] = bounds[1] = kNaN;
    } else if (!exact) {
      bounds[0] = std::nextafter(bounds[0], -kInfinity);
      bounds[1] = std::nextafter(bounds[1], kInfinity);
    }
  }
  if (view.exact_masses != nullptr) view.exact_masses[row] = static_cast<float>(answer.exact_mass);
  if (view.keys_evaluated != nullptr) {
    view.keys_evaluated[row] =
        answer_.top_k > 0 ? VisibleKeys(chain.blocks) : answer.keys_evaluated;
  }
  if (view.paths != nullptr) {
    view.paths[row] =
        static_cast<std::uint8_t>(exact ? AnswerPath::kExact : AnswerPath::kCertified);
  }
  if (view.calibrated != nullptr) view.calibrated[row] = exact ? 1 : 0;
}

void CertifiedPlan::WriteTop(Chain& chain) const {
  const CertifiedAnswer& answer = chain.row.answer();
  chain.top.Write(static_cast<float>(answer.moments.reference),
                  static_cast<float>(answer.moments.total()), answer.flag, TileOf(chain), answer_);
}

}  // namespace attnd::engine
