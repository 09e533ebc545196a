// Softmax attention of one query row over blocks whose keys are also held in 8 bits: all keys are
// scanned, heavy ones are evaluated exactly, the others are estimated from a sample, and the answer
// comes with bounds that the sample and the codes justify.
//
//   1. Every block's scores s^ from its codes, each within eta of the true score (key_codes.h). A
//      block without codes, or where eta may exceed max_eta, is evaluated exactly instead: what
//      codes cannot hold (one giant key, huge queries) costs time, not accuracy.
//   2. Heavy keys (heavy_keys.h), exactly; they leave the residual.
//   3. The residual's scanned weights w^ = exp(s^). Keys of which a draw is expected, or one that
//      were a draw's worth of the values' variance, are evaluated exactly as well: a sample would
//      draw them anyway, or miss a rare large value and not know it. Then the sums that the
//      sample and the certain bounds rest on.
//   4. Pairs of draws in proportion to w^ (residual_sample.h), evaluated exactly. Controls, the
//      leaf's mean value or with it the values in 8 bits (value_codes.h), leave to the sample only
//      what values differ from them. Without pairs the residual is sum w^ and sum w^ times the
//      controls: a summary, whose error nothing tells.
//   5. The answer and its error (error_bar.h).
//
// A row's bits are a function of blocks, options, seed and query row, on every instruction set: all
// loops keep their order (engine/simd), and f64 is plain C++. Work comes in quanta of well under a
// millisecond. Keeps its memory, 4 bytes per key and 20 per block of the longest row so far. One
// thread at a time. Cannot fail; may throw std::bad_alloc in Reset().
#ifndef ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_ROW_H_
#define ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_ROW_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/engine.h"
#include "engine/exact/key_value_state.h"
#include "engine/kde/certified/error_bar.h"
#include "engine/kde/certified/heavy_keys.h"
#include "engine/kde/certified/key_codes.h"
#include "engine/kde/certified/value_codes.h"
#include "engine/kde/gathered_keys.h"
#include "engine/simd/code_scan.h"

namespace attnd::engine {

// Borrowed.
struct CertifiedBlock {
  BlockView<float> block;
  KeyCodes codes;       // null codes: evaluated exactly
  ValueCodes controls;  // null codes: the centre is the control of all rows
};

// Measured with the defaults on Zen 4, d = d_v = 100, one query against the exact one-query path on
// word vectors (queries that are not keys; 131,072 is four times the same 32,768), on a busy
// machine:
//   keys      exact     controls in 8 bits            means as controls
//   32,768    1.05 ms   0.52 ms, error 0.0007 (95 %)  0.37 ms, error 0.09
//   131,072   4.1 ms    1.6 ms,  error 0.0007         1.0 ms,  error 0.09
// in units of the values' spread; bars are 1.8 times these errors. Four times the pairs halve both.
struct CertifiedOptions {
  std::int64_t heavy_keys = 32;        // evaluated exactly, beyond exact blocks
  std::int64_t most_heavy_keys = 256;  // with those within heavy_margin of the largest score
  float heavy_margin = 2.0F;           // in nats
  std::int64_t pairs = 64;             // of draws; 0: the residual by its controls
  float max_eta = 1.0F;                // in nats
};

// Blocks whose weight is below this share of the mean block's have their centre as control: all of
// them together weigh less than what scores are off, and with peaked scores they are most blocks.
inline constexpr double kLeastShare = 0x1p-12;

struct CertifiedRowShape {
  std::int64_t key_dim = 1;
  std::int64_t value_dim = 1;
  std::int64_t padded_value_dim = 16;
};

struct CertifiedAnswer {
  RowFlag flag = RowFlag::kEmpty;
  double log_normalizer = 0.0;      // natural; -inf: empty
  LogInterval log_normalizers;      // of which 95 % hold the truth
  double error = 0.0;               // absolute L2, not exceeded by 95 % of rows; +inf: not known
  double standard_error = 0.0;      // absolute L2
  double exact_mass = 1.0;          // share of the weight that was evaluated exactly
  std::int64_t keys_evaluated = 0;  // in f32, each once
  std::int64_t keys_scanned = 0;    // in 8 bits
  ErrorMoments moments;             // for merging with other partitions
};

class CertifiedRow {
 public:
  // `query` [key_dim] is scaled and finite. All is borrowed until the row is done.
  void Reset(const CertifiedRowShape& shape, const CertifiedOptions& options,
             std::span<const CertifiedBlock> blocks, const float* query, std::uint64_t seed);

  // Runs one quantum. True when the row is done.
  bool Run();

  // Once done. output [value_dim], zeros unless the flag is kOk; valid until Reset().
  const float* output() const { return output_.data(); }
  const CertifiedAnswer& answer() const { return answer_; }

 private:
  enum class Stage {
    kScan,
    kHeavy,
    kWeigh,
    kTakeLarge,
    kLarge,
    kBracket,
    kDraw,
    kControls,
    kSample,
    kConclude,
    kDone
  };

  bool RunStage();
  bool Scan();
  bool AttendKeys(std::span<const HeavyKey> keys);
  bool Weigh();
  bool TakeLarge();
  bool Bracket();
  void Draw();
  bool AttendSample();
  bool AddControls();
  void Conclude();

  // Adds a block to what was evaluated exactly.
  void AttendExactly(const BlockView<float>& block);
  std::int64_t GathersPerQuantum() const;
  void SampleGathered(std::int64_t first);
  ValueCodes Controls(std::int64_t block) const;
  // How large a block's values are, up to a factor that all share.
  const float* Sizes(std::int64_t block) const;
  void Prefetch(std::int64_t key) const {
    gathered_.Prefetch(at(key / kBlockTokens).block, key % kBlockTokens);
  }
  bool coded(std::int64_t block) const { return max_etas_[static_cast<std::size_t>(block)] >= 0; }
  const CertifiedBlock& at(std::int64_t block) const {
    return blocks_[static_cast<std::size_t>(block)];
  }

  CertifiedRowShape shape_;
  CertifiedOptions options_;
  std::span<const CertifiedBlock> blocks_;
  const float* query_ = nullptr;
  std::uint64_t seed_ = 0;

  Stage stage_ = Stage::kDone;
  std::int64_t next_ = 0;  // within the stage
  CodedQuery coded_query_;
  HeavyKeys heavy_;
  std::span<const HeavyKey> chosen_;
  std::vector<HeavyKey> large_;
  GatheredKeys gathered_;
  float best_scan_ = 0.0F;
  float reference_ = 0.0F;  // of the residual's weights

  AlignedBuffer<float> scores_;       // [blocks][64], then weights
  std::vector<float> max_etas_;       // [blocks]; below 0: evaluated exactly
  std::vector<float> block_weights_;  // [blocks], of the residual
  std::vector<WeightSums> sums_;      // [blocks]
  std::vector<std::int64_t> draws_;
  std::vector<float> centre_;  // [d_v], near the answer
  double total_ = 0.0;         // scanned weight of the residual
  double squares_ = 0.0;       // and its sum of weights times squared sizes
  double max_eta_ = 0.0;       // of the residual
  double sum_x_ = 0.0;

  // Softmax sums of what was evaluated exactly, and of the residual relative to the reference.
  float max_ = 0.0F;
  float sum_ = 0.0F;
  AlignedBuffer<float> exact_;     // [padded d_v]
  AlignedBuffer<float> residual_;  // [padded d_v]
  AlignedBuffer<float> rows_;      // [64][padded d_v]
  std::vector<float> output_;
  CertifiedAnswer answer_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_ROW_H_
