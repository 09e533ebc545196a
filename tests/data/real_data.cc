#include "tests/data/real_data.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

namespace attnd::data {
namespace {

namespace fs = std::filesystem;

fs::path Cuts() { return fs::path(ATTND_SOURCE_DIR) / "tests" / "data"; }
fs::path Shared() { return fs::path(ATTND_SOURCE_DIR).parent_path() / "shared" / "data"; }

[[noreturn]] void Fail(const fs::path& path, const char* what) {
  std::fprintf(stderr, "%s %s\n", path.c_str(), what);
  std::abort();
}

// The f32 numbers of a .npy file of version 1.0, which must be `count`.
std::vector<float> ReadF32(const fs::path& path, std::int64_t count) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr std::size_t kPrefix = 10;
  if (bytes.size() < kPrefix) Fail(path, "cannot be read");
  if (bytes.find("'<f4'") == std::string::npos) Fail(path, "does not hold '<f4'");
  const std::size_t header = kPrefix + static_cast<unsigned char>(bytes[8]) +
                             std::size_t{256} * static_cast<unsigned char>(bytes[9]);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  if (bytes.size() != header + numbers.size() * sizeof(float)) Fail(path, "has another size");
  std::memcpy(numbers.data(), bytes.data() + header, numbers.size() * sizeof(float));
  return numbers;
}

// [head, token, dim] of one layer to [token, head, dim].
std::vector<float> TokensFirst(const float* x, std::int64_t heads, std::int64_t tokens,
                               std::int64_t dim) {
  std::vector<float> y(static_cast<std::size_t>(heads * tokens * dim));
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::copy_n(x + (h * tokens + t) * dim, dim, y.data() + (t * heads + h) * dim);
    }
  }
  return y;
}

constexpr std::int64_t kWordDim = 100;
constexpr engine::LayerShape kWordShape = {1, 1, kWordDim, kWordDim, 1.0F};

}  // namespace

TensorSet WordVectors() {
  constexpr std::int64_t kTokens = 4096;
  std::vector<float> keys = ReadF32(Cuts() / "glove_keys.npy", kTokens * kWordDim);
  std::vector<float> values = ReadF32(Cuts() / "glove_values.npy", kTokens * kWordDim);
  return {kWordShape, kTokens, {{keys, keys, std::move(values)}}};
}

std::optional<TensorSet> ManyWordVectors() {
  constexpr std::int64_t kTokens = 16384;
  const fs::path path = Shared() / "glove_6B_100d_top32768.npy";
  if (!fs::exists(path)) return std::nullopt;
  std::vector<float> keys = ReadF32(path, 2 * kTokens * kWordDim);
  std::vector<float> values(keys.begin() + kTokens * kWordDim, keys.end());
  keys.resize(static_cast<std::size_t>(kTokens * kWordDim));
  for (float& x : keys) x = static_cast<float>(static_cast<double>(x) / std::pow(10.0, 0.25));
  return TensorSet{kWordShape, kTokens, {{keys, keys, std::move(values)}}};
}

std::vector<float> WordVectorRows() {
  const char* name = std::getenv("ATTND_WORD_VECTORS");
  const bool named = name != nullptr && *name != '\0';
  const fs::path path = named ? fs::path(name) : Shared() / "glove_6B_100d_top32768.npy";
  if (!named && !fs::exists(path)) return {};
  // Both files have a header of 128 bytes.
  const auto bytes = static_cast<std::int64_t>(fs::file_size(path)) - 128;
  return ReadF32(path, bytes / static_cast<std::int64_t>(sizeof(float)));
}

TensorSet TextRecogniserHeads() {
  constexpr std::int64_t kTokens = 2048;
  constexpr std::int64_t kHeads = 4;
  constexpr std::int64_t kDim = 15;
  constexpr std::int64_t kCount = kTokens * kHeads * kDim;
  return {{kHeads, kHeads, kDim, kDim, 1.0F / std::sqrt(static_cast<float>(kDim))},
          kTokens,
          {{ReadF32(Cuts() / "ocr_queries.npy", kCount), ReadF32(Cuts() / "ocr_keys.npy", kCount),
            ReadF32(Cuts() / "ocr_values.npy", kCount)}}};
}

std::optional<TensorSet> ReadShared(const SharedHeads& heads) {
  const std::string stem = (Shared() / heads.name).string();
  if (!fs::exists(stem + "_k.npy")) return std::nullopt;
  TensorSet set;
  set.shape = {heads.kv_heads, heads.query_heads, heads.dim, heads.dim,
               1.0F / std::sqrt(static_cast<float>(heads.dim))};
  set.tokens = heads.tokens;
  const std::int64_t head = heads.tokens * heads.dim;
  const std::int64_t query_layer = heads.query_heads * head;
  const std::int64_t kv_layer = heads.kv_heads * head;
  const std::vector<float> q = ReadF32(stem + "_q.npy", heads.layers * query_layer);
  const std::vector<float> k = ReadF32(stem + "_k.npy", heads.layers * kv_layer);
  const std::vector<float> v = ReadF32(stem + "_v.npy", heads.layers * kv_layer);
  for (std::int64_t layer = 0; layer < heads.layers; ++layer) {
    set.layers.push_back(
        {TokensFirst(q.data() + layer * query_layer, heads.query_heads, heads.tokens, heads.dim),
         TokensFirst(k.data() + layer * kv_layer, heads.kv_heads, heads.tokens, heads.dim),
         TokensFirst(v.data() + layer * kv_layer, heads.kv_heads, heads.tokens, heads.dim)});
  }
  return set;
}

std::optional<RecurrentSet> RwkvHeads() {
  constexpr SharedHeads kHeads = {"qkv_rwkv52_n2048", 3, 8, 8, 2048, 8};
  std::optional<TensorSet> tensors = ReadShared(kHeads);
  if (!tensors) return std::nullopt;
  RecurrentSet set = {*std::move(tensors), {}};
  set.tensors.shape.scale = 1.0F;
  constexpr std::int64_t kGates = kHeads.kv_heads * kHeads.dim;
  constexpr std::int64_t kLayer = kGates * kHeads.tokens;
  const fs::path folder = Shared();
  const std::vector<float> decays =
      ReadF32(folder / "qkv_rwkv52_decay.npy", kHeads.layers * kGates);
  const std::vector<float> bonus =
      ReadF32(folder / "qkv_rwkv52_bonus_u.npy", kHeads.layers * kGates);
  const std::vector<float> outputs =
      ReadF32(folder / "qkv_rwkv52_n2048_out.npy", kHeads.layers * kLayer);
  for (std::int64_t layer = 0; layer < kHeads.layers; ++layer) {
    const std::int64_t first = layer * kGates;
    set.layers.push_back(
        {{decays.begin() + first, decays.begin() + first + kGates},
         {bonus.begin() + first, bonus.begin() + first + kGates},
         TokensFirst(outputs.data() + layer * kLayer, kHeads.kv_heads, kHeads.tokens, kHeads.dim)});
  }
  return set;
}

}  // namespace attnd::data
