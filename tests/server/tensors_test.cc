// What is refused of tensors as they arrive, and in which words; what becomes of queries' types.
#include "server/tensors.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"
#include "server/mutation.h"
#include "server/query_rows.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

v1::Tensor Tensor(v1::DataType type, const std::vector<std::int64_t>& shape, std::size_t bytes) {
  v1::Tensor tensor;
  tensor.set_dtype(type);
  for (const std::int64_t size : shape) tensor.add_shape(size);
  tensor.set_data(std::string(bytes, '\0'));
  return tensor;
}

// The message of a refusal, which has the reason BAD_TENSOR.
template <typename T>
std::string Refusal(const absl::StatusOr<T>& checked) {
  if (checked.ok()) return "accepted";
  EXPECT_EQ(ReasonOf(checked.status()), v1::BAD_TENSOR) << checked.status();
  EXPECT_EQ(checked.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(checked.status().message());
}

// Of rows of 2 heads of 3 elements.
std::string RefusalOf(const v1::Tensor& tensor) { return Refusal(CheckRows(tensor, "keys", 2, 3)); }

TEST(CheckRows, ViewsTheBytesOfATensorThatFits) {
  for (const auto& [type, expected] :
       {std::pair(v1::F32, engine::DataType::kF32), std::pair(v1::F16, engine::DataType::kF16),
        std::pair(v1::BF16, engine::DataType::kBf16)}) {
    const std::size_t element = type == v1::F32 ? 4 : 2;
    const v1::Tensor tensor = Tensor(type, {5, 2, 3}, 30 * element);
    const auto rows = CheckRows(tensor, "keys", 2, 3);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->rows, 5);
    EXPECT_EQ(rows->elements.count, 30);
    EXPECT_EQ(rows->elements.type, expected);
    EXPECT_EQ(rows->elements.data, tensor.data().data()) << "no copy";
    EXPECT_EQ(ToProto(expected), type);
  }
}

TEST(CheckRows, NamesFieldValueAndLimit) {
  EXPECT_EQ(RefusalOf(v1::Tensor()), "keys.dtype is not set; it must be F32, F16 or BF16");
  EXPECT_EQ(RefusalOf(Tensor(static_cast<v1::DataType>(77), {1, 2, 3}, 24)),
            "keys.dtype is 77; it must be F32, F16 or BF16");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {}, 24)), "keys.shape is []; it must be [n, 2, 3]");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {6}, 24)), "keys.shape is [6]; it must be [n, 2, 3]");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {1, 3, 2}, 24)),
            "keys.shape is [1, 3, 2]; it must be [n, 2, 3]");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {1, -2, 3}, 24)),
            "keys.shape is [1, -2, 3]; it must be [n, 2, 3]");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {1, 1, 2, 3}, 24)),
            "keys.shape is [1, 1, 2, 3]; it must be [n, 2, 3]");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {0, 2, 3}, 0)), "keys.shape[0] is 0; it must be at least 1");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {2, 2, 3}, 47)),
            "keys.data has 47 bytes; shape [2, 2, 3] of F32 needs 48");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {2, 2, 3}, 49)),
            "keys.data has 49 bytes; shape [2, 2, 3] of F32 needs 48");
  EXPECT_EQ(RefusalOf(Tensor(v1::BF16, {2, 2, 3}, 48)),
            "keys.data has 48 bytes; shape [2, 2, 3] of BF16 needs 24");
}

TEST(CheckRows, ALongShapeIsNotRepeatedInFull) {
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, std::vector<std::int64_t>(100'000, kMax), 0)).size(),
            std::string("keys.shape is [").size() +
                8 * std::string("9223372036854775807, ").size() +
                std::string("...]; it must be [n, 2, 3]").size());
}

TEST(CheckRows, HostileShapesClaimNothing) {
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {std::int64_t{1} << 40, 2, 3}, 24)),
            "keys.data has 24 bytes; shape [1099511627776, 2, 3] of F32 needs 26388279066624");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {-1, 2, 3}, 24)),
            "keys.shape[0] is -1; it must be at least 1");
  EXPECT_EQ(RefusalOf(Tensor(v1::F32, {std::numeric_limits<std::int64_t>::min(), 2, 3}, 24)),
            "keys.shape[0] is -9223372036854775808; it must be at least 1");
  EXPECT_EQ(
      RefusalOf(Tensor(v1::F16, {kMax, 2, 3}, 24)),
      "keys.data has 24 bytes; shape [9223372036854775807, 2, 3] of F16 needs more than 2^63");
}

// The size in bytes, computed without a check, would be what the data has.
TEST(CheckRows, AProductThatWrapsAroundToTheSizeOfTheDataIsRefused) {
  // Elements: 2^62 * 4 is 2^64.
  EXPECT_NE(Refusal(CheckRows(Tensor(v1::F32, {std::int64_t{1} << 62, 2, 2}, 0), "keys", 2, 2)),
            "accepted");
  // Bytes: (2^60 + 1) * 4 elements of 4 bytes are 2^64 + 16.
  EXPECT_NE(
      Refusal(CheckRows(Tensor(v1::F32, {(std::int64_t{1} << 60) + 1, 2, 2}, 16), "keys", 2, 2)),
      "accepted");
  EXPECT_NE(
      Refusal(CheckRows(Tensor(v1::BF16, {(std::int64_t{1} << 61) + 1, 2, 2}, 8), "keys", 2, 2)),
      "accepted");
}

class CheckTokensTest : public SessionFixture {
 protected:
  // Of a session whose layer 1 takes rows of one head of 4.
  std::string TokensRefusal(const v1::LayerTokens& tokens) {
    return Refusal(CheckTokens(*session_, tokens, "tokens[3]"));
  }
  static v1::LayerTokens Tokens(std::int64_t count, const std::string& mask = "") {
    v1::LayerTokens tokens;
    tokens.set_layer(1);
    tokens.set_position(0);
    const auto bytes = static_cast<std::size_t>(count * kDim * 4);
    *tokens.mutable_keys() = Tensor(v1::F32, {count, 1, kDim}, bytes);
    *tokens.mutable_values() = Tensor(v1::F32, {count, 1, kDim}, bytes);
    tokens.set_mask(mask);
    return tokens;
  }
  const std::shared_ptr<Session> session_ = MakeSession();
};

TEST_F(CheckTokensTest, ViewsKeysValuesAndMask) {
  const v1::LayerTokens tokens = Tokens(3, std::string("\0\1\0", 3));
  const auto slice = CheckTokens(*session_, tokens, "tokens[3]");
  ASSERT_TRUE(slice.ok()) << slice.status();
  EXPECT_EQ(slice->span, (engine::TokenSpan{1, 0, 3}));
  EXPECT_EQ(slice->batch.count, 3);
  EXPECT_EQ(slice->batch.keys.data, tokens.keys().data().data());
  EXPECT_EQ(slice->batch.values.data, tokens.values().data().data());
  EXPECT_EQ(static_cast<const void*>(slice->batch.mask), tokens.mask().data());
}

TEST_F(CheckTokensTest, NamesFieldValueAndLimit) {
  v1::LayerTokens tokens = Tokens(3);
  tokens.mutable_keys()->set_shape(2, 5);
  EXPECT_EQ(TokensRefusal(tokens), "tokens[3].keys.shape is [3, 1, 5]; it must be [n, 1, 4]");
  tokens = Tokens(3);
  tokens.clear_values();
  EXPECT_EQ(TokensRefusal(tokens),
            "tokens[3].values.dtype is not set; it must be F32, F16 or BF16");
  tokens = Tokens(3);
  *tokens.mutable_values() = Tokens(2).values();
  EXPECT_EQ(TokensRefusal(tokens), "tokens[3].values holds 2 tokens; tokens[3].keys holds 3");
  EXPECT_EQ(TokensRefusal(Tokens(3, std::string(4, '\1'))),
            "tokens[3].mask has 4 bytes; it must have one per token, 3");
  EXPECT_EQ(TokensRefusal(Tokens(3, std::string("\1\0\xff", 3))),
            "tokens[3].mask[2] is 255; it must be 0 or 1");
}

engine::ConstElements Elements(engine::DataType type, const std::vector<std::uint16_t>& bits) {
  return {type, bits.data(), static_cast<std::int64_t>(bits.size())};
}

TEST(QueryRowsTest, ConvertsNarrowTypesExactly) {
  const std::vector<std::uint16_t> half = {0x3C00, 0xC100, 0x7BFF, 0x0001, 0x8000, 0x3555};
  auto rows = QueryRows::Make(Elements(engine::DataType::kF16, half), 3);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::vector<float> halves = {1.0F, -2.5F, 65504.0F, 0x1p-24F, -0.0F, 0x1.554p-2F};
  EXPECT_EQ(std::memcmp(rows->data(), halves.data(), halves.size() * sizeof(float)), 0);

  const std::vector<std::uint16_t> brain = {0x3F80, 0xC020, 0x7F7F, 0x0001, 0x8000, 0x3EAB};
  rows = QueryRows::Make(Elements(engine::DataType::kBf16, brain), 3);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const std::vector<float> brains = {1.0F, -2.5F, 0x1.FEp127F, 0x1p-133F, -0.0F, 0x1.56p-2F};
  EXPECT_EQ(std::memcmp(rows->data(), brains.data(), brains.size() * sizeof(float)), 0);
}

TEST(QueryRowsTest, BorrowsF32) {
  const std::vector<float> queries = {1, 2, 3, 4};
  const auto rows = QueryRows::Make({engine::DataType::kF32, queries.data(), 4}, 2);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->data(), queries.data());
}

TEST(QueryRowsTest, NamesTheFirstQueryThatIsNotFinite) {
  const std::vector<float> queries = {1, 2, 3, 4, 5, INFINITY, NAN, 8};
  const auto refused = QueryRows::Make({engine::DataType::kF32, queries.data(), 8}, 2);
  EXPECT_EQ(ReasonOf(refused.status()), v1::NOT_FINITE);
  EXPECT_EQ(refused.status().message(), "queries: query 2 holds a NaN or an infinity");
  for (const auto& [type, infinity] : {std::pair(engine::DataType::kF16, std::uint16_t{0x7C00}),
                                       std::pair(engine::DataType::kBf16, std::uint16_t{0xFF80})}) {
    const std::vector<std::uint16_t> bits = {0, 0, 0, infinity};
    EXPECT_EQ(QueryRows::Make(Elements(type, bits), 1).status().message(),
              "queries: query 3 holds a NaN or an infinity");
  }
}

}  // namespace
}  // namespace attnd::server
