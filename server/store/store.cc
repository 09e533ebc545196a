#include "server/store/store.h"

#include "absl/strings/str_cat.h"

namespace attnd::server {

absl::Status CheckLimits(const WriteBatch& batch) {
  for (const WriteBatch::Write& write : batch.writes()) {
    const auto bytes = static_cast<std::int64_t>(write.value.size());
    if (bytes > Store::kMaxValueBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value has ", bytes, " bytes; a store takes ", Store::kMaxValueBytes));
    }
  }
  if (batch.bytes() > Store::kMaxBatchBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch has ", batch.bytes(), " bytes; a store takes ", Store::kMaxBatchBytes));
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
