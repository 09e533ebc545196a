// Answers of mode PAPER for one query group: KDEformer (kdeformer.h) of all its queries at once,
// head by head. A row's answer depends on all tokens, all queries of the group, and the seed.
//
// A chain is a kv-head: it gathers the unmasked keys and values, in their order, and attends the
// query heads of its group one after another. Queries are scaled before (a scale may be 0 or below,
// which the paper's may not). The seed of query head h is StreamSeed(StreamSeed(seed, layer), h).
//
// Accuracy, as KdeformerConfig (PaperConfigFor):
//  - target_error t: 1 / t^2 sampled columns, at least 256 and at most 16,384: the growth that
//    Theorem 3.5 asks for, without its constant. Nothing tells whether the target is met. 0: 256.
//  - max_keys m: half of it for the query's own block (rounded up to 64 keys), the rest for the
//    sample; at least 64 and one. A pilot query evaluates all keys whatever the budget.
//
// Estimates: where all keys lie in one block or every column is sampled the answer is exact. Else
// nothing is known of the error: errors are +inf, bounds -inf and +inf, masses 0. Pilots have
// evaluated all keys, other rows those of their block and of the sample. The largest keys
// (AnswerView::top_k) are found by scoring all keys; their weights are relative to the estimated
// normalizer.
//
// A causal group, which nobody asks of this mode, is answered as if all its queries saw the whole
// tail. Thread safety: as engine.h demands of an AttendPlan.
#ifndef ATTND_ENGINE_KDE_PAPER_PAPER_PLAN_H_
#define ATTND_ENGINE_KDE_PAPER_PAPER_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/exact/key_value_state.h"
#include "engine/kde/paper/kdeformer.h"
#include "engine/kde/row_top_keys.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Without its seed.
KdeformerConfig PaperConfigFor(const Accuracy& accuracy);

class PaperPlan final : public AttendPlan {
 public:
  PaperPlan(const LayerShape& shape, const KdeConfig& config) : shape_(shape), config_(config) {}

  static std::int64_t Bytes(const LayerShape& shape, std::int64_t tokens, std::int64_t queries,
                            std::int64_t top_k);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return chain_count_; }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  void Finish(Scratch& /*scratch*/) override {}

 private:
  enum class Phase { kGather, kBeginHead, kAttend, kTopKeys, kEndHead };

  struct Chain {
    Phase phase = Phase::kGather;
    std::int64_t kv_head = 0;
    std::int64_t next = 0;  // block to gather, or to find the largest keys in
    std::int64_t row = 0;   // of the largest keys
    std::int64_t head = 0;  // within the group
    std::int64_t keys = 0;  // gathered
    AlignedBuffer<float> key_rows;
    AlignedBuffer<float> value_rows;
    AlignedBuffer<float> queries;  // [n, d_k], scaled
    std::vector<float> log_normalizers;
    std::unique_ptr<Kdeformer> kdeformer;  // null: no keys
    RowTopKeys top;
  };

  std::int64_t query_head(const Chain& chain) const {
    return chain.kv_head * shape_.group_size() + chain.head;
  }
  std::int64_t blocks() const { return group_.sealed_tokens / kBlockTokens + 1; }
  // Sealed ones, then the open one, whose rows are in `scratch`.
  BlockView<float> BlockAt(const Chain& chain, std::int64_t block, Scratch& scratch) const;
  // Some of the work. True when there is no more.
  bool Gather(Chain& chain, Scratch& scratch) const;
  bool OfferTopKeys(Chain& chain, Scratch& scratch) const;
  void BeginHead(Chain& chain) const;
  void Write(const Chain& chain) const;
  void WriteEstimates(const Chain& chain, std::int64_t query, RowFlag flag) const;
  RowFlag FlagOf(const Chain& chain, std::int64_t query) const;
  void WriteTop(Chain& chain) const;

  const LayerShape shape_;
  const KdeConfig config_;

  QueryGroup group_;
  AnswerView answer_;
  const KeyValueState<float>* state_ = nullptr;  // null: no sealed tokens
  KdeformerConfig kdeformer_config_;
  std::int64_t chain_count_ = 0;
  std::vector<Chain> chains_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_PAPER_PLAN_H_
