#include "server/mutation.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/tensors.h"
#include "server/work.h"

namespace attnd::server {

namespace {

// Gates of `numbers` per token of the layer, 0 if it takes none.
absl::StatusOr<engine::ConstElements> CheckGates(bool set, const v1::Tensor& tensor,
                                                 const std::string& field, std::int64_t tokens,
                                                 std::int64_t heads, std::int64_t numbers) {
  if (numbers == 0 && !set) return engine::ConstElements{};
  if (numbers == 0) {
    return Error(v1::BAD_TENSOR,
                 absl::StrCat(field, " is set; the layer's update rule takes none"));
  }
  if (!set) {
    return Error(v1::BAD_TENSOR,
                 absl::StrCat(field, " is not set; the layer's update rule needs [n, ", heads, ", ",
                              numbers / heads, "]"));
  }
  absl::StatusOr<RowsView> rows = CheckRows(tensor, field, heads, numbers / heads);
  if (!rows.ok()) return rows.status();
  if (rows->rows != tokens) {
    return Error(v1::BAD_TENSOR,
                 absl::StrCat(field, " holds ", rows->rows, " tokens; keys holds ", tokens));
  }
  return rows->elements;
}

}  // namespace

absl::StatusOr<LayerSlice> CheckTokens(const Session& session, const v1::LayerTokens& tokens,
                                       const std::string& field) {
  absl::Status layer = session.CheckLayer(tokens.layer());
  if (!layer.ok()) return layer;
  if (!tokens.has_position()) {
    return Error(v1::INVALID_FIELD,
                 absl::StrCat(field, ".position is not set; it is required, the first one is 0"));
  }
  if (tokens.position() < 0) {
    return Error(v1::INVALID_FIELD, absl::StrCat(field, ".position is ", tokens.position(),
                                                 "; it must be at least 0"));
  }
  const engine::LayerShape& shape = session.engine(tokens.layer()).shape();
  absl::StatusOr<RowsView> keys =
      CheckRows(tokens.keys(), field + ".keys", shape.kv_heads, shape.key_dim);
  if (!keys.ok()) return keys.status();
  absl::StatusOr<RowsView> values =
      CheckRows(tokens.values(), field + ".values", shape.kv_heads, shape.value_dim);
  if (!values.ok()) return values.status();
  if (keys->rows != values->rows) {
    return Error(v1::BAD_TENSOR, absl::StrCat(field, ".values holds ", values->rows, " tokens; ",
                                              field, ".keys holds ", keys->rows));
  }
  const std::string& mask = tokens.mask();
  if (!mask.empty()) {
    if (static_cast<std::int64_t>(mask.size()) != keys->rows) {
      return Error(v1::BAD_TENSOR,
                   absl::StrCat(field, ".mask has ", mask.size(),
                                " bytes; it must have one per token, ", keys->rows));
    }
    const auto bad = std::ranges::find_if(mask, [](char c) { return c != 0 && c != 1; });
    if (bad != mask.end()) {
      return Error(v1::BAD_TENSOR, absl::StrCat(field, ".mask[", bad - mask.begin(), "] is ",
                                                static_cast<int>(static_cast<unsigned char>(*bad)),
                                                "; it must be 0 or 1"));
    }
  }
  const engine::TailLayout layout = session.engine(tokens.layer()).tail_layout();
  absl::StatusOr<engine::ConstElements> log_decays =
      CheckGates(tokens.has_log_decays(), tokens.log_decays(), field + ".log_decays", keys->rows,
                 shape.kv_heads, layout.log_decays);
  if (!log_decays.ok()) return log_decays.status();
  absl::StatusOr<engine::ConstElements> rates =
      CheckGates(tokens.has_rates(), tokens.rates(), field + ".rates", keys->rows, shape.kv_heads,
                 layout.rates);
  if (!rates.ok()) return rates.status();
  LayerSlice slice;
  slice.span = {tokens.layer(), tokens.position(), keys->rows};
  slice.batch = {
      keys->rows,       keys->elements,
      values->elements, mask.empty() ? nullptr : reinterpret_cast<const std::uint8_t*>(mask.data()),
      *log_decays,      *rates};
  return slice;
}

Mutation::Mutation(Session& session, engine::MessageKind kind, std::vector<LayerSlice> slices,
                   StateBudget& budget, std::int64_t reserved)
    : session_(session),
      kind_(kind),
      slices_(std::move(slices)),
      budget_(budget),
      reserved_(reserved),
      drafts_(slices_.size()),
      digesters_(slices_.size()),
      digested_(slices_.size(), 0) {}

Mutation::~Mutation() { budget_.Adjust(-reserved_); }

std::int64_t Mutation::EstimateBytes(const Session& session,
                                     const std::vector<LayerSlice>& slices) {
  std::int64_t bytes = 0;
  for (const LayerSlice& slice : slices) {
    bytes += session.engine(slice.span.layer).AppendBytes(slice.span.position, slice.span.count);
  }
  return bytes;
}

bool Mutation::Applies() const {
  return std::ranges::all_of(slices_, [this](const LayerSlice& slice) {
    return session_.position(slice.span.layer) == slice.span.position;
  });
}

engine::LayerDraft& Mutation::draft(std::size_t slice) {
  std::optional<engine::LayerDraft>& draft = drafts_[slice];
  if (!draft) {
    const std::int64_t layer = slices_[slice].span.layer;
    draft.emplace(session_.engine(layer), session_.layer(layer));
  }
  return *draft;
}

bool Mutation::PrepareSeal(std::size_t slice, std::int64_t count, engine::Scratch& scratch) {
  return draft(slice).PrepareSeal(count, scratch);
}

absl::Status Mutation::Apply(std::size_t slice, std::int64_t count, engine::Scratch& scratch) {
  absl::Status applied = draft(slice).Append(slices_[slice].batch, digested_[slice], count,
                                             &digesters_[slice], scratch);
  digested_[slice] += count;
  return applied.ok() ? applied : LayerError(slice, applied);
}

absl::Status Mutation::LayerError(std::size_t slice, const absl::Status& status) const {
  return EngineError(absl::Status(
      status.code(),
      absl::StrCat("layer ", slices_[slice].span.layer, ", ", std::string(status.message()))));
}

absl::Status Mutation::Digest(std::size_t slice, std::int64_t count, engine::Scratch& scratch) {
  const LayerSlice& tokens = slices_[slice];
  const engine::Engine& engine = session_.engine(tokens.span.layer);
  for (std::int64_t left = count; left > 0;) {
    engine::Scratch::Frame frame(scratch);
    const std::int64_t now = std::min(left, engine::kBlockTokens);
    absl::StatusOr<engine::TokenRows> rows =
        engine::StoredRows(engine, tokens.batch, digested_[slice], now, scratch);
    if (!rows.ok()) return LayerError(slice, rows.status());
    digesters_[slice].Update(engine, *rows);
    digested_[slice] += now;
    left -= now;
  }
  return absl::OkStatus();
}

absl::Status Mutation::CheckTail(std::size_t slice, engine::Scratch& scratch) const {
  absl::Status status = drafts_[slice]->CheckTail(scratch);
  return status.ok() ? status : LayerError(slice, status);
}

engine::Message Mutation::Message(const engine::Digest& extra) const {
  engine::Message message;
  message.kind = kind_;
  engine::Digester digester;
  digester.Update(static_cast<std::int64_t>(kind_));
  digester.Update(&extra, sizeof extra);
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const engine::Digest tokens = digesters_[i].Result();
    digester.Update(slices_[i].span.layer);
    digester.Update(slices_[i].span.position);
    digester.Update(&tokens, sizeof tokens);
    message.spans.push_back(slices_[i].span);
  }
  message.digest = digester.Result();
  return message;
}

absl::StatusOr<std::uint64_t> Mutation::Publish(
    engine::Message message, const std::shared_ptr<const v1::StepResponse>& answer) {
  std::vector<std::pair<std::int64_t, LayerStatePtr>> states;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    states.emplace_back(slices_[i].span.layer, drafts_[i]->Finish());
  }
  return session_.Publish(std::move(states), std::move(message), answer);
}

std::int64_t Mutation::QuantumTokens(std::size_t slice) const {
  return AppendQuantumTokens(session_.engine(slices_[slice].span.layer));
}

}  // namespace attnd::server
