#include "engine/message_log.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace attnd::engine {
namespace {

bool SharePlace(const Message& a, const Message& b) {
  return std::ranges::any_of(a.spans, [&](const TokenSpan& x) {
    return std::ranges::any_of(b.spans, [&](const TokenSpan& y) {
      return x.layer == y.layer && x.position == y.position;
    });
  });
}

}  // namespace

void MessageLog::Remember(Message message) {
  if (messages_.size() == static_cast<std::size_t>(capacity_)) messages_.pop_front();
  messages_.push_back(std::move(message));
}

MessageLog::Verdict MessageLog::Classify(const Message& message) const {
  if (std::ranges::find(messages_, message) != messages_.end()) return Verdict::kReplay;
  const bool known =
      std::ranges::any_of(messages_, [&](const Message& m) { return SharePlace(m, message); });
  return known ? Verdict::kMismatch : Verdict::kWrongPosition;
}

std::int64_t MessageLog::bytes() const {
  std::size_t spans = 0;
  for (const Message& message : messages_) spans += message.spans.size();
  return static_cast<std::int64_t>(messages_.size() * sizeof(Message) + spans * sizeof(TokenSpan));
}

}  // namespace attnd::engine
