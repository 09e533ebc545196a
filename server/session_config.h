// From a client's SessionConfig to engines: defaults, limits and checks.
//
// Pure functions; thread-safe.
#ifndef ATTND_SERVER_SESSION_CONFIG_H_
#define ATTND_SERVER_SESSION_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "engine/engine.h"
#include "server/feature_map_store.h"
#include "server/metrics.h"
#include "server/options.h"

namespace attnd::server {

// A layer group: one engine, shared by its layers.
struct LayerGroup {
  std::int64_t layers = 0;
  std::shared_ptr<const engine::Engine> engine;
  EngineKind kind = EngineKind::kExact;
  std::string projection_hash;  // of a map of random features
  engine::Accuracy accuracy;    // kde: of queries that ask for none
  bool whole_batch = false;     // answers depend on all queries of a call: no Steps
};

struct SessionPlan {
  v1::SessionConfig config;  // with all defaults filled in
  std::string identity;      // equal for configurations that differ in mutable fields only
  std::vector<LayerGroup> groups;
};

// INVALID_FIELD or UNSUPPORTED with the name of the field, its value and the limit. Learned feature
// maps are looked up in `maps`, and in use while the plan's engines exist; UNKNOWN_FEATURE_MAP
// where one is not there, or `maps` is null.
absl::StatusOr<SessionPlan> PlanSession(const v1::SessionConfig& config, const Options& options,
                                        FeatureMapStore* maps = nullptr);

// The time-to-live that a client asks for, clamped to the maximum. INVALID_FIELD where it is not
// positive.
absl::StatusOr<absl::Duration> TimeToLive(const google::protobuf::Duration& asked,
                                          const Options& options);

// The engine's name of a map of the contract: the contract's own in lower case. Empty for a number
// that is none.
std::string FeatureMapName(v1::FeatureMapKind kind);

absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels);
absl::Status CheckSessionId(const std::string& id);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_CONFIG_H_
