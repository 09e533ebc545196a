// The practical form of KDEformer (Zandieh et al. 2023, arXiv:2302.02451, section 3.4): A V =
// A_spar V + A_res V, where A_spar is A within the blocks of sparse_blocks.h, exact, and A_res is
// the rest, from sampled columns:
//
//   out = (A_spar + A_res Pi^T Pi) [V, 1], the first d_v columns divided by the last.
//
// Taking the heavy entries out lowers the variance of what is sampled. A sampled column of a
// query's own block is left out for that query, so nothing is counted twice; with every column
// sampled, or all keys in one block, the answer is exact.
//
// Columns are drawn with p_l = the mean of: the squared norms of the columns of D^-1 A_res,
// estimated from kPilots of the queries; the values' squared norms; and 1 / n, which bounds the
// weight of any column. The first is what Algorithm 1 asks WExpKDE for; here only a constant factor
// matters, and a few exact rows are cheaper. Draws are stratified along the blocks' order (error on
// the OCR heads a quarter to a half lower than by independent ones) and shared by all queries.
//
// Measured and left out, on GloVe at n = 16,384 with 256 samples and blocks of 256: hashing keys
// less their mean (Frobenius error 0.89 instead of 0.59: a word's own key leaves its block), and
// values less their mean in p (no difference).
//
// The estimate is a ratio with one sample in both parts: consistent, not unbiased. All exponentials
// are relative to the largest score of their row; products are f32.
//
// An answer depends on all keys, values and queries, and the seed. Thread safety: one thread at a
// time. Inputs and outputs are borrowed until the last Step. Failure: Create returns
// INVALID_ARGUMENT; a row that leaves the range of f32 gets zeros and a log-normalizer NaN.
#ifndef ATTND_ENGINE_KDE_PAPER_KDEFORMER_H_
#define ATTND_ENGINE_KDE_PAPER_KDEFORMER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kde/paper/angular_hash.h"
#include "engine/kde/paper/column_sample.h"
#include "engine/kde/paper/column_sampling.h"
#include "engine/kde/paper/key_value_panels.h"
#include "engine/kde/paper/sparse_blocks.h"
#include "engine/scratch.h"

namespace attnd::engine {

struct KdeformerConfig {
  std::int64_t block_keys = 256;  // of a block, at least 1; rounded up to a multiple of 64
  std::int64_t samples = 256;     // m, at least 1; from the number of keys on, all columns
  std::uint64_t seed = 0;
};

class Kdeformer {
 public:
  // Queries whose rows of A are computed in full.
  static constexpr std::int64_t kPilots = 64;

  static absl::StatusOr<std::unique_ptr<Kdeformer>> Create(const AttentionInputs& inputs,
                                                           const KdeformerConfig& config,
                                                           const AttentionOutputs& outputs);

  // The most memory that one takes, the caller's Scratch aside, for sizes whose products stay below
  // 2^50.
  static std::int64_t Bytes(const AttentionSizes& sizes, const KdeformerConfig& config);

  // A piece of the work: at most 1,024 rows to hash or to pack, or 192 queries against 1,024 keys;
  // a few go over numbers of all keys, in 2 to 3 ms each where there are 131,072. True when all is
  // written.
  bool Step(Scratch& scratch);

  // What was chosen, once all is written. Columns of the sample are keys' indices, in
  // the blocks' order.
  const SparseBlocks& blocks() const { return blocks_; }
  std::int64_t query_block(std::int64_t query) const {
    return query_blocks_[static_cast<std::size_t>(query)];
  }
  const ColumnSample& sample() const { return sample_; }
  const std::vector<double>& probabilities() const { return probabilities_; }
  // Keys that were scored with a query, each once: all of them with a pilot, those of the block and
  // of the sample with others.
  std::int64_t keys_evaluated(std::int64_t query) const {
    return keys_evaluated_[static_cast<std::size_t>(query)];
  }
  // The same over all queries.
  std::int64_t evaluations() const;

 private:
  enum class Stage {
    kHash,
    kLayOut,
    kPack,
    kPilotSums,
    kPilotNorms,
    kNormShares,
    kShares,
    kDraw,
    kSample,
    kAttend,
    kDone
  };

  // Queries order_[first, first + count) of one block.
  struct Tile {
    std::int64_t block = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  Kdeformer(const AttentionInputs& inputs, const KdeformerConfig& config,
            const AttentionOutputs& outputs);

  bool HashStep(Scratch& scratch);
  void LayOut();
  void LayOutQueries();
  bool PackStep();
  bool PilotStep(Scratch& scratch);
  void AddPilotNorms(std::int64_t panel, const float* scores, Scratch& scratch);
  void ShareNorms();
  void MixShares();
  void DrawSample();
  bool PackSample();
  RowMask VisibleSamples(std::int64_t panel, std::int64_t block) const;
  bool AttendStep(Scratch& scratch);
  void WriteTile(const Tile& tile, const SoftmaxSums& sums);

  const AttentionInputs inputs_;
  const KdeformerConfig config_;
  const AttentionOutputs outputs_;
  Stage stage_ = Stage::kHash;

  AngularHash hash_;
  std::vector<std::uint32_t> key_ranks_;
  std::vector<std::uint32_t> query_ranks_;
  SparseBlocks blocks_;
  KeyValuePanels block_panels_;  // all keys in the blocks' order
  std::vector<std::int64_t> query_blocks_;
  std::vector<std::int64_t> query_order_;  // by block
  std::vector<Tile> tiles_;

  std::vector<std::int64_t> pilots_;
  std::vector<float> pilot_max_;
  std::vector<float> pilot_sum_;
  std::vector<double> pilot_norms_;  // by place: sum over pilots of (D^-1 A_res)^2

  std::vector<double> value_norms_;    // squared, by key
  std::vector<double> norm_shares_;    // of pilot_norms_
  std::vector<double> by_place_;       // probabilities
  std::vector<double> probabilities_;  // by key
  ColumnSample sample_;
  std::vector<std::int64_t> sample_places_;  // ascending
  KeyValuePanels sample_panels_;

  std::size_t tile_ = 0;
  std::int64_t panel_ = 0;  // next one of the stage: for a tile, its block's, then the sample's
  std::vector<float> sums_;
  std::int64_t tile_keys_ = 0;                // that the tile's queries were scored with
  std::vector<std::int64_t> keys_evaluated_;  // [queries]
};

// The definition in f64 for one query, with the blocks and the sample of a Kdeformer: output [d_v];
// returns ln of the normalizer.
double RefKdeformer(const AttentionInputs& inputs, const Kdeformer& chosen, std::int64_t query,
                    double* output);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_KDEFORMER_H_
