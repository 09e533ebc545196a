// Real tensors for tests: the cuts in tests/data and the full sets in ../shared/data, which may not
// be there.
#ifndef ATTND_TESTS_ENGINE_REAL_DATA_H_
#define ATTND_TESTS_ENGINE_REAL_DATA_H_

#include <cstdint>
#include <filesystem>
#include <vector>

namespace attnd::engine::real_data {

std::filesystem::path Cuts();
std::filesystem::path Shared();

// The f32 numbers of a .npy file of version 1.0; the caller knows the shape.
std::vector<float> ReadF32(const std::filesystem::path& path);

// [head, token, dim] of one layer to [token, head, dim].
std::vector<float> TokensFirst(const float* x, std::int64_t heads, std::int64_t tokens,
                               std::int64_t dim);

}  // namespace attnd::engine::real_data

#endif  // ATTND_TESTS_ENGINE_REAL_DATA_H_
