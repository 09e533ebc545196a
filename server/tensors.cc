#include "server/tensors.h"

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/error.h"

namespace attnd::server {
namespace {

absl::Status Bad(const std::string& field, const std::string& rest) {
  return Error(v1::BAD_TENSOR, absl::StrCat(field, rest));
}

}  // namespace

absl::StatusOr<engine::DataType> CheckDataType(v1::DataType type, const std::string& field) {
  switch (type) {
    case v1::DATA_TYPE_UNSPECIFIED:
    case v1::F32:
      return engine::DataType::kF32;
    case v1::F16:
      return engine::DataType::kF16;
    case v1::BF16:
      return engine::DataType::kBf16;
    default:
      return Bad(field, absl::StrCat(" is ", type, "; it must be F32, F16 or BF16"));
  }
}

v1::DataType ToProto(engine::DataType type) {
  switch (type) {
    case engine::DataType::kF16:
      return v1::F16;
    case engine::DataType::kBf16:
      return v1::BF16;
    case engine::DataType::kF32:
      break;
  }
  return v1::F32;
}

float* MakeF32(v1::Tensor& tensor, std::initializer_list<std::int64_t> shape) {
  std::int64_t count = 1;
  tensor.set_dtype(v1::F32);
  for (const std::int64_t size : shape) {
    tensor.add_shape(size);
    count *= size;
  }
  std::string& data = *tensor.mutable_data();
  data.resize(static_cast<std::size_t>(count) * sizeof(float));
  // A std::string's bytes are aligned to 8.
  return reinterpret_cast<float*>(data.data());
}

absl::StatusOr<RowsView> CheckRows(const v1::Tensor& tensor, const std::string& field,
                                   std::int64_t heads, std::int64_t dim) {
  if (tensor.dtype() == v1::DATA_TYPE_UNSPECIFIED) {
    return Bad(field, ".dtype is not set; it must be F32, F16 or BF16");
  }
  absl::StatusOr<engine::DataType> type = CheckDataType(tensor.dtype(), field + ".dtype");
  if (!type.ok()) return type.status();
  if (tensor.shape_size() != 3 || tensor.shape(1) != heads || tensor.shape(2) != dim) {
    // A hostile shape may be long; its beginning tells enough.
    constexpr int kShown = 8;
    std::string shape =
        absl::StrJoin(tensor.shape().begin(),
                      tensor.shape().begin() + std::min(tensor.shape_size(), kShown), ", ");
    if (tensor.shape_size() > kShown) shape += ", ...";
    return Bad(field,
               absl::StrCat(".shape is [", shape, "]; it must be [n, ", heads, ", ", dim, "]"));
  }
  const std::int64_t rows = tensor.shape(0);
  if (rows < 1) return Bad(field, absl::StrCat(".shape[0] is ", rows, "; it must be at least 1"));
  const std::optional<std::int64_t> count = engine::CheckedMultiply(rows, heads * dim);
  const std::optional<std::int64_t> bytes =
      count ? engine::CheckedMultiply(*count, engine::ElementBytes(*type)) : std::nullopt;
  if (!bytes || *bytes != static_cast<std::int64_t>(tensor.data().size())) {
    return Bad(field,
               absl::StrCat(".data has ", tensor.data().size(), " bytes; shape [", rows, ", ",
                            heads, ", ", dim, "] of ", v1::DataType_Name(tensor.dtype()), " needs ",
                            bytes ? absl::StrCat(*bytes) : "more than 2^63"));
  }
  return RowsView{rows, {*type, tensor.data().data(), *count}};
}

}  // namespace attnd::server
