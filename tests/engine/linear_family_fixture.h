// A layer of the linear family with tokens and masks, as the tests of its bits ask it: linear
// attention, and Efficient Attention with keys that need no power of two and with keys that do.
#ifndef ATTND_TESTS_ENGINE_LINEAR_FAMILY_FIXTURE_H_
#define ATTND_TESTS_ENGINE_LINEAR_FAMILY_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {

// How far key numbers spread.
enum class Keys {
  kOrdinary,   // no number has steps
  kOutlier,    // one column, now and then
  kSpread,     // in all columns, growing and shrinking
  kSameSteps,  // a column whose numbers all have the same steps, but not 0
};

struct FamilyCase {
  std::string name;
  std::string map;
  Keys keys;
  bool first_token_masked;
};

inline void PrintTo(const FamilyCase& c, std::ostream* os) { *os << c.name; }
inline std::string NameOf(const testing::TestParamInfo<FamilyCase>& info) {
  return info.param.name;
}

inline std::vector<FamilyCase> EfficientCases() {
  return {{"ordinary", "efficient", Keys::kOrdinary, true},
          {"outlier", "efficient", Keys::kOutlier, true},
          {"spread", "efficient", Keys::kSpread, true},
          {"same_steps", "efficient", Keys::kSameSteps, true}};
}

inline std::vector<FamilyCase> FamilyCases() {
  std::vector<FamilyCase> cases = {{"elu_plus_one", "elu_plus_one", Keys::kOrdinary, false}};
  for (FamilyCase c : EfficientCases()) {
    c.name = "efficient_" + c.name;
    cases.push_back(c);
  }
  return cases;
}

class FamilyFixture : public testing::TestWithParam<FamilyCase> {
 protected:
  // Nine complete blocks, and an open one.
  static constexpr std::int64_t kPosition = 64 * 9 + 23;

  FamilyFixture()
      : stream_(MakeStream(shape_, kPosition + 64, 21)),
        engine_(MakeLinear(shape_, Config(GetParam().map))) {
    for (std::int64_t token = 0; token < stream_.tokens; ++token) {
      for (std::int64_t i = 0; i < shape_.key_row(); ++i) {
        Move(token, i, &stream_.keys[Size(token * shape_.key_row() + i)]);
      }
    }
    if (GetParam().first_token_masked) stream_.Mask(0);
    for (const std::int64_t token : {5, 64, 70, 200, 580, 590}) stream_.Mask(token);
  }

  Answers Row(const Answers& answers, std::int64_t query) const {
    return RowOf(answers, shape_, query);
  }

  LayerShape shape_ = {2, 8, 24, 20, 0.3F};
  Stream stream_;
  std::unique_ptr<const Engine> engine_;

 private:
  static void Move(std::int64_t token, std::int64_t i, float* key) {
    switch (GetParam().keys) {
      case Keys::kOrdinary:
        return;
      case Keys::kOutlier:
        if (i == 30 && token % 97 == 85) *key = 60.0F + static_cast<float>(token);
        return;
      case Keys::kSpread:
        *key *= token % 61 == 50 ? 60.0F : 12.0F;
        return;
      case Keys::kSameSteps:
        if (i % 5 == 0) *key = i % 2 == 0 ? 44.0F + *key : -90.0F + *key;
        return;
    }
  }
};

}  // namespace attnd::engine::linear_test

#endif  // ATTND_TESTS_ENGINE_LINEAR_FAMILY_FIXTURE_H_
