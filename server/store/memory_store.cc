#include "server/store/memory_store.h"

namespace attnd::server {

absl::Status MemoryStore::Apply(const WriteBatch& batch, Sync) {
  if (absl::Status status = CheckLimits(batch); !status.ok()) return status;
  MutexLock lock(&mutex_);
  for (const WriteBatch::Write& write : batch.writes()) {
    switch (write.kind) {
      case WriteBatch::Kind::kPut:
        values_[write.key] = write.value;
        break;
      case WriteBatch::Kind::kDelete:
        values_.erase(write.key);
        break;
      case WriteBatch::Kind::kDeleteRange:
        if (write.key < write.value) {
          values_.erase(values_.lower_bound(write.key), values_.lower_bound(write.value));
        }
        break;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> MemoryStore::Get(const std::string& key) const {
  MutexLock lock(&mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

absl::Status MemoryStore::Scan(const std::string& from, const std::string& until,
                               const Visitor& visitor) const {
  MutexLock lock(&mutex_);
  for (auto i = values_.lower_bound(from); i != values_.end() && i->first < until; ++i) {
    if (!visitor(i->first, i->second)) break;
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
