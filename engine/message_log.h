// The messages a session has accepted most recently, and what a message that claims certain
// positions is: new, a retry, or a mistake. This is what makes every mutation safe to retry.
//
// Not synchronised; the session guards it.
#ifndef ATTND_ENGINE_MESSAGE_LOG_H_
#define ATTND_ENGINE_MESSAGE_LOG_H_

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/digest.h"

namespace attnd::engine {

// Stored as these numbers: they never change.
enum class MessageKind : std::uint8_t { kAppend = 0, kStep = 1 };

// The place of one layer's tokens.
struct TokenSpan {
  std::int64_t layer = 0;
  std::int64_t position = 0;
  std::int64_t count = 0;
  friend bool operator==(const TokenSpan&, const TokenSpan&) = default;
};

struct Message {
  MessageKind kind = MessageKind::kAppend;
  std::vector<TokenSpan> spans;  // in the order of the message
  Digest digest;                 // of the whole message
  friend bool operator==(const Message&, const Message&) = default;
};

class MessageLog {
 public:
  enum class Verdict {
    kReplay,         // equal to a remembered message
    kMismatch,       // a remembered message stood at one of the places, with other content
    kWrongPosition,  // nothing remembered stood there
  };

  // Remembers at most `capacity` messages, at least 1.
  explicit MessageLog(std::int64_t capacity) : capacity_(capacity) {}

  void Remember(Message message);

  // What a message is that does not stand at the current positions of its layers.
  Verdict Classify(const Message& message) const;

  std::int64_t bytes() const;

  // What is remembered, oldest first, as bytes: version (u32, 1), number of messages (i64), of each
  // its kind (u8), digest (u64 high, u64 low), number of spans (i64), and of each span layer,
  // position and count (i64); then the checksum of byte_io.h.
  std::string Save() const;
  // A log of `capacity` that remembers the newest of what was saved. DataLoss, naming what does not
  // fit, for bytes that Save() of this version did not make.
  static absl::StatusOr<MessageLog> Load(std::span<const char> bytes, std::int64_t capacity);

 private:
  std::int64_t capacity_;
  std::deque<Message> messages_;  // oldest first
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_MESSAGE_LOG_H_
