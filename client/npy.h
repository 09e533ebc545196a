// Reading and writing NumPy's .npy files.
//
// Format: magic "\x93NUMPY", version 1.0, 2.0 or 3.0, a header length (2 or 4 bytes,
// little-endian), a Python dictionary {'descr', 'fortran_order', 'shape'}, then the elements
// (numpy.org/doc/stable/reference/generated/numpy.lib.format.html). Read are C-order arrays of
// '<f4',
// '<f2', '|u1' and '|b1' (the last two for masks); everything else is refused by name.
//
// The parser trusts nothing: it never reads outside the given bytes and allocates no more than a
// few times the header. Pure functions apart from the two that name a file; thread-safe.
#ifndef ATTND_CLIENT_NPY_H_
#define ATTND_CLIENT_NPY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tensor.h"

namespace attnd::client {

enum class NpyType { kF32, kF16, kU8 };

// An array inside bytes that someone else owns.
struct NpyView {
  NpyType type = NpyType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const char> data;
};

// The array in `size` bytes at `data`, which must outlive the view. INVALID_ARGUMENT says what is
// wrong; bytes after the array are an error too.
absl::StatusOr<NpyView> ParseNpy(const char* data, std::size_t size);

// A file's bytes and the array in them. Movable; the view stays valid because std::vector keeps its
// storage when moved.
struct NpyFile {
  NpyFile() = default;
  NpyFile(NpyFile&&) = default;
  NpyFile& operator=(NpyFile&&) = default;
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  std::vector<char> bytes;
  NpyView array;
};

// NOT_FOUND if there is no regular file that can be opened, RESOURCE_EXHAUSTED if there is no
// memory for its bytes; every message begins with the path.
absl::StatusOr<NpyFile> ReadNpyFile(const std::string& path);

// The array as tokens of `heads` heads: shape [n, heads, d] as it is, [n, d] as one head. Views the
// array's memory. INVALID_ARGUMENT names `field`.
absl::StatusOr<ConstTensor> TokensOf(const NpyView& array, const std::string& field);

// A version 1.0 file with the tensor's elements. INVALID_ARGUMENT for BF16, which .npy cannot name.
absl::StatusOr<std::string> FormatNpy(const ConstTensor& tensor);

// Writes to a temporary file beside `path` and renames it, so that no reader sees half an array.
// A symbolic link is followed; what is not a regular file, such as a pipe, is written to.
absl::Status WriteNpyFile(const std::string& path, const ConstTensor& tensor);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_NPY_H_
