// Keys and values in coded blocks, and certified rows over them beside the f64 oracle.
#ifndef ATTND_TESTS_ENGINE_KDE_CERTIFIED_HARNESS_H_
#define ATTND_TESTS_ENGINE_KDE_CERTIFIED_HARNESS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/kde/certified/certified_row.h"
#include "engine/kde/certified/key_codes.h"
#include "engine/kde/certified/value_codes.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::certified_test {

// Rows of one head.
struct Tokens {
  std::int64_t count = 0;
  std::int64_t key_dim = 1;
  std::int64_t value_dim = 1;
  std::vector<float> keys = {};
  std::vector<float> values = {};
  std::vector<std::uint8_t> mask = {};  // 0: masked
};

Tokens RandomTokens(std::int64_t count, std::int64_t key_dim, std::int64_t value_dim,
                    std::uint32_t seed, float key_deviation = 1.0F);

enum class Controls { kNone, kMeans, kCodes };

// The tokens in blocks of 64 in their order; the last one is filled up with masked rows.
class CodedContext {
 public:
  // Codes relative to the blocks' mean keys, or to zero. Controls as told.
  explicit CodedContext(const Tokens& tokens, Controls controls = Controls::kCodes,
                        bool centred = true);

  std::vector<CertifiedBlock> blocks;
  CertifiedRowShape shape;
  double spread = 0.0;  // root mean square of ||v - mean v|| over unmasked tokens

  std::int64_t code_bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  AlignedBuffer<float> memory_;
  AlignedBuffer<float> mean_keys_;
  AlignedBuffer<float> mean_values_;
  CodedKeys keys_;
  CodedValues values_;
};

struct Answer {
  std::vector<float> output;
  CertifiedAnswer estimates;
};

Answer Attend(const CodedContext& context, const CertifiedOptions& options, const float* query,
              std::uint64_t seed);

// softmax(q k^T) v for rows [count, key_dim].
oracle::Answers Truth(const Tokens& tokens, const std::vector<float>& queries);

// L2 of the difference to row `row` of the truth.
double ErrorOfRow(const Answer& answer, const oracle::Answers& truth, std::int64_t row);

// Element of the sorted sample at the given share.
double Percentile(std::vector<double> sample, double share);

}  // namespace attnd::engine::certified_test

#endif  // ATTND_TESTS_ENGINE_KDE_CERTIFIED_HARNESS_H_
