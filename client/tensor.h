// Tensors on the client's side: non-owning views of the caller's memory, and conversions from and
// to the contract's Tensor message.
//
// Elements are row-major and little-endian, as on the wire. A view must not outlive what it views.
// Pure functions, thread-safe.
#ifndef ATTND_CLIENT_TENSOR_H_
#define ATTND_CLIENT_TENSOR_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"

namespace attnd::client {

struct ConstTensor {
  v1::DataType dtype = v1::F32;
  // Outermost first; the first size counts tokens or queries.
  std::vector<std::int64_t> shape;
  std::span<const char> bytes;

  std::int64_t rows() const { return shape.empty() ? 0 : shape[0]; }
};

// A view of floats, such as F32(keys, {n, heads, dim}).
ConstTensor F32(std::span<const float> data, std::vector<std::int64_t> shape);

// A view of a message's tensor.
ConstTensor View(const v1::Tensor& tensor);

// Bytes of one element; 0 for an unknown type.
std::int64_t ElementBytes(v1::DataType dtype);

// Checks that `tensor` has a known type, three sizes [rows >= 1, heads, dim] and exactly the bytes
// its shape needs. INVALID_ARGUMENT names `field`.
absl::Status CheckTensor(const ConstTensor& tensor, const std::string& field, std::int64_t heads,
                         std::int64_t dim);

// Bytes of one row of a checked tensor; 0 if it has no rows.
std::int64_t RowBytes(const ConstTensor& tensor);

// Rows [first, first + count) of a checked tensor. Requires 0 <= first, count and first + count <=
// rows.
ConstTensor Rows(const ConstTensor& tensor, std::int64_t first, std::int64_t count);

// Copies into a message.
void ToProto(const ConstTensor& from, v1::Tensor* to);

// The elements as f32; exact for F16 and BF16. INVALID_ARGUMENT for an unknown type or a wrong
// size.
absl::StatusOr<std::vector<float>> ToFloats(const ConstTensor& tensor);
absl::StatusOr<std::vector<float>> ToFloats(const v1::Tensor& tensor);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_TENSOR_H_
