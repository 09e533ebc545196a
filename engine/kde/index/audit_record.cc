#include "engine/kde/index/audit_record.h"

#include <algorithm>
#include <cstddef>

namespace attnd::engine {

std::int64_t AuditRecord::Bytes(std::int64_t heads) {
  return static_cast<std::int64_t>(sizeof(AuditRecord)) +
         kKinds * (static_cast<std::int64_t>(sizeof(Windows)) +
                   heads * static_cast<std::int64_t>(sizeof(AuditWindow)));
}

AuditRecord::Windows* AuditRecord::Find(const AuditKind& kind) {
  const auto found = std::find_if(windows_.begin(), windows_.end(),
                                  [&](const Windows& windows) { return windows.kind == kind; });
  return found == windows_.end() ? nullptr : &*found;
}

void AuditRecord::Read(const AuditKind& kind, std::vector<AuditedFactor>& factors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Windows* windows = Find(kind);
  if (windows == nullptr) {
    std::vector<AuditWindow> heads(static_cast<std::size_t>(heads_));
    if (static_cast<std::int64_t>(windows_.size()) == kKinds) {
      windows = &*std::min_element(
          windows_.begin(), windows_.end(),
          [](const Windows& a, const Windows& b) { return a.last_read < b.last_read; });
    } else {
      windows_.reserve(kKinds);
      windows = &windows_.emplace_back();
    }
    windows->kind = kind;
    windows->heads.swap(heads);
  }
  windows->last_read = ++reads_;
  factors.clear();
  for (const AuditWindow& window : windows->heads) {
    factors.push_back({window.factor(), window.learned(), window.calibrated()});
  }
}

void AuditRecord::Add(const AuditKind& kind, std::int64_t head, float ratio) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Windows* windows = Find(kind);
  if (windows != nullptr) windows->heads[static_cast<std::size_t>(head)].Add(ratio);
}

}  // namespace attnd::engine
