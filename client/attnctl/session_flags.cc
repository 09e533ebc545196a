#include "client/attnctl/session_flags.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/duration.h"
#include "client/error.h"
#include "client/feature_map.h"
#include "google/protobuf/util/json_util.h"

namespace attnd::attnctl {
namespace {

// The contract's name in lower case.
v1::FeatureMapKind FeatureMapOf(const std::string& name) {
  v1::FeatureMapKind kind = v1::FEATURE_MAP_KIND_UNSPECIFIED;
  v1::FeatureMapKind_Parse(absl::AsciiStrToUpper(name), &kind);
  return kind;
}

v1::DenominatorGuard::Policy GuardOf(const std::string& name) {
  if (name == "add_epsilon") return v1::DenominatorGuard::ADD_EPSILON;
  if (name == "clamp") return v1::DenominatorGuard::CLAMP;
  return v1::DenominatorGuard::STRICT;
}

v1::KdeConfig::Mode ModeOf(const std::string& name) {
  v1::KdeConfig::Mode mode = v1::KdeConfig::AUTO;
  v1::KdeConfig::Mode_Parse(absl::AsciiStrToUpper(name), &mode);
  return mode;
}

v1::Durability DurabilityOf(const std::string& name) {
  v1::Durability durability = v1::EPHEMERAL;
  v1::Durability_Parse(absl::AsciiStrToUpper(name), &durability);
  return durability;
}

v1::UpdateRule::Decay DecayOf(const std::string& name) {
  v1::UpdateRule::Decay decay = v1::UpdateRule::NONE;
  v1::UpdateRule::Decay_Parse(absl::AsciiStrToUpper(name), &decay);
  return decay;
}

// Signed maps have no denominator, and neither have delta rules.
bool Unnormalized(const SessionFlags& flags) {
  return flags.unnormalized || flags.delta || flags.feature_map == "identity";
}

}  // namespace

std::vector<std::string> FeatureMapNames() {
  std::vector<std::string> names;
  // The numbers of kinds may have gaps.
  for (int kind = 1; kind <= v1::FeatureMapKind_MAX; ++kind) {
    if (!v1::FeatureMapKind_IsValid(kind)) continue;
    names.push_back(
        absl::AsciiStrToLower(v1::FeatureMapKind_Name(static_cast<v1::FeatureMapKind>(kind))));
  }
  return names;
}

std::vector<std::string> KdeModeNames() {
  std::vector<std::string> names;
  for (int mode = v1::KdeConfig::AUTO; mode <= v1::KdeConfig::Mode_MAX; ++mode) {
    names.push_back(
        absl::AsciiStrToLower(v1::KdeConfig::Mode_Name(static_cast<v1::KdeConfig::Mode>(mode))));
  }
  return names;
}

std::vector<std::string> DurabilityNames() {
  std::vector<std::string> names;
  for (int durability = v1::EPHEMERAL; durability <= v1::Durability_MAX; ++durability) {
    names.push_back(
        absl::AsciiStrToLower(v1::Durability_Name(static_cast<v1::Durability>(durability))));
  }
  return names;
}

absl::StatusOr<std::map<std::string, std::string>> ParseLabels(
    const std::vector<std::string>& entries) {
  std::map<std::string, std::string> labels;
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--label: '", entry, "' is not KEY=VALUE"));
    }
    labels[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  return labels;
}

absl::StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text,
                                                     const std::string& flag) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "' is not a positive duration such as 90s or 24h"));
  }
  return duration;
}

absl::StatusOr<v1::SessionConfig> ConfigOf(const SessionFlags& flags) {
  v1::SessionConfig config;
  v1::LayerGroup* group = config.add_layer_groups();
  group->set_count(flags.layers);
  group->set_kv_heads(flags.kv_heads);
  group->set_query_heads(flags.query_heads);
  group->set_key_dim(flags.key_dim);
  group->set_value_dim(flags.value_dim);
  if (flags.scale.has_value()) group->set_scale(*flags.scale);
  group->set_window_tokens(flags.window);
  if (flags.engine == "exact") {
    group->mutable_exact()->set_storage(flags.storage == "bf16" ? v1::BF16 : v1::F32);
  } else if (flags.engine == "kde") {
    v1::KdeConfig* kde = group->mutable_kde();
    kde->set_mode(ModeOf(flags.mode));
    kde->mutable_accuracy()->set_target_error(flags.target_error);
    kde->mutable_accuracy()->set_max_keys(flags.max_keys);
    config.set_seed(flags.session_seed);
  } else {
    v1::LinearConfig* linear = group->mutable_linear();
    v1::FeatureMap* map = linear->mutable_feature_map();
    map->set_kind(FeatureMapOf(flags.feature_map));
    map->set_epsilon(flags.epsilon);
    map->set_nu(flags.nu);
    map->set_horizon(flags.horizon);
    map->set_features(flags.features);
    map->set_seed(flags.seed);
    map->set_sharpness(flags.sharpness);
    map->mutable_key_scales()->Assign(flags.key_scales.begin(), flags.key_scales.end());
    if (Unnormalized(flags)) linear->set_normalization(v1::UNNORMALIZED);
    v1::UpdateRule* update = linear->mutable_update();
    update->set_decay(DecayOf(flags.decay));
    update->mutable_log_decays()->Assign(flags.log_decays.begin(), flags.log_decays.end());
    update->set_delta(flags.delta);
    update->set_read_first(flags.read_first);
    update->mutable_bonus()->Assign(flags.bonus.begin(), flags.bonus.end());
    if (!flags.weights.empty()) {
      auto sha256 = client::Sha256FromHex(flags.weights);
      if (!sha256.ok()) {
        return client::WithMessage(sha256.status(),
                                   absl::StrCat("--weights: ", sha256.status().message()));
      }
      map->set_weights(*std::move(sha256));
    }
    linear->mutable_guard()->set_policy(GuardOf(flags.guard));
    linear->mutable_guard()->set_epsilon(flags.guard_epsilon);
  }
  config.set_durability(DurabilityOf(flags.durability));
  if (!flags.time_to_live.empty()) {
    const auto duration = ParsePositiveDuration(flags.time_to_live, "--ttl");
    if (!duration.ok()) return duration.status();
    *config.mutable_time_to_live() = client::ToProto(*duration);
  }
  const auto labels = ParseLabels(flags.labels);
  if (!labels.ok()) return labels.status();
  config.mutable_labels()->insert(labels->begin(), labels->end());
  return config;
}

absl::StatusOr<v1::SessionConfig> ReadConfigFile(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::NotFoundError(absl::StrCat("--config: ", path, " cannot be read"));
  v1::SessionConfig config;
  const auto status = google::protobuf::util::JsonStringToMessage(text.str(), &config);
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config: ", path, ": ", status.message().ToString()));
  }
  return config;
}

}  // namespace attnd::attnctl
