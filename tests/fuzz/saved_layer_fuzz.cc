// Stored bytes of a layer: refused, or a layer that answers, takes more tokens, and is saved again.
//
// The first byte chooses the engine; then come the root and segments, each behind its length in two
// bytes. Magic, version, form and checksum are put around them, or nothing would get past these.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/byte_io.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/layer_loader.h"
#include "engine/layer_stream.h"
#include "engine/saved_form.h"
#include "engine/saved_layer.h"
#include "engine/scratch.h"
#include "engine/token_rows.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {1, 2, 2, 3, 1.0F};
constexpr std::int64_t kMore = 70;

LinearConfig Linear(const char* map) {
  LinearConfig config;
  config.feature_map.name = map;
  return config;
}

std::vector<std::unique_ptr<const Engine>> MakeEngines() {
  LinearConfig gated = Linear("identity");
  gated.normalized = false;
  gated.update.decay = UpdateRule::Decay::kPerToken;
  gated.update.delta = true;
  const EngineConfig configs[] = {
      {kShape, ExactConfig{}, 0},
      {kShape, ExactConfig{.storage = DataType::kBf16}, 100},
      {kShape, KdeConfig{.mode = KdeConfig::Mode::kIndex}, 0},
      {kShape, KdeConfig{.mode = KdeConfig::Mode::kCertified}, 0},
      {kShape, Linear("elu_plus_one"), 0},
      {kShape, Linear("favor_positive"), 256},
      {kShape, Linear("efficient"), 0},
      {kShape, gated, 0},
  };
  std::vector<std::unique_ptr<const Engine>> engines;
  for (const EngineConfig& config : configs) {
    absl::StatusOr<std::unique_ptr<const Engine>> engine = MakeEngine(config);
    if (!engine.ok()) std::abort();
    engines.push_back(*std::move(engine));
  }
  return engines;
}

std::string Framed(const Engine& engine, std::uint32_t magic, std::span<const char> bytes) {
  ByteWriter writer;
  PutForm(engine, magic, writer);
  writer.PutAll(bytes);
  return std::move(writer).Finish();
}

void Require(const absl::Status& status) {
  if (status.ok() || absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) return;
  std::abort();
}

void Use(const Engine& engine, const std::shared_ptr<const LayerState>& state, Scratch& scratch) {
  std::array<float, 2 * 2> queries = {0.5F, -1.0F, 2.0F, 0.25F};
  std::array<float, 2 * 3> outputs;
  std::array<std::uint8_t, 2> flags;
  AnswerView view;
  view.outputs = outputs.data();
  view.flags = flags.data();
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(AttendGroup(*state, queries.data(), 1), view);
  for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  const std::vector<float> numbers(kMore * 3, 0.0F);
  const auto elements = [&numbers](std::int64_t row) {
    return ConstElements{DataType::kF32, numbers.data(), kMore * row};
  };
  LayerDraft draft(engine, state);
  const TokenBatch batch = {kMore, elements(2), elements(3), nullptr, elements(1), elements(1)};
  const absl::Status more = draft.Append(batch, 0, kMore, nullptr, scratch);
  if (!more.ok() && !absl::IsOutOfRange(more)) std::abort();
  if (!SaveRoot(engine, *state).ok()) std::abort();
}

// Takes the next part, at most all that is left.
std::span<const char> TakePart(std::span<const char>& bytes) {
  ByteReader length(bytes);
  const std::size_t size = length.Get<std::uint16_t>();
  const std::span<const char> left = bytes.subspan(std::min<std::size_t>(2, bytes.size()));
  const std::span<const char> part = left.first(std::min(size, left.size()));
  bytes = left.subspan(part.size());
  return part;
}

void LoadAndUse(const Engine& engine, std::span<const char> bytes) {
  absl::StatusOr<LayerLoader> loader =
      LayerLoader::Make(engine, Framed(engine, kRootMagic, TakePart(bytes)));
  Require(loader.status());
  if (!loader.ok()) return;
  Scratch scratch;
  while (!bytes.empty()) {
    const std::string segment = Framed(engine, kSegmentMagic, TakePart(bytes));
    const absl::Status added = loader->AddSegment(segment, scratch);
    Require(added);
    if (!added.ok()) return;
  }
  const absl::StatusOr<std::shared_ptr<const LayerState>> state = loader->Finish(scratch);
  Require(state.status());
  if (state.ok()) Use(engine, *state, scratch);
}

}  // namespace
}  // namespace attnd::engine

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto& engines = *new const std::vector<std::unique_ptr<const attnd::engine::Engine>>(
      attnd::engine::MakeEngines());
  if (size == 0) return 0;
  attnd::engine::LoadAndUse(*engines[data[0] % engines.size()],
                            {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
