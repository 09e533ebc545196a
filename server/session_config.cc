#include "server/session_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "engine/engine_config.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/projection.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/accuracy.h"
#include "server/error.h"
#include "server/proto_time.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kMaxLabels = 64;
constexpr std::size_t kMaxLabelKey = 63;
constexpr std::size_t kMaxLabelValue = 255;
constexpr std::size_t kMaxSessionId = 128;
constexpr float kDefaultGuardEpsilon = 1e-6F;

absl::Status BadField(const std::string& field, const std::string& rest) {
  return Error(v1::INVALID_FIELD, absl::StrCat(field, rest));
}

absl::Status CheckRange(const std::string& field, std::int64_t value, std::int64_t low,
                        std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return BadField(field, absl::StrCat(" is ", value, "; it must be ", low, " to ", high));
}

absl::StatusOr<engine::ExactConfig> PlanExact(v1::ExactConfig& config, const std::string& field) {
  engine::ExactConfig exact;
  switch (config.storage()) {
    case v1::DATA_TYPE_UNSPECIFIED:
    case v1::F32:
      config.set_storage(v1::F32);
      return exact;
    case v1::BF16:
      exact.storage = engine::DataType::kBf16;
      return exact;
    default:
      return BadField(absl::StrCat(field, ".exact.storage"),
                      absl::StrCat(" is ", config.storage(), "; it must be F32 or BF16"));
  }
}

absl::StatusOr<engine::UpdateRule> PlanUpdate(v1::UpdateRule& update, const std::string& field) {
  using Decay = engine::UpdateRule::Decay;
  engine::UpdateRule rule;
  switch (update.decay()) {
    case v1::UpdateRule::DECAY_UNSPECIFIED:
      update.set_decay(v1::UpdateRule::NONE);
      break;
    case v1::UpdateRule::NONE:
      break;
    case v1::UpdateRule::CONSTANT:
      rule.decay = Decay::kConstant;
      break;
    case v1::UpdateRule::PER_TOKEN:
      rule.decay = Decay::kPerToken;
      break;
    case v1::UpdateRule::PER_FEATURE:
      rule.decay = Decay::kPerFeature;
      break;
    default:
      return BadField(absl::StrCat(field, ".update.decay"),
                      absl::StrCat(" is ", update.decay(),
                                   "; it must be NONE, CONSTANT, PER_TOKEN or PER_FEATURE"));
  }
  rule.log_decays.assign(update.log_decays().begin(), update.log_decays().end());
  rule.delta = update.delta();
  rule.read_first = update.read_first();
  rule.bonus.assign(update.bonus().begin(), update.bonus().end());
  return rule;
}

// The learned map that the configuration names.
absl::StatusOr<MapWeightsPtr> FindWeights(const v1::FeatureMap& map, const std::string& field,
                                          FeatureMapStore* maps) {
  const std::string& name = map.weights();
  if (map.kind() != v1::LEARNED) {
    if (name.empty()) return nullptr;
    return BadField(field, absl::StrCat(" has ", name.size(),
                                        " bytes; it must not be set for other kinds than LEARNED"));
  }
  Sha256Digest sha256;
  if (name.size() != sha256.size()) {
    return BadField(field, absl::StrCat(" has ", name.size(), " bytes; it must be a SHA-256, of ",
                                        sha256.size()));
  }
  std::copy(name.begin(), name.end(), sha256.begin());
  MapWeightsPtr weights = maps == nullptr ? nullptr : maps->Find(sha256);
  if (weights != nullptr) return weights;
  return Error(v1::UNKNOWN_FEATURE_MAP,
               absl::StrCat(field, " is ", ToHex(sha256),
                            "; this server has no such map: PutFeatureMap uploads it"));
}

absl::StatusOr<engine::LinearConfig> PlanLinear(v1::LinearConfig& config, const std::string& group,
                                                FeatureMapStore* maps) {
  const std::string field = absl::StrCat(group, ".linear");
  engine::LinearConfig linear;
  v1::FeatureMap& map = *config.mutable_feature_map();
  const std::string name = FeatureMapName(map.kind());
  if (name.empty()) {
    return Error(v1::UNSUPPORTED, absl::StrCat(field, ".feature_map.kind is ", map.kind(),
                                               "; GetServerInfo lists those that there are"));
  }
  linear.feature_map.name = name;
  linear.feature_map.epsilon = map.epsilon();
  linear.feature_map.nu = map.nu();
  linear.feature_map.horizon = map.horizon();
  linear.feature_map.features = map.features();
  linear.feature_map.seed = map.seed();
  linear.feature_map.sharpness = map.sharpness();
  linear.feature_map.key_scales.assign(map.key_scales().begin(), map.key_scales().end());
  absl::StatusOr<MapWeightsPtr> weights =
      FindWeights(map, absl::StrCat(field, ".feature_map.weights"), maps);
  if (!weights.ok()) return weights.status();
  linear.feature_map.weights = *std::move(weights);
  absl::StatusOr<engine::UpdateRule> update = PlanUpdate(*config.mutable_update(), field);
  if (!update.ok()) return update.status();
  linear.update = *std::move(update);
  switch (config.normalization()) {
    case v1::NORMALIZATION_UNSPECIFIED:
      config.set_normalization(v1::NORMALIZED);
      break;
    case v1::NORMALIZED:
    case v1::UNNORMALIZED:
      break;
    default:
      return BadField(
          absl::StrCat(field, ".normalization"),
          absl::StrCat(" is ", config.normalization(), "; it must be NORMALIZED or UNNORMALIZED"));
  }
  linear.normalized = config.normalization() == v1::NORMALIZED;
  v1::DenominatorGuard& guard = *config.mutable_guard();
  switch (guard.policy()) {
    case v1::DenominatorGuard::POLICY_UNSPECIFIED:
      guard.set_policy(v1::DenominatorGuard::STRICT);
      break;
    case v1::DenominatorGuard::STRICT:
      break;
    case v1::DenominatorGuard::ADD_EPSILON:
      linear.guard = engine::GuardPolicy::kAddEpsilon;
      break;
    case v1::DenominatorGuard::CLAMP:
      linear.guard = engine::GuardPolicy::kClamp;
      break;
    default:
      return BadField(
          absl::StrCat(field, ".guard.policy"),
          absl::StrCat(" is ", guard.policy(), "; it must be STRICT, ADD_EPSILON or CLAMP"));
  }
  if (guard.epsilon() == 0) guard.set_epsilon(kDefaultGuardEpsilon);
  linear.guard_epsilon = guard.epsilon();
  return linear;
}

absl::StatusOr<engine::KdeConfig> PlanKde(v1::KdeConfig& config, const std::string& group,
                                          std::uint64_t seed) {
  using Mode = engine::KdeConfig::Mode;
  const std::string field = absl::StrCat(group, ".kde");
  engine::KdeConfig kde;
  kde.seed = seed;
  switch (config.mode()) {
    case v1::KdeConfig::MODE_UNSPECIFIED:
      config.set_mode(v1::KdeConfig::AUTO);
      break;
    case v1::KdeConfig::AUTO:
      break;
    case v1::KdeConfig::INDEX:
      kde.mode = Mode::kIndex;
      break;
    case v1::KdeConfig::CERTIFIED:
      kde.mode = Mode::kCertified;
      break;
    case v1::KdeConfig::PAPER:
      kde.mode = Mode::kPaper;
      break;
    default:
      return BadField(
          absl::StrCat(field, ".mode"),
          absl::StrCat(" is ", config.mode(), "; it must be AUTO, INDEX, CERTIFIED or PAPER"));
  }
  v1::Accuracy& accuracy = *config.mutable_accuracy();
  absl::StatusOr<engine::Accuracy> asked =
      CheckAccuracy(accuracy, absl::StrCat(field, ".accuracy"));
  if (!asked.ok()) return asked.status();
  kde.accuracy = *asked;
  if (asked->target_error == 0 && asked->max_keys == 0) {
    kde.accuracy.target_error = kDefaultTargetError;
  }
  accuracy.set_target_error(kde.accuracy.target_error);
  return kde;
}

// Fills in what a random map chose, and the hash of it.
void DescribeProjection(v1::LinearConfig& config, LayerGroup& group) {
  const engine::FeatureMap* map = group.engine->feature_map();
  const engine::Projection* projection = map == nullptr ? nullptr : map->projection();
  if (projection == nullptr) return;
  config.mutable_feature_map()->set_features(projection->count());
  const engine::Digest digest = projection->digest();
  for (const std::uint64_t half : {digest.high, digest.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) {
      group.projection_hash += static_cast<char>(half >> shift & 0xFF);
    }
  }
}

// Fills in the defaults of a group and makes its engine; `seed` is the session's.
absl::StatusOr<LayerGroup> PlanGroup(v1::LayerGroup& group, const std::string& field,
                                     std::uint64_t seed, const Options& options,
                                     FeatureMapStore* maps) {
  if (group.count() == 0) group.set_count(1);
  if (group.kv_heads() == 0) group.set_kv_heads(1);
  if (group.query_heads() == 0) group.set_query_heads(group.kv_heads());
  if (group.value_dim() == 0) group.set_value_dim(group.key_dim());
  for (const absl::Status& status :
       {CheckRange(field + ".count", group.count(), 1, options.max_layers),
        CheckRange(field + ".kv_heads", group.kv_heads(), 1, options.max_heads),
        CheckRange(field + ".query_heads", group.query_heads(), 1, options.max_heads),
        CheckRange(field + ".key_dim", group.key_dim(), 1, options.max_head_dim),
        CheckRange(field + ".value_dim", group.value_dim(), 1, options.max_head_dim)}) {
    if (!status.ok()) return status;
  }
  if (group.query_heads() % group.kv_heads() != 0) {
    return BadField(field + ".query_heads",
                    absl::StrCat(" is ", group.query_heads(),
                                 "; it must be a multiple of kv_heads = ", group.kv_heads()));
  }
  if (!group.has_scale()) {
    group.set_scale(group.has_linear() ? 1.0F
                                       : 1.0F / std::sqrt(static_cast<float>(group.key_dim())));
  }
  if (!std::isfinite(group.scale())) return BadField(field + ".scale", " is not finite");

  engine::EngineConfig config;
  config.shape = {group.kv_heads(), group.query_heads(), group.key_dim(), group.value_dim(),
                  group.scale()};
  config.window_tokens = group.window_tokens();
  LayerGroup planned;
  planned.layers = group.count();
  if (group.has_exact()) {
    absl::StatusOr<engine::ExactConfig> exact = PlanExact(*group.mutable_exact(), field);
    if (!exact.ok()) return exact.status();
    config.kind = *exact;
    planned.kind = EngineKind::kExact;
  } else if (group.has_linear()) {
    absl::StatusOr<engine::LinearConfig> linear = PlanLinear(*group.mutable_linear(), field, maps);
    if (!linear.ok()) return linear.status();
    config.kind = *std::move(linear);
    planned.kind = EngineKind::kLinear;
  } else if (group.has_kde()) {
    absl::StatusOr<engine::KdeConfig> kde = PlanKde(*group.mutable_kde(), field, seed);
    if (!kde.ok()) return kde.status();
    config.kind = *kde;
    planned.kind = EngineKind::kKde;
    planned.accuracy = kde->accuracy;
    planned.whole_batch = kde->mode == engine::KdeConfig::Mode::kPaper;
  } else {
    return BadField(field + ".engine", " is not set; it must be exact, linear or kde");
  }
  absl::StatusOr<std::unique_ptr<const engine::Engine>> engine = engine::MakeEngine(config);
  if (!engine.ok()) {
    return BadField(field, absl::StrCat(": ", std::string(engine.status().message())));
  }
  planned.engine = *std::move(engine);
  if (planned.kind == EngineKind::kLinear) DescribeProjection(*group.mutable_linear(), planned);
  return planned;
}

std::string DeterministicBytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status CheckDurability(const v1::SessionConfig& config, const Options& options) {
  const v1::Durability durability = config.durability();
  if (!v1::Durability_IsValid(durability)) {
    return BadField("config.durability", absl::StrCat(" is ", static_cast<int>(durability),
                                                      ", which is not a durability"));
  }
  if (durability == v1::DURABILITY_UNSPECIFIED || durability == v1::EPHEMERAL) {
    return absl::OkStatus();
  }
  const std::string& name = v1::Durability_Name(durability);
  if (options.data_dir.empty()) {
    return Error(v1::UNSUPPORTED, absl::StrCat("config.durability is ", name,
                                               "; this server has no store (--data_dir)"));
  }
  for (const v1::LayerGroup& group : config.layer_groups()) {
    if (group.linear().feature_map().kind() != v1::LEARNED) continue;
    return Error(v1::UNSUPPORTED,
                 absl::StrCat("config.durability is ", name,
                              "; sessions with learned feature maps must be EPHEMERAL"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FeatureMapName(v1::FeatureMapKind kind) {
  if (kind == v1::FEATURE_MAP_KIND_UNSPECIFIED || !v1::FeatureMapKind_IsValid(kind)) return "";
  return absl::AsciiStrToLower(v1::FeatureMapKind_Name(kind));
}

absl::StatusOr<SessionPlan> PlanSession(const v1::SessionConfig& config, const Options& options,
                                        FeatureMapStore* maps) {
  if (config.layer_groups().empty()) {
    return BadField("config.layer_groups", " is empty; at least one group is needed");
  }
  if (config.layer_groups_size() > options.max_layers) {
    return BadField("config.layer_groups", absl::StrCat(" holds ", config.layer_groups_size(),
                                                        " groups; at most max_layers = ",
                                                        options.max_layers, " are allowed"));
  }
  absl::Status labels = CheckLabels(config.labels());
  if (!labels.ok()) return labels;
  SessionPlan plan;
  plan.config = config;
  plan.config.DiscardUnknownFields();
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  for (int i = 0; i < plan.config.layer_groups_size(); ++i) {
    v1::LayerGroup& group = *plan.config.mutable_layer_groups(i);
    absl::StatusOr<LayerGroup> planned = PlanGroup(
        group, absl::StrCat("config.layer_groups[", i, "]"), config.seed(), options, maps);
    if (!planned.ok()) return planned.status();
    layers += group.count();
    heads += std::int64_t{group.count()} * group.query_heads();
    plan.groups.push_back(*std::move(planned));
  }
  absl::Status counts =
      CheckRange("the number of layers of all groups", layers, 1, options.max_layers);
  counts.Update(CheckRange("the number of query heads of all layers", heads, 1, options.max_heads));
  if (!counts.ok()) return counts;
  absl::StatusOr<absl::Duration> time_to_live = config.has_time_to_live()
                                                    ? TimeToLive(config.time_to_live(), options)
                                                    : options.default_time_to_live;
  if (!time_to_live.ok()) return time_to_live.status();
  *plan.config.mutable_time_to_live() = ToProto(*time_to_live);

  absl::Status durability = CheckDurability(plan.config, options);
  if (!durability.ok()) return durability;
  if (plan.config.durability() == v1::DURABILITY_UNSPECIFIED) {
    plan.config.set_durability(v1::EPHEMERAL);
  }
  v1::SessionConfig fixed = plan.config;
  fixed.clear_time_to_live();
  fixed.clear_labels();
  plan.identity = DeterministicBytes(fixed);
  return plan;
}

absl::StatusOr<absl::Duration> TimeToLive(const google::protobuf::Duration& asked,
                                          const Options& options) {
  const absl::Duration duration = FromProto(asked);
  if (duration <= absl::ZeroDuration()) {
    return BadField("time_to_live", absl::StrCat(" is ", absl::FormatDuration(duration),
                                                 "; it must be more than 0"));
  }
  return std::min(duration, options.max_time_to_live);
}

absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels) {
  if (labels.size() > kMaxLabels) {
    return BadField("labels", absl::StrCat(" holds ", labels.size(), " entries; at most ",
                                           kMaxLabels, " are allowed"));
  }
  for (const auto& [key, value] : labels) {
    if (key.empty() || key.size() > kMaxLabelKey) {
      return BadField("labels", absl::StrCat(": a key has ", key.size(),
                                             " bytes; it must have 1 to ", kMaxLabelKey));
    }
    if (value.size() > kMaxLabelValue) {
      return BadField("labels", absl::StrCat(": a value has ", value.size(), " bytes; at most ",
                                             kMaxLabelValue, " are allowed"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSessionId(const std::string& id) {
  const bool allowed = std::ranges::all_of(id, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '~' ||
           c == '-';
  });
  if (!id.empty() && id.size() <= kMaxSessionId && allowed) return absl::OkStatus();
  return BadField("session_id", absl::StrCat(" has ", id.size(), " bytes; it must be 1 to ",
                                             kMaxSessionId, " characters of [A-Za-z0-9._~-]"));
}

}  // namespace attnd::server
