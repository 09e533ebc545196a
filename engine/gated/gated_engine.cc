#include "engine/gated/gated_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/gated/decays.h"
#include "engine/gated/delta.h"
#include "engine/gated/gated_plan.h"
#include "engine/linear/fold.h"
#include "engine/linear/saved_linear_state.h"
#include "engine/simd/maps.h"
#include "engine/token_rows.h"

namespace attnd::engine {
namespace {

using Decay = UpdateRule::Decay;

// Multiplies row i of a head's S, and Z's number i, by factors[i].
void DecayTotals(const LinearDims& dims, const double* factors, double* totals) {
  ForTotals(dims, [&](std::int64_t i, std::int64_t feature) { totals[i] *= factors[feature]; });
}

absl::Status Invalid(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("update.", what));
}

absl::Status CheckNumbers(const char* name, const std::vector<float>& numbers, float least,
                          float most) {
  for (const float number : numbers) {
    if (number >= least && number <= most) continue;
    return Invalid(absl::StrCat(name, " holds ", number, "; each must be ", least, " to ", most));
  }
  return absl::OkStatus();
}

absl::Status CheckRule(const LinearLayer& layer) {
  const UpdateRule& rule = layer.config.update;
  const std::int64_t heads = layer.shape.kv_heads;
  const std::int64_t c = layer.map->feature_dim();
  const auto decays = static_cast<std::int64_t>(rule.log_decays.size());
  const auto bonuses = static_cast<std::int64_t>(rule.bonus.size());
  if (layer.map->scaled()) {
    return Invalid(absl::StrCat("decay or delta is set; it must not be for ",
                                layer.config.feature_map.name,
                                ", whose features come with powers of two"));
  }
  if (rule.decay == Decay::kConstant && decays != heads && decays != heads * c) {
    return Invalid(absl::StrCat("log_decays holds ", decays, " numbers; it must hold kv_heads = ",
                                heads, " or kv_heads * c = ", heads * c));
  }
  if (rule.decay != Decay::kConstant && decays != 0) {
    return Invalid(absl::StrCat("log_decays holds ", decays,
                                " numbers; it must be empty unless decay is CONSTANT"));
  }
  if (rule.delta && layer.config.normalized) {
    return absl::InvalidArgumentError(
        "normalization is NORMALIZED; it must be UNNORMALIZED with update.delta, whose sums have "
        "no "
        "denominator");
  }
  if (rule.delta && (DecaysPerFeature(layer) || rule.read_first)) {
    return Invalid("delta is set; it goes with decays per head and with reading after writing");
  }
  if (bonuses != 0 && (!rule.read_first || bonuses != heads * c)) {
    return Invalid(absl::StrCat("bonus holds ", bonuses, " numbers; it must be empty, or hold ",
                                "kv_heads * c = ", heads * c, " with read_first"));
  }
  // Larger ones could only overflow.
  constexpr float kMaxBonus = 1e6F;
  absl::Status status = CheckNumbers("log_decays", rule.log_decays, -kMaxLogDecay, 0.0F);
  status.Update(CheckNumbers("bonus", rule.bonus, -kMaxBonus, kMaxBonus));
  return status;
}

}  // namespace

TailLayout GatedEngine::tail_layout() const {
  const UpdateRule& rule = layer().config.update;
  TailLayout layout;
  layout.features = layer().dims.features;
  if (rule.delta) {
    layout.updates = layer().dims.value_columns;
    layout.rates = layer().shape.kv_heads;
  }
  if (rule.decay == Decay::kPerToken) layout.log_decays = layer().shape.kv_heads;
  if (rule.decay == Decay::kPerFeature) {
    layout.log_decays = layer().shape.kv_heads * layer().map->feature_dim();
  }
  return layout;
}

void GatedEngine::EncodeTail(const SealedState& sealed, const TailRows& rows, Tail& tail,
                             Scratch& scratch) const {
  const LayerShape& shape = layer().shape;
  const LinearDims& dims = layer().dims;
  const LinearState& state = Own(sealed);
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    float* features = tail.features.data() + head * kBlockTokens * dims.features;
    MapKeyRows(layer(),
               {tail.keys.data() + rows.first * shape.key_row(), rows.count,
                rows.block + rows.first, rows.valid >> rows.first},
               head, features + rows.first * dims.features, nullptr, scratch);
    if (!layer().config.update.delta) continue;
    const HeadDecays decays(layer(), tail.log_decays.data(), rows.valid, rows.first + rows.count,
                            head);
    WriteUpdates(layer(), decays,
                 {rows.first, rows.count, features, tail.values.data() + head * shape.value_dim,
                  shape.value_row(), tail.rates.data() + head, shape.kv_heads,
                  state.has_sums() ? state.summary(head) : nullptr},
                 tail.updates.data() + head * kBlockTokens * dims.value_columns, scratch);
  }
}

HeadRows GatedEngine::Decayed(const Rows& rows, std::int64_t head, double* factors,
                              Scratch& scratch) const {
  const LinearDims& dims = layer().dims;
  const HeadDecays decays(layer(), rows.log_decays, rows.valid, rows.count, head);
  decays.TotalFactors(factors);
  float* decayed = scratch.Take(rows.count * dims.features);
  decays.DecayRows(rows.count - 1, rows.features, decayed, scratch.Take(dims.features));
  return {rows.count,
          decayed,
          rows.values,
          rows.value_stride,
          rows.valid,
          nullptr,
          !layer().config.update.delta};
}

bool GatedEngine::Fold(const Rows& rows, std::int64_t head, LinearState& state,
                       Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  double* factors = scratch.TakeF64(layer().dims.features);
  const HeadRows decayed = Decayed(rows, head, factors, scratch);
  DecayTotals(layer().dims, factors, state.totals(head));
  return FoldRows(layer().dims, decayed, head, state, scratch);
}

// Whether Fold() would be true; the state is not changed.
bool GatedEngine::CanFold(const Rows& rows, std::int64_t head, const LinearState& state,
                          Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = layer().dims;
  double* factors = scratch.TakeF64(dims.features);
  const HeadRows decayed = Decayed(rows, head, factors, scratch);
  float* sums = scratch.Take(dims.totals());
  if (!std::isfinite(SumRows(dims, decayed, sums, scratch))) return false;
  if (!state.has_sums()) return true;
  const double* totals = state.totals(head);
  bool finite = true;
  ForTotals(dims, [&](std::int64_t i, std::int64_t feature) {
    const double total = totals[i] * factors[feature] + static_cast<double>(sums[i]);
    finite = finite && std::isfinite(static_cast<float>(total));
  });
  return finite;
}

GatedEngine::Rows GatedEngine::EncodedRows(const Tail& tail, std::int64_t count, RowMask valid,
                                           std::int64_t head) const {
  const LinearDims& dims = layer().dims;
  Rows rows = {count,
               valid,
               tail.log_decays.data(),
               tail.features.data() + head * kBlockTokens * dims.features,
               tail.values.data() + head * layer().shape.value_dim,
               layer().shape.value_row()};
  if (layer().config.update.delta) {
    rows.values = tail.updates.data() + head * kBlockTokens * dims.value_columns;
    rows.value_stride = dims.value_columns;
  }
  return rows;
}

// The rows of a block that did not pass through a tail; `state` is that before the block.
GatedEngine::Rows GatedEngine::EncodeBlock(const Block& block, std::int64_t position,
                                           std::int64_t head, const LinearState& state,
                                           Scratch& scratch) const {
  const LayerShape& shape = layer().shape;
  const LinearDims& dims = layer().dims;
  float* features = scratch.Take(kBlockTokens * dims.features);
  MapKeyRows(layer(), {block.keys, kBlockTokens, position, block.valid}, head, features, nullptr,
             scratch);
  Rows rows = {kBlockTokens,
               block.valid,
               block.log_decays,
               features,
               block.values + head * shape.value_dim,
               shape.value_row()};
  if (layer().config.update.delta) {
    float* updates = scratch.Take(kBlockTokens * dims.value_columns);
    const HeadDecays decays(layer(), block.log_decays, block.valid, kBlockTokens, head);
    WriteUpdates(layer(), decays,
                 {0, kBlockTokens, features, rows.values, rows.value_stride, block.rates + head,
                  shape.kv_heads, state.summary(head)},
                 updates, scratch);
    rows.values = updates;
    rows.value_stride = dims.value_columns;
  }
  return rows;
}

absl::Status GatedEngine::Seal(SealedState& state, std::int64_t sealed_tokens,
                               std::span<const Block> blocks, Scratch& scratch) const {
  LinearState& sealed = Own(state);
  if (!sealed.has_sums()) sealed.AllocateSums();
  for (std::int64_t head = 0; head < layer().shape.kv_heads; ++head) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Scratch::Frame frame(scratch);
      const Block& block = blocks[b];
      const std::int64_t first = sealed_tokens + static_cast<std::int64_t>(b) * kBlockTokens;
      const Rows rows = block.encoded != nullptr
                            ? EncodedRows(*block.encoded, kBlockTokens, block.valid, head)
                            : EncodeBlock(block, first, head, sealed, scratch);
      if (!Fold(rows, head, sealed, scratch)) {
        return SumsOverflow(
            absl::StrCat("tokens ", first, " to ", first + kBlockTokens - 1).c_str(), head);
      }
      // The next block's updates read it.
      if (layer().config.update.delta || b + 1 == blocks.size()) {
        RoundSummary(layer().dims, head, sealed);
      }
    }
  }
  for (const Block& block : blocks) sealed.AddUnmasked(std::popcount(block.valid));
  return absl::OkStatus();
}

absl::Status GatedEngine::CheckTail(const SealedState& state, const TailView& tail,
                                    Scratch& scratch) const {
  if (tail.rows == 0) return absl::OkStatus();
  const auto& sealed = Own(state);
  for (std::int64_t head = 0; head < layer().shape.kv_heads; ++head) {
    const Rows rows = EncodedRows(*tail.tail, tail.rows, tail.valid, head);
    float max_value = 0;
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const float max = MaxAbs(rows.values + i * rows.value_stride, layer().shape.value_dim);
      if (!(max <= max_value) && !std::isnan(max_value)) max_value = max;  // keeps a NaN
    }
    // Decays only make numbers smaller.
    const HeadRows undecayed = {rows.count,        rows.features, rows.values,
                                rows.value_stride, rows.valid,    nullptr};
    if (SurelyCanFoldRows(layer().dims, undecayed, max_value, head, sealed)) continue;
    if (!CanFold(rows, head, sealed, scratch)) return SumsOverflow("the last tokens", head);
  }
  return absl::OkStatus();
}

absl::Status GatedEngine::Save(const SealedState& state, ByteWriter& writer) const {
  SaveLinearState(layer(), SavedSums::kGated, Own(state), writer);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SealedState>> GatedEngine::Load(std::int64_t sealed_tokens,
                                                               ByteReader& reader) const {
  std::shared_ptr<SealedState> state = NewState();
  absl::Status status =
      LoadLinearState(layer(), SavedSums::kGated, sealed_tokens, reader, Own(*state));
  if (!status.ok()) return status;
  return state;
}

std::unique_ptr<AttendPlan> GatedEngine::NewPlan() const {
  return std::make_unique<GatedAttendPlan>(layer());
}

absl::StatusOr<std::unique_ptr<const Engine>> MakeGatedEngine(const LayerShape& shape,
                                                              const LinearConfig& config) {
  absl::StatusOr<LinearLayer> layer = MakeLinearLayer(shape, config);
  if (!layer.ok()) return layer.status();
  absl::Status status = CheckRule(*layer);
  // Keys of their own for every query are as much work as two products.
  if (DecaysPerFeature(*layer) || !config.update.bonus.empty()) {
    status.Update(CheckSums(shape, layer->dims, layer->map->feature_dim(), /*factor=*/2));
  }
  if (!status.ok()) return status;
  return std::make_unique<const GatedEngine>(*std::move(layer));
}

}  // namespace attnd::engine
