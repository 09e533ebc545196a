#include "tests/engine/real_data.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace attnd::engine::real_data {

namespace fs = std::filesystem;

fs::path Cuts() { return fs::path(ATTND_SOURCE_DIR) / "tests" / "data"; }
fs::path Shared() { return fs::path(ATTND_SOURCE_DIR).parent_path() / "shared" / "data"; }

std::vector<float> ReadF32(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_NE(bytes.find("'<f4'"), std::string::npos) << path;
  const std::size_t header = 10 + static_cast<unsigned char>(bytes[8]) +
                             std::size_t{256} * static_cast<unsigned char>(bytes[9]);
  std::vector<float> numbers((bytes.size() - header) / sizeof(float));
  std::memcpy(numbers.data(), bytes.data() + header, numbers.size() * sizeof(float));
  return numbers;
}

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

}  // namespace attnd::engine::real_data
