#include "engine/message_log.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/byte_io.h"

namespace attnd::engine {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kSpanBytes = 3 * 8;
constexpr std::int64_t kMessageBytes = 1 + 2 * 8 + 8;  // without its spans

Message ReadMessage(ByteReader& reader) {
  Message message;
  message.kind = static_cast<MessageKind>(reader.Get<std::uint8_t>());
  message.digest.high = reader.Get<std::uint64_t>();
  message.digest.low = reader.Get<std::uint64_t>();
  message.spans.resize(static_cast<std::size_t>(reader.Count(kSpanBytes)));
  for (TokenSpan& span : message.spans) {
    span.layer = reader.Get<std::int64_t>();
    span.position = reader.Get<std::int64_t>();
    span.count = reader.Get<std::int64_t>();
  }
  return message;
}

bool IsValid(const Message& message) {
  if (message.kind != MessageKind::kAppend && message.kind != MessageKind::kStep) return false;
  return std::ranges::all_of(message.spans, [](const TokenSpan& span) {
    return span.layer >= 0 && span.position >= 0 && span.count >= 0;
  });
}

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

std::string MessageLog::Save() const {
  ByteWriter writer;
  writer.Put(kVersion);
  writer.Put(static_cast<std::int64_t>(messages_.size()));
  for (const Message& message : messages_) {
    writer.Put(static_cast<std::uint8_t>(message.kind));
    writer.Put(message.digest.high);
    writer.Put(message.digest.low);
    writer.Put(static_cast<std::int64_t>(message.spans.size()));
    for (const TokenSpan& span : message.spans) {
      writer.Put(span.layer);
      writer.Put(span.position);
      writer.Put(span.count);
    }
  }
  return std::move(writer).Finish();
}

absl::StatusOr<MessageLog> MessageLog::Load(std::span<const char> bytes, std::int64_t capacity) {
  absl::StatusOr<std::span<const char>> checked = CheckedBytes(bytes, "message log");
  if (!checked.ok()) return checked.status();
  ByteReader reader(*checked);
  const auto version = reader.Get<std::uint32_t>();
  if (version != kVersion) {
    return absl::DataLossError(
        absl::StrCat("message log: version ", version, "; this release reads ", kVersion));
  }
  MessageLog log(capacity);
  const std::int64_t count = reader.Count(kMessageBytes);
  for (std::int64_t i = 0; i < count; ++i) {
    Message message = ReadMessage(reader);
    if (!reader.ok() || !IsValid(message)) {
      return absl::DataLossError(
          absl::StrCat("message log: message ", i, " of ", count, " is not one"));
    }
    log.Remember(std::move(message));
  }
  if (!reader.complete()) {
    return absl::DataLossError(
        absl::StrCat("message log: its ", bytes.size(), " bytes are not ", count, " messages"));
  }
  return log;
}

}  // namespace attnd::engine
