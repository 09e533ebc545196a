#include "engine/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "engine/cpu.h"
#include "engine/ref_gemm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

#ifdef ATTND_SANITIZED
constexpr bool kFewShapes = true;
#else
constexpr bool kFewShapes = false;
#endif

constexpr std::int64_t kColumns[] = {16, 32, 48, 64, 80, 96, 112, 128, 144, 192, 256, 272, 512};
constexpr std::int64_t kInner[] = {1,  2,  7,   8,   15,  16,  31,  32,  48,
                                   64, 96, 100, 128, 200, 256, 257, 300, 512};

// How a matrix lies in memory: extra elements after each row and before the first one.
struct Layout {
  std::int64_t pad = 0;
  std::int64_t offset = 0;
};

// A matrix cut from the top left corner of a larger one.
std::vector<float> Corner(const std::vector<float>& whole, std::int64_t whole_columns,
                          std::int64_t rows, std::int64_t columns, const Layout& layout) {
  std::vector<float> part(static_cast<std::size_t>(layout.offset + rows * (columns + layout.pad)),
                          -7.0F);
  for (std::int64_t i = 0; i < rows; ++i) {
    std::copy_n(whole.data() + i * whole_columns, columns,
                part.data() + layout.offset + i * (columns + layout.pad));
  }
  return part;
}

// One inner dimension's worth of inputs with the reference's products. An element of a product
// depends on its row of A and its column of B only, so the product of the corners is the corner of
// the product, and the slow reference runs once.
class Case {
 public:
  Case(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed)
      : m_(m),
        n_(n),
        k_(k),
        transposed_(transposed),
        a_(RandomValues(m * k, 1)),
        b_(RandomValues(k * n, 2)),
        c_(RandomValues(m * n, 3)),
        fresh_(c_),
        added_(c_) {
    const auto reference = transposed ? RefGemmTN : RefGemmNN;
    const std::int64_t lda = transposed ? m : k;
    reference(m, n, k, a_.data(), lda, b_.data(), n, false, fresh_.data(), n);
    reference(m, n, k, a_.data(), lda, b_.data(), n, true, added_.data(), n);
  }

  // Runs the door on an m x n corner; "" if every bit is the reference's and nothing else was
  // written.
  std::string Difference(std::int64_t m, std::int64_t n, bool accumulate,
                         const Layout& layout = {}) const {
    const std::int64_t a_rows = transposed_ ? k_ : m;
    const std::int64_t a_columns = transposed_ ? m : k_;
    const std::vector<float> a = Corner(a_, transposed_ ? m_ : k_, a_rows, a_columns, layout);
    const std::vector<float> b = Corner(b_, n_, k_, n, layout);
    std::vector<float> c = Corner(c_, n_, m, n, layout);
    const std::vector<float> expected = Corner(accumulate ? added_ : fresh_, n_, m, n, layout);
    (transposed_ ? GemmTN : GemmNN)(m, n, k_, a.data() + layout.offset, a_columns + layout.pad,
                                    b.data() + layout.offset, n + layout.pad, accumulate,
                                    c.data() + layout.offset, n + layout.pad);
    if (std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)) == 0) return "";
    return std::string(transposed_ ? "TN " : "NN ") + std::to_string(m) + "x" + std::to_string(n) +
           "x" + std::to_string(k_) + (accumulate ? " accumulating" : "") + ", row padding " +
           std::to_string(layout.pad) + ", " + ActiveIsa();
  }

 private:
  std::int64_t m_, n_, k_;
  bool transposed_;
  std::vector<float> a_, b_, c_, fresh_, added_;
};

class ChainContract : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Inner, ChainContract, ::testing::ValuesIn(kInner));

TEST_P(ChainContract, HoldsForEveryBucketAndWidth) {
  const std::int64_t widest = kFewShapes ? 80 : 512;
  const Case inputs(kGemmMaxRows, widest, GetParam(), false);
  for (const std::int64_t m : kGemmRowBuckets) {
    for (const std::int64_t n : kColumns) {
      if (n > widest) continue;
      ASSERT_EQ(inputs.Difference(m, n, false), "");
      ASSERT_EQ(inputs.Difference(m, n, true), "");
    }
  }
}

class FoldChain : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Inner, FoldChain, ::testing::Values(1, 2, 7, 16, 17, 33, 63, 64));

// 32 rows, alone or left over, break the chain under AVX2 unless they are cut.
TEST_P(FoldChain, HoldsForEveryMultipleOf16Features) {
  const std::int64_t most = kFewShapes ? 256 : 1040;
  const Case inputs(most, 144, GetParam(), true);
  for (std::int64_t m = 16; m <= most; m += 16) {
    for (const std::int64_t n : {16, 64, 80, 144}) {
      ASSERT_EQ(inputs.Difference(m, n, false), "");
      ASSERT_EQ(inputs.Difference(m, n, true), "");
    }
  }
}

// The products of wide layers: one block of tokens against values and summaries, or folded.
TEST(Gemm, ChainHoldsForWideProducts) {
  for (const std::int64_t n : {1040, 4112}) {
    if (kFewShapes && n > 1040) continue;
    const Case product(kGemmMaxRows, n, 64, false);
    const Case fold(80, n, kGemmFoldRows, true);
    for (const std::int64_t m : kGemmRowBuckets) {
      ASSERT_EQ(product.Difference(m, n, false), "");
      ASSERT_EQ(product.Difference(m, n, true), "");
    }
    for (const std::int64_t m : {16, 48, 80}) ASSERT_EQ(fold.Difference(m, n, true), "");
  }
}

// Leading dimensions that oneDNN might treat in a special way (odd ones, multiples of a page), and
// every alignment.
TEST(Gemm, ChainHoldsForEveryStrideAndAlignment) {
  const Case product(kGemmMaxRows, 80, 128, false);
  const Case fold(kGemmMaxRows, 80, kGemmFoldRows, true);
  for (const std::int64_t m : kGemmRowBuckets) {
    for (const std::int64_t n : {64, 80}) {
      for (const Layout layout : {Layout{1, 0}, Layout{7, 1}, Layout{64, 4}, Layout{1024 - 64, 0},
                                  Layout{1024 - 128, 2}, Layout{4096 - 64, 3}}) {
        ASSERT_EQ(product.Difference(m, n, true, layout), "");
        if (m % 16 == 0) {
          ASSERT_EQ(fold.Difference(m, n, true, layout), "");
        }
      }
    }
  }
}

TEST(Gemm, ReferenceIsTheSumInExactArithmetic) {
  // Small integers are exact in every order, so that the reference is checked against something
  // else than itself.
  constexpr std::int64_t kM = 4, kN = 16, kK = 300;
  std::vector<float> a(kM * kK), b(kK * kN), c(kM * kN, 5.0F);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i % 7) - 3);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i % 5) - 2);
  RefGemmNN(kM, kN, kK, a.data(), kK, b.data(), kN, true, c.data(), kN);
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kN; ++j) {
      std::int64_t sum = 5;
      for (std::int64_t p = 0; p < kK; ++p) sum += ((i * kK + p) % 7 - 3) * ((p * kN + j) % 5 - 2);
      ASSERT_EQ(c[static_cast<std::size_t>(i * kN + j)], static_cast<float>(sum));
    }
  }
}

TEST(Gemm, RowsDoNotDependOnTheBucket) {
  constexpr std::int64_t kN = 80, kK = 96;
  const std::vector<float> a = RandomValues(kGemmMaxRows * kK, 1);
  const std::vector<float> b = RandomValues(kK * kN, 2);
  std::vector<float> all(kGemmMaxRows * kN);
  GemmNN(kGemmMaxRows, kN, kK, a.data(), kK, b.data(), kN, false, all.data(), kN);
  for (const std::int64_t m : kGemmRowBuckets) {
    std::vector<float> some(static_cast<std::size_t>(m * kN));
    GemmNN(m, kN, kK, a.data(), kK, b.data(), kN, false, some.data(), kN);
    EXPECT_EQ(std::memcmp(some.data(), all.data(), some.size() * sizeof(float)), 0) << m;
  }
}

TEST(Gemm, ANonFiniteRowLeavesTheOthersAlone) {
  constexpr std::int64_t kM = 16, kN = 64, kK = 64;
  std::vector<float> a = RandomValues(kM * kK, 1);
  const std::vector<float> b = RandomValues(kK * kN, 2);
  std::vector<float> clean(kM * kN), dirty(kM * kN);
  GemmNN(kM, kN, kK, a.data(), kK, b.data(), kN, false, clean.data(), kN);
  a[3 * kK + 5] = std::nanf("");
  GemmNN(kM, kN, kK, a.data(), kK, b.data(), kN, false, dirty.data(), kN);
  for (std::size_t i = 0; i < clean.size(); ++i) {
    if (i / kN == 3) {
      EXPECT_TRUE(std::isnan(dirty[i]));
    } else {
      EXPECT_EQ(dirty[i], clean[i]);
    }
  }
}

TEST(Gemm, OldContentIsIgnoredUnlessAccumulating) {
  constexpr std::int64_t kSide = 16;
  const std::vector<float> a = RandomValues(kSide * kSide, 1);
  std::vector<float> c(kSide * kSide, std::nanf(""));
  GemmNN(kSide, kSide, kSide, a.data(), kSide, a.data(), kSide, false, c.data(), kSide);
  EXPECT_TRUE(std::all_of(c.begin(), c.end(), [](float x) { return std::isfinite(x); }));
}

TEST(Gemm, PaddedRowsIsTheSmallestBucket) {
  for (const auto& [rows, padded] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{1, 4},
                                                          {4, 4},
                                                          {5, 16},
                                                          {16, 16},
                                                          {17, 64},
                                                          {64, 64},
                                                          {65, 192},
                                                          {191, 192},
                                                          {192, 192}}) {
    EXPECT_EQ(GemmPaddedRows(rows), padded) << rows;
  }
}

TEST(Gemm, ThreadsAgreeWithEachOther) {
  constexpr std::int64_t kM = 64, kN = 64, kK = 64;
  const std::vector<float> a = RandomValues(kM * kK, 1);
  const std::vector<float> b = RandomValues(kK * kN, 2);
  std::vector<float> expected(kM * kN);
  RefGemmNN(kM, kN, kK, a.data(), kK, b.data(), kN, false, expected.data(), kN);
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  threads.reserve(wrong.size());
  for (int& count : wrong) {
    threads.emplace_back([&a, &b, &expected, &count] {
      if (!GemmInitThread().ok()) ++count;
      std::vector<float> c(kM * kN);
      for (int round = 0; round < 200; ++round) {
        GemmNN(kM, kN, kK, a.data(), kK, b.data(), kN, false, c.data(), kN);
        if (std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)) != 0) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

TEST(Gemm, HonoursTheChainHere) { EXPECT_TRUE(GemmHonoursChain()) << ActiveIsa(); }

TEST(Gemm, InitThreadSucceedsTwice) {
  EXPECT_TRUE(GemmInitThread().ok());
  EXPECT_TRUE(GemmInitThread().ok());
}

}  // namespace
}  // namespace attnd::engine
