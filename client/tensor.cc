#include "client/tensor.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::client {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors travel little-endian");

// Product of sizes and element bytes; -1 if a size is negative or the product leaves 64 bits.
std::int64_t BytesOf(const ConstTensor& tensor) {
  std::int64_t bytes = ElementBytes(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

std::string ShapeText(const std::vector<std::int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

float HalfToFloat(std::uint16_t half) {
  const int exponent = (half >> 10) & 0x1f;
  const int mantissa = half & 0x3ff;
  float magnitude;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa == 0 ? INFINITY : NAN;
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

float BrainToFloat(std::uint16_t brain) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(brain) << 16);
}

}  // namespace

ConstTensor F32(std::span<const float> data, std::vector<std::int64_t> shape) {
  const auto bytes = std::as_bytes(data);
  return {v1::F32, std::move(shape), {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
}

ConstTensor View(const v1::Tensor& tensor) {
  return {tensor.dtype(), {tensor.shape().begin(), tensor.shape().end()}, tensor.data()};
}

std::int64_t ElementBytes(v1::DataType dtype) {
  switch (dtype) {
    case v1::F32:
      return 4;
    case v1::F16:
    case v1::BF16:
      return 2;
    default:
      return 0;
  }
}

absl::Status CheckTensor(const ConstTensor& tensor, const std::string& field, std::int64_t heads,
                         std::int64_t dim) {
  if (ElementBytes(tensor.dtype) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": type ", static_cast<int>(tensor.dtype), " is not F32, F16 or BF16"));
  }
  if (tensor.shape.size() != 3 || tensor.shape[0] < 1 || tensor.shape[1] != heads ||
      tensor.shape[2] != dim) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": shape is ", ShapeText(tensor.shape),
                                                   ", expected [n >= 1, ", heads, ", ", dim, "]"));
  }
  if (BytesOf(tensor) != static_cast<std::int64_t>(tensor.bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, ": ", tensor.bytes.size(), " bytes do not fit shape ", ShapeText(tensor.shape)));
  }
  return absl::OkStatus();
}

std::int64_t RowBytes(const ConstTensor& tensor) {
  const std::int64_t rows = tensor.rows();
  return rows > 0 ? static_cast<std::int64_t>(tensor.bytes.size()) / rows : 0;
}

ConstTensor Rows(const ConstTensor& tensor, std::int64_t first, std::int64_t count) {
  ConstTensor rows = tensor;
  rows.shape[0] = count;
  const std::int64_t row_bytes = RowBytes(tensor);
  rows.bytes = tensor.bytes.subspan(static_cast<std::size_t>(first * row_bytes),
                                    static_cast<std::size_t>(count * row_bytes));
  return rows;
}

void ToProto(const ConstTensor& from, v1::Tensor* to) {
  to->set_dtype(from.dtype);
  to->mutable_shape()->Assign(from.shape.begin(), from.shape.end());
  to->mutable_data()->assign(from.bytes.data(), from.bytes.size());
}

absl::StatusOr<std::vector<float>> ToFloats(const ConstTensor& tensor) {
  const std::int64_t element_bytes = ElementBytes(tensor.dtype);
  if (element_bytes == 0 || BytesOf(tensor) != static_cast<std::int64_t>(tensor.bytes.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor: ", tensor.bytes.size(), " bytes do not fit type ",
                     static_cast<int>(tensor.dtype), " and shape ", ShapeText(tensor.shape)));
  }
  std::vector<float> floats(tensor.bytes.size() / static_cast<std::size_t>(element_bytes));
  if (floats.empty()) return floats;
  if (tensor.dtype == v1::F32) {
    std::memcpy(floats.data(), tensor.bytes.data(), tensor.bytes.size());
    return floats;
  }
  for (std::size_t i = 0; i < floats.size(); ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof bits);
    floats[i] = tensor.dtype == v1::F16 ? HalfToFloat(bits) : BrainToFloat(bits);
  }
  return floats;
}

absl::StatusOr<std::vector<float>> ToFloats(const v1::Tensor& tensor) {
  return ToFloats(View(tensor));
}

}  // namespace attnd::client
