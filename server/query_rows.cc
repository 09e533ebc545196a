#include "server/query_rows.h"

#include "absl/strings/str_cat.h"
#include "engine/simd/convert.h"
#include "engine/simd/maps.h"
#include "server/error.h"

namespace attnd::server {

absl::StatusOr<QueryRows> QueryRows::Make(const engine::ConstElements& elements, std::int64_t row) {
  QueryRows rows;
  if (elements.type == engine::DataType::kF32) {
    rows.data_ = static_cast<const float*>(elements.data);
  } else {
    rows.converted_ = engine::AlignedBuffer<float>::Uninitialized(elements.count);
    const auto* bits = static_cast<const std::uint16_t*>(elements.data);
    if (elements.type == engine::DataType::kF16) {
      engine::F16ToF32(bits, rows.converted_.data(), elements.count);
    } else {
      engine::Bf16ToF32(bits, rows.converted_.data(), elements.count);
    }
    rows.data_ = rows.converted_.data();
  }
  if (!engine::AllFinite(rows.data_, elements.count)) {
    std::int64_t query = 0;
    while (engine::AllFinite(rows.data_ + query * row, row)) ++query;
    return Error(v1::NOT_FINITE,
                 absl::StrCat("queries: query ", query, " holds a NaN or an infinity"));
  }
  return rows;
}

}  // namespace attnd::server
