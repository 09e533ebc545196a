// Algorithm 1 of KDEformer (arXiv:2302.02451): attention D^-1 A V with A = exp(scale Q K^T), D =
// diag(A 1), as D~^-1 A Pi^T Pi V from m sampled columns of A.
//
//  1. D~ = WExpKDE(X = sqrt(scale) K, Y = sqrt(scale) Q, v = 1, epsilon), diagonal: the
//  normalizers.
//  2. beta = WExpKDE(X = sqrt(2 scale) Q, Y = sqrt(2 scale) K, v_j = D~_j^-2, epsilon = 1/2), the
//     squared norms of the columns of D^-1 A to a constant factor.
//  3. p_l = 1/2 beta_l / sum beta + 1/2 ||v_l||^2 / ||V||_F^2, and m columns drawn
//  (column_sample.h).
//  4. The product, O(n m (d + d_v)), relative to each row's largest term.
//
// With E[Pi^T Pi] = I the numerator is unbiased; D~ is an estimate of its own, within 1 +- epsilon.
// With m of order epsilon^-2 ln n (srank(D^-1 A) + srank(V)) the error's operator norm is at most
// epsilon ||D^-1 A||_op ||V||_op with high probability (Theorem 3.5).
//
// An answer depends on all keys, values and queries, and the seed. Thread safety: one thread at a
// time. Inputs and outputs are borrowed until the last Step. Failure: Create returns
// INVALID_ARGUMENT; a row that leaves the range of f32 gets zeros and a log-normalizer NaN.
#ifndef ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLING_H_
#define ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLING_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/kde/paper/column_sample.h"
#include "engine/kde/paper/key_value_panels.h"
#include "engine/kde/paper/weighted_exp_density.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Attention of `queries` over all `keys`, one head.
struct AttentionInputs {
  Rows queries;
  Rows keys;
  Rows values;  // as many as keys
  float scale = 1;
};

// Outputs of queries [queries.count, d_v] and, unless null, ln of the normalizers [queries.count].
struct AttentionOutputs {
  OutputRows outputs;
  float* log_normalizers = nullptr;
};

// Sizes of an attention, for what it will take.
struct AttentionSizes {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_dim = 0;
};

// INVALID_ARGUMENT: no keys, dimensions or counts that do not match, a scale that is not positive
// and finite.
absl::Status CheckAttention(const AttentionInputs& inputs);

struct ColumnSamplingConfig {
  std::int64_t samples = 0;  // m, at least 1; from the number of keys on, all columns
  double epsilon = 0.1;      // of D~, in (0, 1]
  DensityMethod method = DensityMethod::kHashing;
  bool always_sample = false;  // as WeightedExpConfig's
  std::uint64_t seed = 0;
};

class ColumnSampling {
 public:
  static absl::StatusOr<std::unique_ptr<ColumnSampling>> Create(const AttentionInputs& inputs,
                                                                const ColumnSamplingConfig& config,
                                                                const AttentionOutputs& outputs);

  // The most memory that one takes, the caller's Scratch aside, for sizes whose products stay below
  // 2^50.
  static std::int64_t Bytes(const AttentionSizes& sizes, const ColumnSamplingConfig& config);

  // A piece of the work: as DensityRun's, 192 queries against 1,024 keys, or one copy of all rows
  // between stages. True when all is written.
  bool Step(Scratch& scratch);

  // What the stages have found, once they are through.
  const std::vector<double>& log_normalizers() const { return log_normalizers_; }    // ln D~
  const std::vector<double>& log_column_norms() const { return log_column_norms_; }  // ln beta
  const std::vector<double>& probabilities() const { return probabilities_; }
  const ColumnSample& sample() const { return sample_; }
  const WeightedExpCosts& normalizer_costs() const { return normalizer_costs_; }
  const WeightedExpCosts& column_norm_costs() const { return column_norm_costs_; }

 private:
  enum class Stage { kNormalizers, kColumnNorms, kProduct, kDone };

  ColumnSampling(const AttentionInputs& inputs, const ColumnSamplingConfig& config,
                 const AttentionOutputs& outputs);

  void BeginNormalizers();
  void BeginColumnNorms();
  void BeginProduct();
  bool ProductStep(Scratch& scratch);

  const AttentionInputs inputs_;
  const ColumnSamplingConfig config_;
  const AttentionOutputs outputs_;
  Stage stage_ = Stage::kNormalizers;

  std::vector<float> scaled_keys_;
  std::vector<float> scaled_queries_;
  std::vector<double> log_weights_;
  std::unique_ptr<WeightedExpDensity> density_;
  std::vector<double> log_normalizers_;
  std::vector<double> log_column_norms_;
  WeightedExpCosts normalizer_costs_;
  WeightedExpCosts column_norm_costs_;
  std::vector<double> probabilities_;
  ColumnSample sample_;

  KeyValuePanels panels_;
  std::int64_t first_query_ = 0;  // of the tile
  std::int64_t panel_ = 0;
  std::vector<float> sums_;
};

// The product of step 4 by the definition, in f64, for one query: output [d_v].
void RefSampledProduct(const AttentionInputs& inputs, std::int64_t query, double log_normalizer,
                       const ColumnSample& sample, double* output);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_COLUMN_SAMPLING_H_
