// Checks of tensors as they arrive, their views for the engine, and the making of those that leave.
//
// Pure functions; thread-safe. Views borrow the message's bytes.
#ifndef ATTND_SERVER_TENSORS_H_
#define ATTND_SERVER_TENSORS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "attnd/v1/attention.pb.h"
#include "engine/tensor.h"

namespace attnd::server {

// A tensor of shape [n, heads, dim] with n at least 1 and at most what its bytes hold: BAD_TENSOR
// with the name of the field otherwise. `elements.count` is n * heads * dim.
struct RowsView {
  std::int64_t rows = 0;  // n
  engine::ConstElements elements;
};
absl::StatusOr<RowsView> CheckRows(const v1::Tensor& tensor, const std::string& field,
                                   std::int64_t heads, std::int64_t dim);

// The type of an output field: F32 where it is unspecified. BAD_TENSOR for unknown ones.
absl::StatusOr<engine::DataType> CheckDataType(v1::DataType type, const std::string& field);

v1::DataType ToProto(engine::DataType type);

// Makes `tensor`, which is empty, an F32 tensor of this shape and returns its elements, zeros.
float* MakeF32(v1::Tensor& tensor, std::initializer_list<std::int64_t> shape);

}  // namespace attnd::server

#endif  // ATTND_SERVER_TENSORS_H_
