#include "client/attnctl/text.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/feature_map.h"

namespace attnd::attnctl {
namespace {

std::string DurationText(const google::protobuf::Duration& duration) {
  return absl::FormatDuration(absl::Seconds(duration.seconds()) +
                              absl::Trunc(absl::Nanoseconds(duration.nanos()), absl::Seconds(1)));
}

std::string LabelsText(const google::protobuf::Map<std::string, std::string>& labels) {
  std::vector<std::string> entries;
  for (const auto& [key, value] : labels) entries.push_back(absl::StrCat(key, "=", value));
  std::sort(entries.begin(), entries.end());
  return absl::StrJoin(entries, ", ");
}

std::string KdeText(const v1::KdeConfig& kde) {
  std::string mode = v1::KdeConfig::Mode_Name(kde.mode());
  absl::AsciiStrToLower(&mode);
  std::string text = absl::StrCat("kde (", mode);
  const v1::Accuracy& accuracy = kde.accuracy();
  if (accuracy.target_error() > 0) absl::StrAppend(&text, ", error ", accuracy.target_error());
  if (accuracy.max_keys() > 0) absl::StrAppend(&text, ", ", accuracy.max_keys(), " keys");
  return text + ")";
}

std::string EngineText(const v1::LayerGroup& group) {
  if (group.has_exact()) {
    return group.exact().storage() == v1::BF16 ? "exact (bf16 storage)" : "exact";
  }
  if (group.has_kde()) return KdeText(group.kde());
  std::string map = v1::FeatureMapKind_Name(group.linear().feature_map().kind());
  absl::AsciiStrToLower(&map);
  if (group.linear().feature_map().kind() == v1::LEARNED) {
    // Enough to tell it from others.
    absl::StrAppend(&map, " ",
                    client::Sha256ToHex(group.linear().feature_map().weights()).substr(0, 12));
  }
  std::string text = absl::StrCat("linear (", map);
  if (group.linear().normalization() == v1::UNNORMALIZED) text += ", unnormalized";
  const v1::UpdateRule& update = group.linear().update();
  if (update.decay() > v1::UpdateRule::NONE) {
    std::string decay = v1::UpdateRule::Decay_Name(update.decay());
    absl::AsciiStrToLower(&decay);
    absl::StrAppend(&text, ", decay ", decay);
  }
  if (update.delta()) text += ", delta";
  if (update.read_first()) text += ", read first";
  return text + ")";
}

std::string Engines(const v1::Session& session) {
  std::vector<std::string> engines;
  for (const v1::LayerGroup& group : session.config().layer_groups()) {
    engines.push_back(EngineText(group));
  }
  return absl::StrJoin(engines, " + ");
}

bool Durable(const v1::Session& session) { return session.config().durability() > v1::EPHEMERAL; }

std::string DurabilityName(const v1::Session& session) {
  return Durable(session)
             ? absl::AsciiStrToLower(v1::Durability_Name(session.config().durability()))
             : "ephemeral";
}

std::vector<std::int64_t> DurablePositions(const v1::Session& session) {
  return {session.durable_layer_positions().begin(), session.durable_layer_positions().end()};
}

// An EPHEMERAL session is in memory or nowhere.
std::string MemoryText(const v1::Session& session) {
  return Durable(session) && !session.loaded() ? "not loaded" : Bytes(session.state_bytes());
}

// The smallest; 0 of no layers.
std::int64_t Smallest(const std::vector<std::int64_t>& positions) {
  return positions.empty() ? 0 : *std::min_element(positions.begin(), positions.end());
}

}  // namespace

std::string Bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < kUnits.size()) {
    amount /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 1, amount, kUnits[unit]);
}

std::string Positions(const std::vector<std::int64_t>& by_layer) {
  const std::int64_t smallest = Smallest(by_layer);
  if (std::count(by_layer.begin(), by_layer.end(), smallest) == std::ssize(by_layer)) {
    return absl::StrCat(smallest);
  }
  return absl::StrCat(smallest, " (by layer: ", absl::StrJoin(by_layer, ", "), ")");
}

std::string Describe(const v1::LayerGroup& group) {
  std::string text = EngineText(group);
  if (group.count() > 1) text = absl::StrCat(group.count(), " layers of ", text);
  absl::StrAppend(&text, ", ", group.kv_heads(), group.kv_heads() == 1 ? " head" : " heads");
  if (group.query_heads() != group.kv_heads()) {
    absl::StrAppend(&text, " (", group.query_heads(), " query heads)");
  }
  absl::StrAppend(&text, ", d_k ", group.key_dim(), ", d_v ", group.value_dim(), ", scale ",
                  group.scale());
  if (group.window_tokens() > 0) {
    absl::StrAppend(&text, ", window of ", group.window_tokens(), " tokens");
  }
  return text;
}

std::string Describe(const v1::Session& session) {
  std::string text = absl::StrCat("session     ", session.session_id(), "\n");
  for (const v1::LayerGroup& group : session.config().layer_groups()) {
    absl::StrAppend(&text, "layers      ", Describe(group), "\n");
  }
  absl::StrAppend(&text, "position    ",
                  Positions({session.layer_positions().begin(), session.layer_positions().end()}),
                  "\n");
  absl::StrAppend(&text, "durability  ", DurabilityName(session));
  if (Durable(session)) {
    absl::StrAppend(&text, ", durable up to position ", Positions(DurablePositions(session)));
  }
  absl::StrAppend(&text, "\nmemory      ", MemoryText(session), "\n");
  absl::StrAppend(&text, "expires in  ", DurationText(session.expires_in()), " of ",
                  DurationText(session.config().time_to_live()), "\n");
  if (!session.config().labels().empty()) {
    absl::StrAppend(&text, "labels      ", LabelsText(session.config().labels()), "\n");
  }
  return text;
}

std::string Describe(const v1::ServerInfo& info) {
  std::vector<std::string> maps;
  for (const int map : info.feature_maps()) {
    maps.push_back(v1::FeatureMapKind_Name(static_cast<v1::FeatureMapKind>(map)));
    absl::AsciiStrToLower(&maps.back());
  }
  const v1::ServerLimits& limits = info.limits();
  return absl::StrCat(
      "attnd          ", info.version(), ", numerics ", info.numerics_version(), ", ", info.isa(),
      ", ", info.workers(), " workers\n", "engines        ", absl::StrJoin(info.engines(), ", "),
      "\n", "feature maps   ", absl::StrJoin(maps, ", "), "\n", "message        up to ",
      Bytes(limits.max_message_bytes()), ", answer up to ", Bytes(limits.max_response_bytes()),
      "\n", "in flight      up to ", Bytes(limits.max_inflight_bytes()), ", ",
      limits.max_queued_requests(), " requests\n", "stream         up to ",
      limits.max_stream_messages(), " messages, ", Bytes(limits.max_stream_bytes()),
      " unanswered\n", "sessions       up to ", limits.max_sessions(), ", ",
      Bytes(limits.max_state_bytes()), " in all\n", "a session      up to ", limits.max_layers(),
      " layers, ", limits.max_heads(), " heads, head size ", limits.max_head_dim(), "\n",
      "learned maps   up to ", Bytes(limits.max_feature_map_size()), " each, ",
      Bytes(limits.max_feature_map_bytes()), " in all\n", "time to live   ",
      DurationText(limits.default_time_to_live()), ", at most ",
      DurationText(limits.max_time_to_live()), "\n");
}

std::string ListHeading() {
  return absl::StrFormat("%-32s  %-28s %12s %-12s %12s %10s  %-12s %s\n", "SESSION", "ENGINE",
                         "POSITION", "DURABILITY", "DURABLE", "MEMORY", "EXPIRES IN", "LABELS");
}

std::string ListLine(const v1::Session& session) {
  return absl::StrFormat("%-32s  %-28s %12d %-12s %12s %10s  %-12s %s\n", session.session_id(),
                         Engines(session), session.position(), DurabilityName(session),
                         Durable(session) ? absl::StrCat(Smallest(DurablePositions(session))) : "-",
                         MemoryText(session), DurationText(session.expires_in()),
                         LabelsText(session.config().labels()));
}

}  // namespace attnd::attnctl
