#include "engine/message_log.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

namespace attnd::engine {
namespace {

// Whether any span begins at a place of `places`, which maps layers to positions.
bool SharesPlace(const Message& message,
                 const std::unordered_map<std::int64_t, std::int64_t>& places) {
  return std::ranges::any_of(message.spans, [&](const TokenSpan& span) {
    const auto place = places.find(span.layer);
    return place != places.end() && place->second == span.position;
  });
}

}  // namespace

void MessageLog::Remember(Message message) {
  // In this order, so that nothing has changed where there is no memory.
  messages_.push_back(std::move(message));
  if (messages_.size() > static_cast<std::size_t>(capacity_)) messages_.pop_front();
}

MessageLog::Verdict MessageLog::Classify(const Message& message) const {
  if (std::ranges::find(messages_, message) != messages_.end()) return Verdict::kReplay;
  std::unordered_map<std::int64_t, std::int64_t> places;
  for (const TokenSpan& span : message.spans) places[span.layer] = span.position;
  const bool known =
      std::ranges::any_of(messages_, [&](const Message& m) { return SharesPlace(m, places); });
  return known ? Verdict::kMismatch : Verdict::kWrongPosition;
}

std::int64_t MessageLog::bytes() const {
  std::size_t spans = 0;
  for (const Message& message : messages_) spans += message.spans.size();
  return static_cast<std::int64_t>(messages_.size() * sizeof(Message) + spans * sizeof(TokenSpan));
}

}  // namespace attnd::engine
