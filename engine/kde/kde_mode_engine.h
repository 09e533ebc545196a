// What the modes of the engine kde have in common: everything that neither memory nor arithmetic
// decides. Thread safety and failures: engine.h.
#ifndef ATTND_ENGINE_KDE_KDE_MODE_ENGINE_H_
#define ATTND_ENGINE_KDE_KDE_MODE_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/scratch.h"

namespace attnd::engine {

class KdeModeEngine : public Engine {
 public:
  KdeModeEngine(const LayerShape& shape, const KdeConfig& config)
      : shape_(shape), config_(config) {}

  const char* name() const override { return "kde"; }
  const LayerShape& shape() const override { return shape_; }
  // Of the same use in all modes, so that a client need not know which one answers.
  PositionUse position_use() const override { return PositionUse::kOptional; }
  bool approximate() const override { return true; }

  void RoundToStorage(float* /*values*/, std::int64_t /*count*/) const override {}
  bool rounds_storage() const override { return false; }
  bool keeps_rows() const override { return true; }
  // Sealing copies rows, and no finite key or value makes it fail.
  absl::Status CheckTail(const SealedState& /*state*/, const TailView& /*tail*/,
                         Scratch& /*scratch*/) const override {
    return absl::OkStatus();
  }

 protected:
  const KdeConfig& config() const { return config_; }
  // How many blocks are sealed at a position: the newest one is open.
  static std::int64_t SealedBlocks(std::int64_t position) {
    return position == 0 ? 0 : (position - 1) / kBlockTokens;
  }

 private:
  const LayerShape shape_;
  const KdeConfig config_;
};

// Modes AUTO and INDEX (index/index_plan.h), CERTIFIED (certified/certified_plan.h) and PAPER
// (paper/paper_plan.h). The configuration is valid.
std::unique_ptr<const Engine> MakeIndexEngine(const LayerShape& shape, const KdeConfig& config);
std::unique_ptr<const Engine> MakeCertifiedEngine(const LayerShape& shape, const KdeConfig& config);
std::unique_ptr<const Engine> MakePaperEngine(const LayerShape& shape, const KdeConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_KDE_MODE_ENGINE_H_
