// The audits of a layer's answers, shared by all copies of its state: the published one, those that
// readers still hold, drafts, and forks, which go on learning together with their parent (their
// contexts begin alike, and windows slide with what is asked).
//
// Ratios depend on how much a row leaves unread and on whether its own token's leaf is read: for
// 16,384 word vectors asked as queries the factor for 95 % is 0.2 at a target of 0.01 and 0.7 at
// 0.2, and without positions 0.25 and 1.8. So each kv-head has a window for every kind of question;
// the kinds asked last are kept.
//
// Thread-safe. Cannot fail but for std::bad_alloc when a kind is read for the first time.
#ifndef ATTND_ENGINE_KDE_INDEX_AUDIT_RECORD_H_
#define ATTND_ENGINE_KDE_INDEX_AUDIT_RECORD_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/kde/index/audit_window.h"

namespace attnd::engine {

struct AuditKind {
  std::int64_t threshold = 0;  // see Threshold()
  bool own_position = false;   // of the queries is known

  friend bool operator==(const AuditKind&, const AuditKind&) = default;
};

// What the audits of one head say.
struct AuditedFactor {
  float factor = 1.0F;
  bool learned = false;     // the factor is more than a guess
  bool calibrated = false;  // and rests on enough audits
};

class AuditRecord {
 public:
  static constexpr std::int64_t kKinds = 8;  // that are kept

  explicit AuditRecord(std::int64_t heads) : heads_(heads) {}
  AuditRecord(const AuditRecord&) = delete;
  AuditRecord& operator=(const AuditRecord&) = delete;

  // The most that a record ever takes.
  static std::int64_t Bytes(std::int64_t heads);

  // Into factors [heads].
  void Read(const AuditKind& kind, std::vector<AuditedFactor>& factors);

  // The ratio of a true error to the predicted one, at least 0 and finite. Lost where the kind has
  // not been read, or was forgotten since.
  void Add(const AuditKind& kind, std::int64_t head, float ratio);

 private:
  struct Windows {
    AuditKind kind;
    std::int64_t last_read = 0;
    std::vector<AuditWindow> heads;
  };

  Windows* Find(const AuditKind& kind);

  const std::int64_t heads_;
  std::mutex mutex_;  // of all below
  std::vector<Windows> windows_;
  std::int64_t reads_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_AUDIT_RECORD_H_
