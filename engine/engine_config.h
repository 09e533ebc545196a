// Which engine a layer uses, and the factory for it.
#ifndef ATTND_ENGINE_ENGINE_CONFIG_H_
#define ATTND_ENGINE_ENGINE_CONFIG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/tensor.h"

namespace attnd::engine {

// Softmax attention, evaluated exactly. Storage is kF32 or kBf16.
struct ExactConfig {
  DataType storage = DataType::kF32;
};

// What happens where a denominator is not safely positive; see DenominatorGuard in the contract.
enum class GuardPolicy { kStrict, kAddEpsilon, kClamp };

class MapWeights;  // engine/linear/map_weights.h

struct FeatureMapConfig {
  // A name of the registry in engine/linear/feature_map.h, or "efficient" (engine/efficient/).
  std::string name = "elu_plus_one";
  float epsilon = 0.0F;                       // relu: added to every feature
  std::int64_t nu = 0;                        // dpfp: how many rolls
  std::int64_t horizon = 0;                   // cosformer: M, the distance at which weights reach 0
  std::int64_t features = 0;                  // random features: how many projections; 0: a default
  std::uint64_t seed = 0;                     // random features: of the projections
  float sharpness = 0.0F;                     // favor_sharp: A, below 1/8
  std::vector<float> key_scales;              // favor_sharp: psi, one per component; empty: ones
  std::shared_ptr<const MapWeights> weights;  // learned: required
};

// How S and Z change with a token, where they are more than sums; see engine/gated/gated_engine.h.
struct UpdateRule {
  enum class Decay {
    kNone,
    kConstant,    // log_decays below
    kPerToken,    // a log-decay with each token and kv-head
    kPerFeature,  // with each token, kv-head and feature
  };
  Decay decay = Decay::kNone;
  std::vector<float> log_decays;  // kConstant: [H] or [H, c]
  bool delta = false;             // with each token and kv-head a rate
  bool read_first = false;        // a token's query reads before the token is written
  std::vector<float> bonus;       // read_first: [H, c], what the token itself weighs; empty: zeros

  bool additive() const { return decay == Decay::kNone && !delta && !read_first; }
};

struct LinearConfig {
  FeatureMapConfig feature_map;
  UpdateRule update;
  bool normalized = true;
  GuardPolicy guard = GuardPolicy::kStrict;
  float guard_epsilon = 1e-6F;
};

// Work that modes AUTO and INDEX of kde spend on audits of their answers, in parts of the work of
// answering, at most as many as that; stated errors depend on them, answers do not. 0: none.
struct AuditShares {
  double learning = 0.25;    // until stated errors are calibrated
  double calibrated = 0.01;  // from then on
};

// Softmax attention, estimated with a stated error; see engine/kde/kde_engine.h.
struct KdeConfig {
  enum class Mode {
    kAuto,       // exact where the index would not be faster or good enough
    kIndex,      // clusters near the query exactly, the others by their summaries
    kCertified,  // every key in 8 bits, heavy ones exactly, a sample of the rest
    kPaper,      // KDEformer: of a batch of queries at once
  };
  Mode mode = Mode::kAuto;
  Accuracy accuracy = {};  // of queries that ask for none
  std::uint64_t seed = 0;  // of what is drawn at random
  AuditShares audits = {};
};

// The longest sliding window: 2^22 blocks, so that sums over them have room for exact bookkeeping.
inline constexpr std::int64_t kMaxWindowTokens = std::int64_t{1} << 28;

struct EngineConfig {
  LayerShape shape;
  std::variant<ExactConfig, LinearConfig, KdeConfig> kind;
  // How many of the newest tokens a query sees; 0: all. Exact: to the token. Linear: a multiple of
  // 64, counted in blocks, that of the newest token included.
  std::int64_t window_tokens = 0;
};

// InvalidArgument where a field is out of range or two do not fit; the message names it.
absl::StatusOr<std::unique_ptr<const Engine>> MakeEngine(const EngineConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_ENGINE_CONFIG_H_
