// Queries as they arrived, as f32 for the engine. Borrows the message where no conversion is
// needed.
#ifndef ATTND_SERVER_QUERY_ROWS_H_
#define ATTND_SERVER_QUERY_ROWS_H_

#include "absl/status/statusor.h"
#include "engine/aligned_buffer.h"
#include "engine/tensor.h"

namespace attnd::server {

class QueryRows {
 public:
  // `row` elements per query. NOT_FINITE with the number of the first bad query.
  static absl::StatusOr<QueryRows> Make(const engine::ConstElements& elements, std::int64_t row);

  const float* data() const { return data_; }

 private:
  engine::AlignedBuffer<float> converted_;
  const float* data_ = nullptr;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_QUERY_ROWS_H_
