// How IndexPlan audits its rows and what it states of their errors.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/kde/index/index_plan.h"
#include "engine/kde/index/row_audit.h"
#include "engine/random.h"

namespace attnd::engine {

IndexPlan::Prediction IndexPlan::Predict(const Tile& tile, std::int64_t row) const {
  const RowMasses& masses = tile.masses[row];
  const double spread = SpreadOf(tile);
  const double scale =
      std::exp(static_cast<double>(masses.max) - static_cast<double>(tile.sums.max[row])) /
      static_cast<double>(tile.sums.sum[row]);
  // Values that are all alike are answered without an error.
  const double deviation = spread > 0.0 ? scale * std::sqrt(masses.square_error) / spread : 0.0;
  return {.deviation = deviation, .unread_share = scale * static_cast<double>(masses.far)};
}

float IndexPlan::StatedErrorOf(const Tile& tile, std::int64_t row) const {
  if (!(SpreadOf(tile) > 0.0)) return 0.0F;
  const Prediction prediction = Predict(tile, row);
  return static_cast<float>(
      StatedError(prediction.deviation, prediction.unread_share, FactorOf(tile)));
}

double IndexPlan::AuditChanceOf(const Tile& tile) const {
  double keys = 0.0;
  double read = 0.0;
  for (const SpanView& span : spans_[static_cast<std::size_t>(tile.rows.kv_head)]) {
    const auto of_span = static_cast<double>(span.index->keys());
    keys += of_span;
    read +=
        of_span * static_cast<double>(
                      span.errors->key_shares[static_cast<std::size_t>(span.TableRow(threshold_))]);
  }
  const auto key = static_cast<double>(2 * (shape_.key_dim + layout_.padded_value_dim));
  const auto summaries = static_cast<double>(SummaryFlops());
  const double raw = static_cast<double>(blocks_ * kBlockTokens);
  return AuditChance(summaries + (read + raw) * key, (keys - read) * key,
                     FactorOf(tile).calibrated ? audit_shares_.calibrated : audit_shares_.learning);
}

// After the summaries, when a tile's sums hold what its rows will not read and nothing else.
void IndexPlan::ChooseAudits(const Tile& tile, std::int64_t chain) {
  if (!(SpreadOf(tile) > 0.0)) return;
  const std::int64_t d = shape_.key_dim;
  const double wanted = AuditChanceOf(tile);
  if (!(wanted > 0.0)) return;
  const double gate = TileChance(wanted, tile.rows.rows);
  // Of all rows: many calls may begin with the same one.
  std::uint64_t tile_ticket = static_cast<std::uint64_t>(tile.rows.kv_head);
  for (std::int64_t r = 0; r < tile.rows.rows; ++r) {
    tile_ticket = RandomAt(tile_ticket, AuditTicket(tile.queries + r * d, d, r));
  }
  if (!IsAudited(tile_ticket, gate)) return;
  const double chance = wanted / gate;
  for (std::int64_t r = 0; r < tile.rows.rows; ++r) {
    if (!(tile.masses[r].far > 0.0F)) continue;
    const std::int64_t position =
        audit_kind_.own_position ? group_.position(tile.rows.query(r)) : -1;
    const std::uint64_t ticket = AuditTicket(tile.queries + r * d, d, position);
    if (IsAudited(ticket, chance)) audits_.Offer(chain, r, ticket);
  }
  audits_.Choose(chain);
  const AuditRows audited = audits_.RowsOf(chain);
  const std::int64_t columns = layout_.padded_value_dim;
  SoftmaxSums truth = audited.truth;
  truth.Clear();
  for (std::int64_t i = 0; i < audited.count; ++i) {
    const std::int64_t r = audits_.row(chain, i);
    std::copy_n(tile.queries + r * d, d, audited.queries + i * d);
    std::copy_n(tile.sums.acc + r * columns, columns, audited.predicted.acc + i * columns);
    audited.predicted.max[i] = tile.sums.max[r];
    audited.predicted.sum[i] = tile.sums.sum[r];
    RowMask* unread = audited.unread + i * row_words();
    SelectAll(spans_[static_cast<std::size_t>(tile.rows.kv_head)], unread);
    for (std::int64_t word = 0; word < words_; ++word) {
      unread[word] &= ~tile.selected[r * row_words() + word];
    }
  }
}

IndexPlan::Tile IndexPlan::AuditTileOf(const Tile& tile, std::int64_t chain) {
  const AuditRows audited = audits_.RowsOf(chain);
  RowTile rows = tile.rows;
  rows.rows = audited.count;
  return {.rows = rows,
          .queries = audited.queries,
          .sums = audited.truth,
          .selected = audited.unread,
          .masses = nullptr,
          .top = {}};
}

void IndexPlan::JudgeAudits(const Tile& tile, std::int64_t chain) {
  const AuditRows audited = audits_.RowsOf(chain);
  const double spread = SpreadOf(tile);
  for (std::int64_t i = 0; i < audited.count; ++i) {
    const std::int64_t r = audits_.row(chain, i);
    const double error =
        AuditedError(tile.sums, r, audited.predicted, audited.truth, i, shape_.value_dim) / spread;
    const Prediction prediction = Predict(tile, r);
    audits_.SetRatio(chain, i, error / RowDeviation(prediction.deviation, prediction.unread_share));
    if (answer_.estimates.audited_errors != nullptr && std::isfinite(error)) {
      answer_.estimates.audited_errors[tile.rows.tensor_row(r)] = static_cast<float>(error);
    }
  }
}

void IndexPlan::Finish(Scratch& /*scratch*/) {
  if (!use_index_) return;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    audits_.Tell(head * head_tiles_, (head + 1) * head_tiles_, audit_kind_, head, state_->audits());
  }
}

}  // namespace attnd::engine
