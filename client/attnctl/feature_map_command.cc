#include "client/attnctl/feature_map_command.h"

#include <cstdint>
#include <cstdio>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/feature_map.h"
#include "client/npy.h"
#include "client/tensor.h"

namespace attnd::attnctl {
namespace {

using Activation = v1::FeatureMapHeader;

// The numbers of each head: a file of `dims` dimensions, or of one less for a single head.
struct Heads {
  std::vector<std::int64_t> shape;
  std::vector<float> numbers;
};

absl::StatusOr<Heads> ReadHeads(const std::string& path, const char* flag, std::size_t dims) {
  const auto file = client::ReadNpyFile(path);
  if (!file.ok()) return file.status();
  const client::NpyView& array = file->array;
  Heads heads;
  heads.shape = array.shape;
  if (heads.shape.size() + 1 == dims) heads.shape.insert(heads.shape.begin(), 1);
  if (heads.shape.size() != dims || array.type == client::NpyType::kU8) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": shape (", absl::StrJoin(array.shape, ", "), "), expected ",
                     dims == 3 ? "(heads, m, d) or (m, d)" : "(heads, m) or (m)", ", f32 or f16"));
  }
  auto numbers = client::ToFloats(client::ConstTensor{
      array.type == client::NpyType::kF16 ? v1::F16 : v1::F32, heads.shape, array.data});
  if (!numbers.ok()) return numbers.status();
  heads.numbers = *std::move(numbers);
  return heads;
}

// The biases of heads of this shape; none where the flag is not given. An array of another shape
// with as many numbers would give a valid map, and not the one that was meant.
absl::StatusOr<std::vector<float>> ReadBias(const std::string& path, const char* flag,
                                            const Heads& weights) {
  if (path.empty()) return std::vector<float>();
  auto bias = ReadHeads(path, flag, 2);
  if (!bias.ok()) return bias.status();
  const std::vector<std::int64_t> expected = {weights.shape[0], weights.shape[1]};
  if (bias->shape != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": shape (", absl::StrJoin(bias->shape, ", "), "), expected (",
                     absl::StrJoin(expected, ", "), ") as (heads, m) of the weights"));
  }
  return std::move(bias->numbers);
}

}  // namespace

std::vector<std::string> ActivationNames() {
  std::vector<std::string> names;
  for (int activation = 1; Activation::Activation_IsValid(activation); ++activation) {
    names.push_back(absl::AsciiStrToLower(
        Activation::Activation_Name(static_cast<Activation::Activation>(activation))));
  }
  return names;
}

absl::Status Run(const Context& context, const PutFeatureMapCommand& command) {
  const auto keys = ReadHeads(command.key_weights, "--key-weights", 3);
  if (!keys.ok()) return keys.status();
  const auto queries = ReadHeads(command.query_weights, "--query-weights", 3);
  if (!queries.ok()) return queries.status();
  if (queries->shape[1] != keys->shape[1] || queries->shape[2] != keys->shape[2]) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--query-weights: heads of (", queries->shape[1], ", ", queries->shape[2], "), expected (",
        keys->shape[1], ", ", keys->shape[2], ") as (m, d) of --key-weights"));
  }
  const auto key_bias = ReadBias(command.key_bias, "--key-bias", *keys);
  if (!key_bias.ok()) return key_bias.status();
  const auto query_bias = ReadBias(command.query_bias, "--query-bias", *queries);
  if (!query_bias.ok()) return query_bias.status();

  client::FeatureMapWeights weights;
  Activation::Activation_Parse(absl::AsciiStrToUpper(command.activation), &weights.activation);
  weights.kv_heads = keys->shape[0];
  weights.query_heads = queries->shape[0];
  weights.features = keys->shape[1];
  weights.key_dim = keys->shape[2];
  weights.key_weights = keys->numbers;
  weights.key_bias = *key_bias;
  weights.query_weights = queries->numbers;
  weights.query_bias = *query_bias;

  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const auto response = (*client)->PutFeatureMap(weights, command.id);
  if (!response.ok()) return response.status();
  if (context.json) {
    PrintJson(*response);
  } else {
    // The name alone, so that a script can keep it.
    std::printf("%s\n", client::Sha256ToHex(response->sha256()).c_str());
  }
  return absl::OkStatus();
}

}  // namespace attnd::attnctl
